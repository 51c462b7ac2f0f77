"""b12x itself compiles a kernel for a GB10 that is not there, and `cache` judges what it wrote. Nothing is run."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from releases import PROFILES, TOP, environment

from envgen.inside import run
from envgen.jitcache.service import AGENT

pytestmark = pytest.mark.nightly  # a minute


def test_a_kernel_that_b12x_compiled_is_fresh_until_its_files_change(tmp_path: Path) -> None:
    python, kept = environment(PROFILES["prod"]), tmp_path / "kept"
    program = TOP / "benchmarks" / "kernels_of_b12x.py"
    env = {**os.environ, "B12X_COMPILE_CACHE_DIR": str(kept)}
    words = ("gpt-oss", "extend", "bfloat16", "128")
    done = subprocess.run([python, program, *words], env=env, capture_output=True, text=True)
    assert "1 in CuTe DSL" in done.stdout, done.stdout + done.stderr
    (tmp_path / "flashinfer").mkdir()
    agent = replace(AGENT, watch=False)  # no engine keeps its stdin open

    def listed(path: str = "", **more: Any) -> list[tuple[str, ...]]:
        request = {"operation": "list", "root": str(tmp_path / "flashinfer"), "thorough": True, "b12x": str(kept)}
        answer = run.ask(run.on_host({"PYTHONPATH": path}), str(python), agent, {**request, **more}, timeout=120)
        assert not isinstance(answer, run.NoAnswer), answer
        return [(one["name"], one["arch"], one["version"], one["state"]) for one in answer["result"]["modules"]]

    fresh = ("attention.paged.forward", "121a", "b12x-1.5.1", "fresh")
    assert listed(expected_archs=["121a"]) == [fresh]
    site = next((python.parent.parent / "lib").glob("python*/site-packages"))
    checkout = shutil.copytree(site / "b12x", tmp_path / "checkout" / "b12x")
    shutil.copytree(next(site.glob("b12x-*.dist-info")), tmp_path / "checkout" / "b12x-1.5.1.dist-info")
    assert listed(str(tmp_path / "checkout")) == [fresh], "a checkout with the same bytes"
    with (checkout / "attention" / "paged" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write("# an edit\n")
    assert [one[-1] for one in listed(str(tmp_path / "checkout"))] == ["stale"]
