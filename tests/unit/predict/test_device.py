"""A GPU that is played: modules that are there, and modules that are imported later, answer for it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envgen.inside.predict import device

GPU = {"name": "NVIDIA GB10", "capability": [12, 1], "memory": 120 << 30, "count": 1}
TORCH = """\
import sys, types
cuda = types.ModuleType("torch.cuda")
def refuse(*_): raise RuntimeError("no driver")
for name in ("is_available", "device_count", "get_device_capability", "get_device_properties", "current_stream",
             "_lazy_init"):
    setattr(cuda, name, refuse)
"""


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "torch.py").write_text(TORCH, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delenv("CUTE_DSL_ARCH", raising=False)
    hidden = {name: module for name, module in sys.modules.items() if name in device.PLAYED}
    for name in hidden:
        monkeypatch.delitem(sys.modules, name)
    yield
    sys.modules.pop("torch", None)


@pytest.mark.parametrize("first", [True, False])
def test_what_is_imported_before_and_after_knows_the_device(torch: None, first: bool) -> None:
    gpu: dict[str, Any] = dict(GPU)
    if first:
        importlib.import_module("torch")
    device.play(gpu)
    played: Any = importlib.import_module("torch").cuda
    assert played.is_available() and played.device_count() == 1 and played.get_device_capability() == (12, 1)
    properties = played.get_device_properties(0)
    assert (properties.name, properties.total_memory, properties.multi_processor_count) == (
        "NVIDIA GB10",
        120 << 30,
        48,
    )
    gpu["count"] = 2
    assert played.device_count() == 2
    with pytest.raises(RuntimeError, match="no driver"):
        played._lazy_init()  # what needs a device has none
    with pytest.raises(RuntimeError, match="computes"):
        played.current_stream().synchronize()


def test_another_device_replaces_the_one_before(torch: None) -> None:
    device.play(dict(GPU))
    device.play({**GPU, "capability": [9, 0], "count": 8})
    assert sum(isinstance(one, device.WhenImported) for one in sys.meta_path) == 1
    played: Any = importlib.import_module("torch").cuda
    assert played.get_device_capability() == (9, 0) and played.device_count() == 8
