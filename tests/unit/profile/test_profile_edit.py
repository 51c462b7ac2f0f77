"""One value of a project file is changed in its text, and nothing else is."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from envgen.errors import Place, ProjectError
from envgen.profile.edit import with_value

# The line of each value in TEXT, its column, and the path in the document.
TEXT = """\
# a comment: 'stays'
base: {image: "b:1", other: 'x'}   # and this one
sources:
  - plain  # kept
  - 'single'
  - "double \\"q\\""
last: value
"""
PLACES = {
    (2, 15): ("base", "image"),
    (2, 29): ("base", "other"),
    (4, 5): ("sources", 0),
    (5, 5): ("sources", 1),
    (6, 5): ("sources", 2),
    (7, 7): ("last",),
}


@given(
    st.sampled_from(sorted(PLACES)), st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1)
)
@example((7, 7), "a: b")
@example((4, 5), "a #b")
@example((4, 5), "it's")
@example((5, 5), "it's")
@example((7, 7), "a" * 200 + " " + "b" * 200)
def test_only_that_value_changes(at: tuple[int, int], value: str) -> None:
    changed = with_value(TEXT, Place("f", *at), "key", value)
    expected = yaml.load(TEXT, yaml.BaseLoader)
    *parents, last = PLACES[at]
    inner = expected
    for part in parents:
        inner = inner[part]
    inner[last] = value
    assert yaml.load(changed, yaml.BaseLoader) == expected
    lines, before = changed.splitlines(), TEXT.splitlines()
    assert lines[: at[0] - 1] + lines[at[0] :] == before[: at[0] - 1] + before[at[0] :]


@pytest.mark.parametrize(
    ("at", "value", "line"),
    [
        ((7, 7), "v0.33.0", "last: v0.33.0"),
        ((7, 7), "vllm==0.33.0", "last: vllm==0.33.0"),
        ((7, 7), "reg.io:5000/a@sha256:0f", "last: reg.io:5000/a@sha256:0f"),
        ((7, 7), "-x", 'last: "-x"'),
        ((5, 5), "a b", "  - 'a b'"),
        ((5, 5), "it's", '  - "it\'s"'),
        ((6, 5), "a", '  - "a"'),
    ],
)
def test_a_value_keeps_its_quotes(at: tuple[int, int], value: str, line: str) -> None:
    assert with_value(TEXT, Place("f", *at), "key", value).splitlines()[at[0] - 1] == line


@pytest.mark.parametrize("text", ["a: &x b\nc: *x\n", "a: |\n  b\n", "a: >\n  b\n", "a: !t b\n", "a: b\n"])
def test_what_is_more_than_a_value_is_left_to_the_user(text: str) -> None:
    at = Place("f", 1, 4) if text != "a: b\n" else None
    with pytest.raises(ProjectError, match=r"sources\.x can't be changed here") as refused:
        with_value(text, at, "sources.x", "2")
    assert refused.value.problems[0].hint == "write 2 by hand"


def test_a_value_that_is_named_twice_is_changed_once() -> None:
    assert with_value("a: &x [b]\nc: *x\n", Place("f", 1, 8), "k", "d") == "a: &x [d]\nc: *x\n"
