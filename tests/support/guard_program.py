"""docker/runtime/libexec/memory-guard as a module: it has no .py."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parents[2] / "docker/runtime/libexec/memory-guard"


def load() -> Any:
    loader = SourceFileLoader("memory_guard", str(PATH))
    spec = spec_from_loader("memory_guard", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module
