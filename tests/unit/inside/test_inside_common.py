"""Files of a container, a checkout or a cache, as the programs in the container read them: they are a stranger's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envgen.inside.common import read_bytes, tunings


def test_only_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe-link").symlink_to("pipe")
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(str(tmp_path / "file"), 3) == b"123"
    for name in ("pipe", "pipe-link", "absent", "", "null\0"):
        assert read_bytes(str(tmp_path / name)) == b""
    assert read_bytes("/dev/zero") == b""
    assert read_bytes("/proc/self/stat").startswith(b"%d " % os.getpid())


def test_a_pipe_among_tuning_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHINFER_AUTOTUNE_CACHE_DIR", str(tmp_path))
    os.mkfifo(tmp_path / "a.json")
    (found,) = tunings()
    assert found["results"] == 1


def test_the_folders_with_tuning_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer's own and vLLM's."""
    places = [tmp_path / "home/.cache/flashinfer/autotune", tmp_path / "vllm of/flashinfer_autotune_cache"]
    for place in places:
        (place / "v2").mkdir(parents=True)
        (place / "v2/rank1.json").write_text("{}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "vllm of"))
    before = tunings()
    assert [(found["place"], found["results"]) for found in before] == [(str(place), 1) for place in places]
    (places[0] / "v2/rank1.json").write_text('{"tactic": 4}')
    assert [now["digest"] != then["digest"] for now, then in zip(tunings(), before, strict=True)] == [True, False]
