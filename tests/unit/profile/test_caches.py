"""The rows of the caches that envgen knows, and that everything which reads them agrees."""

from __future__ import annotations

from pathlib import Path

import caches_page
import pytest

from envgen.jitcache.place import is_compiled
from envgen.profile.caches import FLASHINFER, KNOWN, SETS, environment_of


@pytest.mark.parametrize("name", KNOWN)
def test_each_cache_sets_variables_that_no_other_sets(name: str) -> None:
    row = KNOWN[name]
    variables = row.environment(row.path)
    assert variables and {SETS[variable] for variable in variables} == {name}
    for variable, below in row.variables.items():
        assert variables[variable] == row.path + below


def test_flashinfer_looks_below_its_base() -> None:
    assert FLASHINFER.environment("/data/.cache/flashinfer") == {"FLASHINFER_WORKSPACE_BASE": "/data"}
    assert FLASHINFER.environment("/.cache/flashinfer") == {"FLASHINFER_WORKSPACE_BASE": "/"}
    assert FLASHINFER.environment("/elsewhere") == {}, "FlashInfer always looks in .cache/flashinfer below its base"


def test_a_name_of_the_user_sets_nothing() -> None:
    assert environment_of("mine", "/mine") == {}
    assert not is_compiled("mine")
    assert [name for name in ("flashinfer", "quack", "huggingface", "uv") if is_compiled(name)] == [
        "flashinfer",
        "quack",
    ]


def test_the_table_of_the_docs_is_current() -> None:
    page = Path(__file__).parents[3] / "docs" / "jit-cache.md"
    assert caches_page.renew(page.read_text("utf-8")) == page.read_text("utf-8"), "scripts/regenerate"
