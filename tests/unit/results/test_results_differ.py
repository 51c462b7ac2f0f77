"""What differed, in words."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.results.differ import differences, flags
from envgen.results.model import Record, frozen


def record(environment: dict[str, Any], parameters: dict[str, Any] | None = None) -> Record:
    moment = datetime(2026, 1, 9, tzinfo=timezone.utc)
    return Record(
        Path("x"), "id", "bench", moment, frozen(environment), frozen(parameters or {}), (), "passed", frozen({})
    )


def words(*environments: dict[str, Any]) -> list[str]:
    return [item.words("ABC"[: len(environments)]) for item in differences([record(e) for e in environments])]


def test_equal_environments_differ_in_nothing() -> None:
    assert words({"lock": "sha256:1", "env": {"A": "1"}}, {"env": {"A": "1"}, "lock": "sha256:1"}) == []


def test_each_kind_has_its_words_in_a_fixed_order() -> None:
    a = {
        "flags": ["--enforce-eager", "--max-model-len", "512"],
        "env": {"OLD": "", "SAME": "1"},
        "lock": "sha256:1",
        "image": {"name": "x:prod", "digest": "sha256:a"},
        "sources": {"vllm": "ac9f9330e"},
        "versions": {"torch": "2.12.0"},
        "gpu": {"name": "NVIDIA GB10"},
        "strange": {"deep": {"er": [1, 2]}},
    }
    b = {
        "flags": ["--max-model-len=1024"],
        "env": {"SAME": "1", "NEW": "marlin"},
        "image": {"name": "x:prod", "digest": "sha256:b"},
        "sources": {"vllm": "77bf5a554"},
        "versions": {"torch": "2.13.0"},
        "gpu": {"name": "NVIDIA H100"},
    }
    assert words(a, b) == [
        "lock: sha256:1 in A; not recorded in B",
        "image digest: sha256:a in A; sha256:b in B",
        "source commit vllm: ac9f9330e in A; 77bf5a554 in B",
        "version torch: 2.12.0 in A; 2.13.0 in B",
        "GPU name: NVIDIA GB10 in A; NVIDIA H100 in B",
        "variable NEW: not set in A; marlin in B",
        "variable OLD: (empty) in A; not set in B",
        "server flag --enforce-eager: yes in A; not set in B",
        "server flag --max-model-len: 512 in A; 1024 in B",
        "strange deep.er: 1 2 in A; not recorded in B",
    ]


def test_what_a_run_did_not_record_is_not_called_unset() -> None:
    assert words({"flags": ["--a"], "env": {"X": "1"}}, {"flags": ["--b"]}, {}) == [
        "variable X: 1 in A; not recorded in B, C",
        "server flag --a: yes in A; not set in B; not recorded in C",
        "server flag --b: not set in A; yes in B; not recorded in C",
    ]


def test_digests_are_short_unless_that_makes_them_alike() -> None:
    a, b, c = "sha256:" + "a" * 64, "sha256:" + "b" * 64, "sha256:" + "a" * 63 + "b"
    assert words({"lock": a}, {"lock": b}) == [f"lock: sha256:{'a' * 12}… in A; sha256:{'b' * 12}… in B"]
    assert words({"lock": a}, {"lock": c}) == [f"lock: {a} in A; {c} in B"]


def test_three_runs_are_grouped_and_parameters_count() -> None:
    found = differences([record({}, {"repeats": 3}), record({}, {"repeats": 10}), record({}, {"repeats": 3})])
    assert [item.words("ABC") for item in found] == ["asked for repeats: 3 in A, C; 10 in B"]


@pytest.mark.parametrize(
    ("given_", "read"),
    [
        (["serve", "model", "--a", "1"], {"(other words)": "serve model", "--a": "1"}),
        (["--a=1=2", "--b", "--c"], {"--a": "1=2", "--b": "yes", "--c": "yes"}),
        (["--list", "x", "y", "--n", "-1"], {"--list": "x y", "--n": "-1"}),
        ([], {}),
    ],
)
def test_flags_are_read_however_they_are_written(given_: list[str], read: dict[str, str]) -> None:
    assert flags(given_) == read


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=8)  # fmt: skip  # noqa: E501


@given(st.dictionaries(st.text(), JSON), st.dictionaries(st.text(), JSON))
def test_any_environments_can_be_compared(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert differences([record(a), record(a)]) == []
    for item in differences([record(a), record(b)]):
        assert item.values[0] != item.values[1]
        assert item.words("AB")
