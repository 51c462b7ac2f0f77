"""build.ninja as ninja reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.inside.jit.ninja import parse

PATHS = st.text(st.characters(blacklist_characters="\n\r|\0", blacklist_categories=["Cs"]), min_size=1).filter(
    lambda path: "\t" not in path
)


def quote(path: str) -> str:
    """A path as a build line spells it."""
    return path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def inputs(text: str) -> list[str]:
    edges, whole = parse(text)
    assert whole
    return [path for edge in edges for path in edge.inputs]


@given(output=PATHS, sources=st.lists(PATHS, min_size=1, max_size=5), continued=st.booleans())
def test_any_path_comes_back(output: str, sources: list[str], continued: bool) -> None:
    glue = " $\n    " if continued else " "
    line = f"build {quote(output)}: cuda_compile{glue}{glue.join(map(quote, sources))}\n"
    edges, whole = parse(line)
    assert whole
    assert [(edge.outputs, edge.inputs) for edge in edges] == [([output], sources)]


@given(st.text())
def test_garbage_never_raises(text: str) -> None:
    parse(text)
    parse(f"build {text}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name = page\nbuild $name/a.o: cc ${name}.cu\n", ["page.cu"]),
        ("a = x\nb = $a/y\nbuild o: cc $b\n", ["x/y"]),
        ("build o: cc a$ b.cu c$:d.cu e$$f.cu\n", ["a b.cu", "c:d.cu", "e$f.cu"]),
        ("build o: cc one | two || three |@ four\n", ["one", "two", "three", "four"]),
        ("build o | also: cc one\n", ["one"]),
        ("build o: cc $\n  one $\n  two\n", ["one", "two"]),
        ("build o: cc one$\n  two\n", ["onetwo"]),
        ("build o: cc one$$\nrule x\n", ["one$"]),
        ("build o: cc one\r\n  cubin = two\r\n", ["one"]),
        ("# build o: cc one\nbuild p: cc two\n", ["two"]),
        ("rule cc\n  command = build x: y z\nbuild o: cc one\n", ["one"]),
        ("build o: phony\n", []),
        ("build o: cc $undefined/x\n", ["/x"]),
    ],
)
def test_ninja_syntax(text: str, expected: list[str]) -> None:
    assert inputs(text) == expected


@pytest.mark.parametrize(
    "text", ["build\n", "build o cc\n", "build o:\n", "build : cc x\n", "build o: cc a$b$%\n", "??\n"]
)
def test_damaged_lines_are_skipped_and_reported(text: str) -> None:
    edges, whole = parse(text + "build ok: cc good\n")
    assert [edge.inputs for edge in edges][-1] == ["good"]
    assert not whole or len(edges) == 2
