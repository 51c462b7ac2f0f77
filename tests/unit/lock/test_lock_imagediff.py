"""The files of two images compared, as `docker export` writes them: their content, not their times."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

from envgen.lock.image import Tree, _flat, compared, read_tree

Entry = tuple[str, bytes | None, dict[str, Any]]  # path, content (None: a folder), fields of the archive's member
NEW: list[Entry] = [("etc", None, {}), ("etc/new", b"new", {"mtime": 5})]


def tree(entries: list[Entry]) -> Tree:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for path, content, fields in entries:
            member = tarfile.TarInfo(path)
            member.type = tarfile.REGTYPE if content is not None else tarfile.DIRTYPE
            member.size = len(content or b"")
            for name, value in fields.items():
                setattr(member, name, value)
            file.addfile(member, io.BytesIO(content or b""))
    buffer.seek(0)
    return read_tree(tarfile.open(fileobj=buffer))


RECORD = b"a.py,sha256=1,1\nx-1.dist-info/uv_cache.json,sha256=%d,9\n"


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (NEW, [("etc", None, {"mtime": 9}), ("etc/new", b"new", {"mtime": 9})]),
        ([("var/log/dpkg.log", b"1", {})], [("var/log/dpkg.log", b"22", {})]),
        ([("p/x-1.dist-info/uv_cache.json", b"1", {})], []),
        ([("p/x-1.dist-info/RECORD", RECORD % 1, {})], [("p/x-1.dist-info/RECORD", RECORD % 2, {})]),
    ],
)
def test_times_are_no_content(one: list[Entry], two: list[Entry]) -> None:
    assert list(compared(tree(one), tree(two))) == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (None, ["path"]),
        ({}, ["content"]),
        ({"mode": 0o755}, ["content", "mode"]),
        ({"uid": 7}, ["content", "owner"]),
        ({"type": tarfile.SYMTYPE, "linkname": "a"}, ["content", "kind", "link"]),
        ({"pax_headers": {"SCHILY.xattr.security.capability": "x"}}, ["SCHILY.xattr.security.capability", "content"]),
    ],
)
def test_what_a_container_sees_is_content(fields: dict[str, Any] | None, expected: list[str]) -> None:
    changed: list[Entry] = [NEW[0]] if fields is None else [NEW[0], ("etc/new", b"now", fields)]
    found = list(compared(tree(NEW), tree(changed)))
    assert [(one.path, one.field) for one in found] == [("/etc/new", field) for field in expected]


def test_the_configuration_is_content() -> None:
    one, two = (_flat({"Env": [f"A={value}"], "Cmd": None}) for value in (1, 2))
    assert [str(found) for found in compared(one, two, "configuration: ")] == [
        "configuration: Env.0: value: A=1 and A=2"
    ]
