"""What is read from a command line, a program and the files of a package."""

from __future__ import annotations

import os
import py_compile
import time
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


@pytest.mark.parametrize("package", ["vllm", "flashinfer"])
def test_the_packages_that_code_imports(tmp_path: Path, package: str) -> None:
    script = tmp_path / "server.py"
    script.write_text(f"import {package}\n")
    for line in (f"python3 {script}", f"python3 -m {package}.serve"):
        launch: Any = running.launch_of(line.split())
        assert running.named(launch, "/", ["vllm", "flashinfer"]) == [package]
    assert running.has_import(b"import time, vllm.utils as v\nfrom flashinfer.jit import env\n", package)
    assert not running.has_import(b"import vllm_more, my.vllm\nfrom . import mine\nflashinfer = 1\n", package)


def test_the_folder_of_a_mapped_library(tmp_path: Path) -> None:
    """`/x/vllm/vllm/_C.so` is of the inner folder; a cache of that name is none."""
    inner = tmp_path / "vllm" / "vllm"
    (inner / "ops").mkdir(parents=True)
    (inner / "__init__.py").touch()
    assert running.package_folder(str(inner / "ops" / "_C.so"), "vllm") == str(inner)
    assert running.package_folder(str(tmp_path / "cache" / "vllm" / "a.so"), "vllm") == ""


def package(folder: Path, *names: str) -> float:
    """Files of a package, with an old time; the moment after they were written."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a = 1\n")
        os.utime(path, (100, 100))
    time.sleep(0.02)
    return time.time()


def test_an_edit_that_keeps_an_old_time(tmp_path: Path) -> None:
    """As rsync -a, tar and cp -p leave it: the file system's own time counts, which no program can set."""
    start = package(tmp_path, "a.py", "sub/b.py", "_version.py", "c.so")
    assert running.newest(str(tmp_path))[0] < start
    time.sleep(0.02)
    (tmp_path / "_version.py").write_text("envgen-install writes it")
    (tmp_path / "sub/b.py").write_text("b = 2\n")
    os.utime(tmp_path / "sub/b.py", (50, 50))
    when, path = running.newest(str(tmp_path))
    assert when > start and path == str(tmp_path / "sub/b.py")


def test_another_owner_or_mode_is_no_edit(tmp_path: Path) -> None:
    """Where Python has compiled the file and it still has the size and time of then."""
    start = package(tmp_path, "a.py")
    py_compile.compile(str(tmp_path / "a.py"))
    time.sleep(0.02)
    (tmp_path / "a.py").chmod(0o600)
    assert running.newest(str(tmp_path))[0] < start
    (tmp_path / "a.py").write_text("a = 22\n")
    os.utime(tmp_path / "a.py", (100, 100))
    assert running.newest(str(tmp_path))[0] > start


def test_a_library_that_was_overwritten_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No "(deleted)" in the maps, as after a rename: the time of the file tells."""
    package(tmp_path / "vllm", "__init__.py", "_C.so", "_moe_C.so")
    maps = "".join(f"7f00-7f01 r-xp 0 08:01 7  {tmp_path}/vllm/{name}\n" for name in ("_C.so", "_moe_C.so"))
    monkeypatch.setattr(running, "read_text", lambda _path, _limit: maps)
    (before,) = running.mapped(1, ["vllm"])
    time.sleep(0.02)
    (tmp_path / "vllm/_moe_C.so").write_text("other")
    (after,) = running.mapped(1, ["vllm"])
    assert after["file"].endswith("/_moe_C.so") and after["changed"] > before["changed"]


def test_only_words_that_hold_no_secret_are_shown() -> None:
    launch: Any = running.launch_of(["python3", "-c", "token = 'hf_abc'"])
    assert running.shown(launch) == "python3 -c ..."
    launch = running.launch_of(["python3", "srv.py", "--api-key", "abc"])
    assert "abc" not in running.shown(launch)
