"""ninja's files: build.ninja as ninja reads it, and its record of dependencies, whatever their bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.inside.jit.ninja import MAGIC, parse, parse_deps

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


# The record of dependencies: what was whole is read exactly, and never is a name wrong.


def record(inputs: Mapping[str, Sequence[str]], version: int = 4, repeat: int = 1) -> bytes:
    """What ninja writes for these outputs. ``repeat``: each record so often, as after as many builds."""
    numbers: dict[str, int] = {}
    data = bytearray(MAGIC + struct.pack("<I", version))
    for _ in range(repeat):
        for output, paths in inputs.items():
            for path in (output, *paths):
                if path in numbers:
                    continue
                name = path.encode("utf-8", "surrogateescape")
                name += bytes(-len(name) % 4)
                data += struct.pack("<I", len(name) + 4) + name + struct.pack("<I", ~len(numbers) & 0xFFFFFFFF)
                numbers[path] = len(numbers)
            ids = [numbers[path] for path in paths]
            time = struct.pack("<I", 7) if version == 3 else struct.pack("<Q", 1 << 60)
            body = struct.pack("<I", numbers[output]) + time + struct.pack(f"<{len(ids)}I", *ids)
            data += struct.pack("<I", len(body) | 1 << 31) + body
    return bytes(data)


PAGE = {"page/page.cuda.o": ["/opt/csrc/page.cu", "/opt/include/page.cuh"], "page/b.o": ["/opt/include/page.cuh"]}
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40)


@pytest.mark.parametrize("version", [3, 4])
@given(data=st.dictionaries(NAMES, st.lists(NAMES, unique=True, max_size=8), max_size=6), repeat=st.integers(1, 3))
def test_whatever_ninja_wrote_is_read_back(version: int, data: dict[str, list[str]], repeat: int) -> None:
    found = parse_deps(record(data, version, repeat))
    assert found.whole
    assert found.inputs == data


def test_a_later_record_replaces_the_earlier() -> None:
    first = record({"a.o": ["x.h", "y.h"]})
    tail = struct.pack("<I", 16 | 1 << 31) + struct.pack("<IQI", 0, 1 << 60, 2)
    assert parse_deps(first + tail).inputs == {"a.o": ["y.h"]}


@pytest.mark.parametrize("version", [3, 4])
def test_cut_off_anywhere(version: int) -> None:
    """Every prefix: what was whole before the cut is kept, nothing is made up."""
    whole = record(PAGE, version)
    ends = []
    for length in range(len(whole)):
        found = parse_deps(whole[:length])
        if found.whole:
            ends.append(length)
        for output, inputs in found.inputs.items():
            assert PAGE[output] == inputs
    assert len(ends) == 6  # after the header and after each of the first five records of six


@given(st.binary(max_size=300))
def test_garbage_in_a_record(data: bytes) -> None:
    parse_deps(data)
    parse_deps(MAGIC + data)
    for version in (3, 4):
        parse_deps(MAGIC + struct.pack("<I", version) + data)


@given(st.integers(16, 10_000), st.integers(1, 255))
def test_one_wrong_byte(position: int, mask: int) -> None:
    data = bytearray(record(PAGE))
    data[position % len(data)] ^= mask
    found = parse_deps(bytes(data))
    assert len(found.inputs) <= 3


@pytest.mark.parametrize("version", [0, 1, 2, 5, 0xFFFFFFFF])
def test_other_versions_are_not_guessed(version: int) -> None:
    found = parse_deps(MAGIC + struct.pack("<I", version) + record(PAGE)[16:])
    assert (found.version, found.whole, found.inputs) == (version, False, {})


def test_a_length_that_ninja_refuses() -> None:
    data = MAGIC + struct.pack("<II", 4, 1 << 20) + bytes(1 << 20)
    assert not parse_deps(data).whole


def test_names_that_are_no_text_survive() -> None:
    name = b"/opt/\xff\xfe.h".decode("utf-8", "surrogateescape")
    assert parse_deps(record({"a.o": [name]})).inputs == {"a.o": [name]}
