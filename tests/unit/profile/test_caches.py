"""The rows of the caches that envgen knows, and that everything which reads them agrees."""

from __future__ import annotations

from pathlib import Path

import caches_page
import pytest

from envgen.profile.caches import FLASHINFER, KNOWN, SETS


@pytest.mark.parametrize("name", KNOWN)
def test_each_cache_sets_variables_that_no_other_sets(name: str) -> None:
    row = KNOWN[name]
    variables = row.environment(row.path)
    assert variables and {SETS[variable] for variable in variables} == {name}
    for variable, below in row.variables.items():
        assert variables[variable] == row.path + below


def test_flashinfer_looks_below_its_base() -> None:
    assert FLASHINFER.environment("/data/.cache/flashinfer") == {
        "FLASHINFER_WORKSPACE_BASE": "/data",
        "FLASHINFER_JIT_BUILD_LOG": "/data/.cache/flashinfer/jit-builds.jsonl",
    }
    assert FLASHINFER.environment("/.cache/flashinfer")["FLASHINFER_WORKSPACE_BASE"] == "/"
    assert list(FLASHINFER.environment("/elsewhere")) == ["FLASHINFER_JIT_BUILD_LOG"], (
        "FlashInfer always looks in .cache/flashinfer below its base"
    )


def test_the_table_of_the_docs_is_current() -> None:
    page = Path(__file__).parents[3] / "docs" / "jit-cache.md"
    assert caches_page.renew(page.read_text("utf-8")) == page.read_text("utf-8"), "scripts/regenerate"
