"""The results of FlashInfer's autotuner in a run's record."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.inside.common import tunings


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
