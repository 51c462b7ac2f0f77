"""Compiled code that travels to a container: it is the source's own, or none."""

from __future__ import annotations

import json
import marshal
import sys
from pathlib import Path
from typing import Any

import pytest

from envgen.carried import SAME, code_of, keep, tag
from envgen.doctor import collect


def test_stale_compiled_code_is_not_taken(tmp_path: Path) -> None:
    name, magic = tag()
    source = tmp_path / "main.py"
    source.write_text("x = 1\n")
    assert code_of(source) == b""
    (tmp_path / "__pycache__").mkdir()
    stamp = int(source.stat().st_mtime).to_bytes(4, "little")
    for header, taken in (
        (magic + bytes(4) + stamp + (6).to_bytes(4, "little"), b"code"),
        (magic + bytes(4) + stamp + (7).to_bytes(4, "little"), b""),
        (magic + bytes(8) + (6).to_bytes(4, "little"), b""),
        (b"old!" + bytes(4) + stamp + (6).to_bytes(4, "little"), b""),
    ):
        (tmp_path / "__pycache__" / f"main.{name}.pyc").write_bytes(header + b"code")
        assert code_of(source) == taken


def test_what_is_missing_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")  # Python would then write files of another kind
    source = tmp_path / "main.py"
    source.write_text("x = 1\nassert x\n")
    keep([source])
    found: dict[str, Any] = {}
    exec(marshal.loads(code_of(source)), found)
    assert found["x"] == 1
    (kept,) = (tmp_path / "__pycache__").iterdir()
    before = kept.stat().st_ino
    keep([source])
    assert kept.stat().st_ino == before
    source.write_text("x = 12\n")
    keep([source, tmp_path / "absent.py"])
    exec(marshal.loads(code_of(source)), found)
    assert found["x"] == 12


def test_where_nothing_may_be_written_nothing_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "main.py"
    source.write_text("x = 1\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    keep([source])
    assert [one.name for one in tmp_path.iterdir()] == ["main.py"]


def test_a_source_that_does_not_compile_is_left_to_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    source = tmp_path / "main.py"
    source.write_text("x = (\n")
    keep([source])
    assert code_of(source) == b""


def test_python_asks_itself_the_same_question() -> None:
    assert eval(SAME, {"sys": sys}) == tag()


@pytest.mark.parametrize("how", ["compiled", "no code", "another python"])
def test_the_probe_starts_from_code_and_from_text(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of STARTER but the reading; probe.py's main is what a fresh interpreter would run at its end."""
    collect.compile_parts()
    head, parts, loader, codes, mine, asked = marshal.loads(collect.probe_program({"folders": ["/a", "/a"]}))
    if how == "no code":
        codes = [b""] * len(codes)
    if how == "another python":
        codes, mine = [b"garbage"] * len(codes), ("other-1", b"xxxx")
    found: dict[str, Any] = {"marshal": marshal, "sys": sys, "CARRIED": (head, parts, loader, codes, mine, asked)}
    exec(head, found)
    names = [name for name, _ in found["FACTS"]]
    assert callable(found["main"]) and {"known", "flags", "locked", "system"} <= set(names)
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert found["read_request"]() == {"folders": ["/a"]}
    assert [name for name, _ in found["PARTS"]] == list(collect.PARTS) and found["LOADER"] == collect.LOADER
    json.dumps(parts)
