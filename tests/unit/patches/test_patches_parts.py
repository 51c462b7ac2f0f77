"""Hunks are counted as git counts them; a wheel is found on an index, and read in parts."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.web import Reply
from envgen.errors import EnvgenError, ProjectError
from envgen.patches import wheel
from envgen.patches.series import read_patch

LINES = st.lists(st.sampled_from([" ", "+", "-"]), min_size=1, max_size=12)
HEAD = "--- a/vllm/a.py\n+++ b/vllm/a.py\n"
NEXT = "--- a/vllm/b.py\n+++ b/vllm/b.py\n@@ -1 +1 @@\n-x\n+y\n"


@given(LINES, st.booleans())
def test_a_hunk_ends_where_its_counts_say(marks: list[str], is_cut: bool) -> None:
    """Its lines look like headers, and may end without a line break; one line too many is refused."""
    body = "".join(f"{mark}-- a/x\n" for mark in marks) + "\\ No newline at end of file\n" * is_cut
    old = len([mark for mark in marks if mark != "+"])
    new = len([mark for mark in marks if mark != "-"])
    found = read_patch(f"{HEAD}@@ -1,{old} +1,{new} @@\n{body}{NEXT}".encode(), "p")
    assert [one.target for one in found] == ["b/vllm/a.py", "b/vllm/b.py"]
    if marks[-1] != " ":
        counts = f"-1,{old - 1} +1,{new}" if marks[-1] == "-" else f"-1,{old} +1,{new - 1}"
        with pytest.raises(ProjectError, match="change after the end of a hunk"):
            read_patch(f"{HEAD}@@ {counts} @@\n{body}".encode(), "p")


PAGE = """<a href="x/lib-1.4-py3-none-any.whl#sha256=0">old</a>
<a  data-x="y" href='x/lib-1.5-py3-none-any.whl?a=b#sha256=0'>it</a>
<a href="/elsewhere/lib-1.5-cp312-cp312-linux_aarch64.whl">other</a>"""
FOUND = "https://b.example/simple/lib/x/lib-1.5-py3-none-any.whl?a=b"


@pytest.mark.parametrize(
    ("answers", "result"),
    [
        ([(404, ""), (200, PAGE)], FOUND),
        ([(200, "<a href='lib-1.6.tar.gz'>"), (200, PAGE)], FOUND),
        ([OSError("no route"), (200, PAGE)], FOUND),
        ([(404, ""), (200, "nothing")], "a.example/simple answers 404; https://b.example/simple/ has none"),
        ([OSError("odd"), (500, "")], "https://a.example/simple: odd; https://b.example/simple/ answers 500"),
    ],
)
def test_a_wheel_on_an_index(answers: list[Any], result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    waiting = list(answers)

    def get(page: str, *, largest: int) -> Reply:
        asked.append(page)
        answer = waiting.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return Reply(answer[0], answer[1].encode(), address=page)

    monkeypatch.setattr(wheel, "get", get)
    wheel._address.cache_clear()
    indexes = ("https://me:pw@a.example/simple", "https://b.example/simple/")
    if result == FOUND:
        assert wheel._address("Lib", "1.5", indexes) == FOUND
    else:
        with pytest.raises(EnvgenError) as refused:
            wheel._address("Lib", "1.5", indexes)
        message = refused.value.problems[0].message
        assert result in message and "pw" not in message
    assert asked == ["https://me:pw@a.example/simple/lib/", "https://b.example/simple/lib/"][: len(asked)]


@pytest.mark.parametrize(
    ("variables", "text", "listed"),
    [
        ({"PIP_INDEX_URL": "https://a"}, "[global]\nindex-url = https://b\nextra-index-url = https://c https://d\n",
         ["https://a", "https://c", "https://d"]),
        ({}, "[global]\nindex-url = https://b\n", ["https://b"]),
    ],
)  # fmt: skip
def test_the_indexes_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], text: str, listed: list[str]
) -> None:
    for name in wheel._SETTINGS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "pip.conf").write_text(text)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list(wheel._configured())[: len(listed)] == listed


@given(st.binary(min_size=1, max_size=200), st.lists(st.tuples(st.integers(0, 220), st.integers(0, 60)), max_size=5))
def test_a_file_read_in_parts_is_the_file(data: bytes, reads: list[tuple[int, int]]) -> None:
    def get(_address: str, *, largest: int, headers: Any, session: Any) -> Reply:
        first, last = map(int, headers["Range"].removeprefix("bytes=").split("-"))
        assert largest == last - first + 1 and first <= last < len(data)
        return Reply(206, data[first : last + 1], headers={"Content-Range": f"bytes {first}-{last}/{len(data)}"})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wheel, "get", get)
        remote = io.BufferedReader(wheel._Remote("https://h/x"), 16)
        local = io.BytesIO(data)
        for place, size in reads:
            for file in (remote, local):
                file.seek(min(place, len(data)))
            assert remote.read(size) == local.read(size)
        assert remote.seek(0, io.SEEK_END) == len(data)


@pytest.mark.parametrize(
    ("status", "headers", "why"),
    [
        (200, {"Content-Range": "bytes 0-0/9"}, "answers 200 to a request for a part"),
        (206, {}, "does not say how large it is"),
        (206, {"Content-Range": "bytes 0-0/*"}, "does not say how large it is"),
        (206, {"Content-Range": "bytes 0-0/1234567890123"}, "does not say how large it is"),
    ],
)
def test_a_server_without_parts(
    status: int, headers: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel, "get", lambda *_, **__: Reply(status, b"x", headers=headers))
    with pytest.raises(OSError, match=why):
        wheel._Remote("https://h/x")
