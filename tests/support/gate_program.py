"""docker/runtime/bin/compile-gate as a module, and the benchmark that loads it: it has no .py."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
benchmark = importlib.import_module("gate")
gate = benchmark.load_gate()
