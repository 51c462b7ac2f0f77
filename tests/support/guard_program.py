"""docker/runtime/libexec/memory-guard as a module: it has no .py, and no bytecode may lie beside what images get."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

PATH = Path(__file__).resolve().parents[2] / "docker/runtime/libexec/memory-guard"


def load() -> Any:
    module = ModuleType("memory_guard")
    exec(compile(PATH.read_text("utf-8"), PATH, "exec"), vars(module))
    return module
