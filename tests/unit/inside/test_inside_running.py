"""What is read from a command line, and from the code of a program that changes sys.path."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.inside.probe import running

LAUNCHES: list[tuple[str, str, str, list[str]]] = [
    ("python3 /a/b.py --flag -c x", "script", "/a/b.py", []),
    ("/v/bin/python /v/bin/vllm serve tiny", "script", "/v/bin/vllm", []),
    ("python3.12 -m vllm.entrypoints.openai.api_server --model x", "-m", "vllm.entrypoints.openai.api_server", []),
    ("python3 -uIm http.server", "-m", "http.server", ["-I"]),
    ("python3 -X importtime -W ignore -Es b.py", "script", "b.py", ["-E", "-s"]),
    ("python3 -Xdev -P b.py", "script", "b.py", ["-P"]),
    ("python3 -c pass", "-c", "pass", []),
    ("python3 -", "stdin", "", []),
    ("python", "stdin", "", []),
]


@pytest.mark.parametrize(("line", "how", "target", "flags"), LAUNCHES)
def test_how_a_command_line_starts_python(line: str, how: str, target: str, flags: list[str]) -> None:
    assert running.launch_of(line.split()) == {"how": how, "target": target, "flags": flags}


@pytest.mark.parametrize("line", ["VLLM::EngineCore", "sleep infinity", "bash -c python3", ""])
def test_another_command_line_says_nothing(line: str) -> None:
    assert running.launch_of(line.split()) is None


@given(st.lists(st.text(alphabet="-cmXWEIsSPu=py/. ", max_size=6), max_size=6))
def test_any_command_line(words: list[str]) -> None:
    found = running.launch_of(["python3", *words])
    assert found is not None and found["how"] in ("-c", "-m", "script", "stdin")


def changes(code: str, file: str = "/app/sub/run.py") -> list[tuple[str, str]]:
    found = running.changes(code.encode(), file, "/srv")
    return [(one["what"], one["entry"]) for one in found if one["what"] != "import"]


CHANGES: list[tuple[str, list[tuple[str, str]]]] = [
    ("import sys; sys.path.insert(0, '/evil')", [("first", "/evil")]),
    ("sys.path.append('lib')", [("last", "/srv/lib")]),
    ("sys.path[:0] = ['/a', '/b']", [("first", "/b"), ("first", "/a")]),
    ("sys.path = ['/a'] + sys.path", [("first", "/a")]),
    ("sys.path += ['/a']", [("last", "/a")]),
    ("sys.path.extend(['/a', '/b'])", [("last", "/a"), ("last", "/b")]),
    ("import site; site.addsitedir('/a')", [("last", "/a")]),
    ("import os\nsys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))", [("first", "/app/sub")]),
    ("HERE = Path(__file__).resolve().parent\nsys.path.insert(0, str(HERE / 'x'))", [("first", "/app/sub/x")]),
    ("sys.path.insert(0, str(Path(__file__).parents[1]))", [("first", "/app")]),
    ("sys.path.insert(0, os.path.join(os.getcwd(), 'x'))", [("first", "/srv/x")]),
    ("for one in found():\n    sys.path.insert(0, one)", [("unknown", "")]),
    ("sys.path = make()", [("unknown", "")]),
    ("path.insert(0, '/a'); other.path.append(1)", []),
    ("def broken(:", []),
]


@pytest.mark.parametrize(("code", "expected"), CHANGES)
def test_what_code_does_to_sys_path(code: str, expected: list[tuple[str, str]]) -> None:
    assert changes(code) == expected


def test_code_that_another_file_has(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text("import sys\nsys.path.insert(0, '/evil')\n")
    for code in (f"exec(open('{tmp_path}/b.py').read())", f"import runpy; runpy.run_path('{tmp_path}/b.py')"):
        (found,) = (one for one in running.changes(code.encode(), "", "/") if one["what"] != "import")
        assert (found["file"], found["line"], found["entry"]) == (f"{tmp_path}/b.py", 2, "/evil")
    # One that runs itself ends.
    (tmp_path / "c.py").write_text(f"exec(open('{tmp_path}/c.py').read())\n")
    assert list(running.changes((tmp_path / "c.py").read_bytes(), "", "/")) == []


@pytest.mark.parametrize(
    "code",
    [
        "x = 'abcdefgh'\n" + "x = x + x\n" * 26 + "sys.path.insert(0, x)",
        "x = 'abcdefgh'\n" + "x = os.path.join(x, x)\n" * 26 + "sys.path.insert(0, x)",
        "x = b'abcdefgh'\n" + "x = x + x\n" * 26 + "sys.path.insert(0, x)",
        "sys.path.insert(0, " + "+".join(["'a'"] * 900_000) + ")",
        "sys.path.insert(0, " + "+".join(["'a'"] * 2_000) + ")",
        "sys.path.insert(0, " + "-" * 100_000 + "1)",
        "sys.path.insert(0, Path(__file__).parents[10**12])",
        "sys.path.insert(0, Path(__file__).parents[1000000000000])",
    ],
    ids=["sum", "join", "bytes", "huge", "deep", "signs", "power", "parents"],
)
def test_code_without_end_takes_no_memory(code: str) -> None:
    tracemalloc.start()
    try:
        assert all(
            len(one["entry"]) < 1 << 17 for one in running.changes(code[: 1 << 20].encode(), "/app/a.py", "/srv")
        )
        assert tracemalloc.get_traced_memory()[1] < 1 << 29
    finally:
        tracemalloc.stop()


def test_the_packages_that_code_names() -> None:
    code = b"import time, vllm.utils as v\nfrom flashinfer.jit import env\nfrom . import mine\ntext = 'import torch'\n"
    found = [one["entry"] for one in running.changes(code, "", "/") if one["what"] == "import"]
    assert found == ["time", "vllm", "flashinfer"]


@given(st.text(alphabet="sy.path=[]()'/+ \ninsert0,", max_size=40))
def test_any_code(code: str) -> None:
    assert all(one["what"] in ("first", "last", "unknown", "import") for one in running.changes(code.encode(), "", "/"))


def test_the_folder_of_a_mapped_library(tmp_path: Path) -> None:
    """`/x/vllm/vllm/_C.so` is of the inner folder; a cache of that name is none."""
    inner = tmp_path / "vllm" / "vllm"
    (inner / "ops").mkdir(parents=True)
    (inner / "__init__.py").touch()
    assert running.package_folder(str(inner / "ops" / "_C.so"), "vllm") == str(inner)
    assert running.package_folder(str(tmp_path / "cache" / "vllm" / "a.so"), "vllm") == ""


def test_the_newest_file_of_a_package(tmp_path: Path) -> None:
    import os

    for name, when in (("a.py", 100), ("sub/b.py", 200), ("_version.py", 900), ("c.so", 900)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (when, when))
    assert running.newest(str(tmp_path), False) == (200.0, str(tmp_path / "sub/b.py"))
    # An installer gives files the time of the archive: the file system's own counts.
    assert running.newest(str(tmp_path), True)[0] > 1_700_000_000


def test_only_words_that_hold_no_secret_are_shown() -> None:
    launch: Any = running.launch_of(["python3", "-c", "token = 'hf_abc'"])
    assert running.shown(launch) == "python3 -c ..." and running.target_of(launch) == ""
    launch = running.launch_of(["python3", "srv.py", "--api-key", "abc"])
    assert "abc" not in running.shown(launch)
