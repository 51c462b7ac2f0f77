"""The results of FlashInfer's autotuner in a crash bundle and in a run's record."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from envgen.inside import inventory
from envgen.serve import crash


def test_the_tuning_results_are_listed_with_their_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = tmp_path / "home/.cache/flashinfer/autotune/v2/ab12/entries/one.json"
    result.parent.mkdir(parents=True)
    result.write_text("{}")
    other = tmp_path / "vllm of/flashinfer_autotune_cache/rank1.json"
    other.parent.mkdir(parents=True)
    other.write_text("{}")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "VLLM_CACHE_ROOT": str(tmp_path / "vllm of")}
    done = subprocess.run(["sh", "-c", crash._FLASHINFER], env=env, capture_output=True, text=True, check=True)
    digest = hashlib.sha256(b"{}").hexdigest()
    assert done.stdout.splitlines() == [
        f"==> {tmp_path}/home/.cache/flashinfer/autotune <==", f"{digest}  {result}",
        f"==> {other.parent} <==", f"{digest}  {other}",
    ]  # fmt: skip
    for name in ("HOME", "VLLM_CACHE_ROOT"):
        monkeypatch.setenv(name, env[name])
    assert [(one["place"], one["results"]) for one in inventory.answer({})["tuning"]] == [
        (f"{tmp_path}/home/.cache/flashinfer/autotune", 1), (str(other.parent), 1),
    ]  # fmt: skip
