"""Where vLLM's compiled code is not here, its layers find placeholders for it."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.inside.predict.machine import uncompiled

# As vLLM's: it describes the operations that are there, and torch refuses to describe one that is not.
OPERATIONS = "import torch\nDESCRIBED = hasattr(torch.ops._C, 'scaled_fp4_quant')\n"


def test_what_describes_operations_sees_no_placeholder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/_custom_ops.py").write_text(OPERATIONS)
    operations = SimpleNamespace(_C=object(), _moe_C=object())
    torch: Any = SimpleNamespace(ops=operations, version=SimpleNamespace(cuda=None))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("vllm", "vllm._custom_ops"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = dict(vars(operations))
    with uncompiled():
        assert not import_module("vllm._custom_ops").DESCRIBED
        assert operations._C.scaled_fp4_quant is not None
    assert vars(operations) == before
    for name in ("vllm", "vllm._custom_ops"):
        sys.modules.pop(name, None)
