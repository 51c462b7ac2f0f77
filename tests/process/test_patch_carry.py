"""Patches of files that upstream has renamed."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from patch_sources import project, tree
from projects import Project

from envgen.patches.checkout import successors
from envgen.patches.series import head_of

# Real moves of vLLM between 0.14.0 and 0.16.0.
MOVED = {
    "vllm/compilation/noop_elimination.py": "vllm/compilation/passes/utility/noop_elimination.py",
    "vllm/compilation/activation_quant_fusion.py": "vllm/compilation/passes/fusion/act_quant_fusion.py",
}


@pytest.fixture
def made(tmp_path: Path) -> Project:
    (tmp_path / "project").mkdir()
    return project(tmp_path / "project")


def test_refresh_follows_renamed_files(made: Project) -> None:
    text = "Description: mark\n\n"
    for name, file in tree("vllm", "0.14.0").read(MOVED).items():
        old = file.data.decode().splitlines(keepends=True)
        place = next(number for number, line in enumerate(old) if line.startswith("class "))
        new = [*old[:place], "MARK = 1\n", "\n", "\n", *old[place:]]
        text += "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))
    (made.root / "patches/vllm/0001-mark.patch").write_text(text)
    (made.root / "patches/vllm/series").write_text("0001-mark.patch\n")
    found = made.envgen("patch", "refresh", "vllm", "--release", "0.16.0", "--json").json
    assert sorted(found["patches"][0]["moved"]) == sorted(MOVED.values())
    assert made.envgen("patch", "check", "vllm", "--release", "0.16.0").out.count(": applies\n") == 1
    content = (made.root / "patches/vllm/0001-mark.patch").read_bytes()
    assert head_of(content) == b"Description: mark\n\n"
    assert content.count(b"\n+MARK = 1\n") == 2
    for name, now in MOVED.items():
        assert f"+++ b/{now}\n".encode() in content
        assert f"/{name}".encode() not in content


def test_what_vanished_for_good_is_a_conflict(made: Project) -> None:
    name = "vllm/_ipex_ops.py"
    old = tree("vllm", "0.14.0").read([name])[name].data.decode().splitlines(keepends=True)
    text = "".join(difflib.unified_diff(old, ["MARK = 1\n", *old], f"a/{name}", f"b/{name}"))
    (made.root / "patches/vllm/0001-mark.patch").write_text(text)
    (made.root / "patches/vllm/series").write_text("0001-mark.patch\n")
    found = made.envgen("patch", "refresh", "vllm", "--release", "0.16.0", code=1)
    assert f"{name}" in found.out
    assert (made.root / "patches/vllm/0001-mark.patch").read_text() == text


def test_successors_are_new_files_of_the_same_kind() -> None:
    old, new = {"a/x.py", "a/y.py"}, {"a/y.py", "b/x.py", "a/z.py", "b/x.md"}
    assert successors({"a/x.py"}, old, new) == ["a/z.py", "b/x.py"]
