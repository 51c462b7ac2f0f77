"""One value set in envgen.local.yaml; everything else as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from envgen.errors import UsageError
from envgen.profile.localfile import set_value, with_value

KEYS = ("profiles", "dev", "sources", "flashinfer", "origin", "checkout")


def test_comments_order_and_quotes_stay() -> None:
    text = (
        "# mine\nprofiles:\n  dev:\n    # why\n    build: {max_jobs: 4}  # few\n    env: {a: {B: 'x'}}\ndefaults: {}\n"
    )
    changed = with_value(text, KEYS, "/src/flashinfer")
    for kept in ("# mine", "# why", "# few", "'x'", "max_jobs: 4"):
        assert kept in changed
    assert changed.index("profiles") < changed.index("defaults")
    assert yaml.safe_load(changed)["profiles"]["dev"]["sources"]["flashinfer"]["origin"] == {
        "checkout": "/src/flashinfer"
    }


def test_a_value_that_is_there_is_replaced() -> None:
    text = (
        "profiles:\n  dev:\n    sources:\n      flashinfer:\n        origin:\n          checkout: ../old # old place\n"
    )
    changed = with_value(text, KEYS, "/new")
    assert "checkout: /new" in changed and "../old" not in changed and changed.count("\n") == text.count("\n")


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "# no line end", "profiles:\n", "profiles: {dev: null}\n"])
def test_empty_files_are_begun(text: str) -> None:
    changed = with_value(text, KEYS, "/src")
    assert yaml.safe_load(changed)["profiles"]["dev"]["sources"]["flashinfer"]["origin"]["checkout"] == "/src"
    assert not text.startswith("#") or changed.startswith(text.rstrip("\n"))


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1))
def test_any_path_comes_back_as_it_is(value: str) -> None:
    tree = yaml.safe_load(with_value("", KEYS, value))
    assert tree["profiles"]["dev"]["sources"]["flashinfer"]["origin"]["checkout"] == value


@pytest.mark.parametrize(
    ("text", "why"),
    [("- a\n", "no mapping"), ("profiles: 3\n", "no mapping"), ("profiles: {dev: [1]}\n", "no mapping"),
     ("a: [\n", "can't be read"),
     ("a: 1\na: 2\n", "can't be read"), ("profiles: {dev: {sources: {flashinfer: {origin: x}}}}\n", "no mapping")],
)  # fmt: skip
def test_what_is_no_such_file_is_left_alone(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "envgen.local.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=why):
        set_value(path, KEYS, "/src")
    assert path.read_text() == text and [*tmp_path.iterdir()] == [path]


def test_the_file_appears_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "envgen.local.yaml"
    set_value(path, ("a",), "1")
    assert path.stat().st_mode & 0o777 == 0o644 and path.read_text().startswith("# ")
    path.chmod(0o600)
    set_value(path, ("b",), "2")
    assert path.stat().st_mode & 0o777 == 0o600
    assert yaml.safe_load(path.read_text()) == {"a": "1", "b": "2"} and [*tmp_path.iterdir()] == [path]


def test_a_linked_file_stays_linked(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "envgen.local.yaml"
    real.write_text("a: 1\n")
    link.symlink_to(real)
    set_value(link, ("b",), "2")
    assert link.is_symlink() and yaml.safe_load(real.read_text()) == {"a": 1, "b": "2"}
