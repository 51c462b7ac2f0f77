"""docker/runtime/bin/compile-gate as a module: it has no .py."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

GATE = Path(__file__).resolve().parents[3] / "docker/runtime/bin/compile-gate"
BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks/gate.py"


def load(path: Path, name: str) -> ModuleType:
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


gate = load(GATE, "compile_gate")
