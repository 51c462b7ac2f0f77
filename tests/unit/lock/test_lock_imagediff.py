"""Two saved images compared: content on every store, and bytes where an ID has to be the same."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from envgen.lock.image import compare

Entry = tuple[str, bytes | None, dict[str, Any]]  # path, content (None: a folder), fields of the archive's member
BASE: list[Entry] = [("etc", None, {}), ("etc/a", b"a", {}), ("etc/b", b"b", {}), ("opt/x/y", b"y", {})]


def layer(entries: list[Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for path, content, fields in entries:
            member = tarfile.TarInfo(path)
            member.type = tarfile.REGTYPE if content is not None else tarfile.DIRTYPE
            member.mode = 0o644 if content is not None else 0o755
            member.size = len(content or b"")
            for name, value in fields.items():
                setattr(member, name, value)
            file.addfile(member, io.BytesIO(content or b""))
    return buffer.getvalue()


def saved(path: Path, *layers: list[Entry], created: str = "2026-01-01", env: str = "A=1") -> Path:
    """An archive as `docker image save` writes it."""
    blobs = [layer(entries) for entries in layers]
    digests = [f"sha256:{hashlib.sha256(blob).hexdigest()}" for blob in blobs]
    config: dict[str, Any] = {"created": created, "config": {"Env": [env]}, "rootfs": {"diff_ids": digests}}
    config["history"] = [{"created": created, "created_by": f"RUN {n}"} for n, _ in enumerate(blobs)]
    files = {f"{n}.tar": blob for n, blob in enumerate(blobs)}
    files["manifest.json"] = json.dumps([{"Layers": list(files), "Config": "config.json"}]).encode()
    files["config.json"] = json.dumps(config).encode()
    path.write_bytes(layer([(name, content, {}) for name, content in files.items()]))
    return path


def differences(tmp_path: Path, one: list[Entry], two: list[Entry], **changes: Any) -> list[tuple[str, str]]:
    first, second = saved(tmp_path / "1", BASE, one), saved(tmp_path / "2", BASE, two, **changes)
    return [(found.path, found.field) for found in compare(first, second)]


NEW: list[Entry] = [("etc/new", b"new", {"mtime": 5})]
RECORD = b"a.py,sha256=1,1\nx-1.dist-info/uv_cache.json,sha256=%d,9\n"


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (NEW, [("etc/new", b"new", {"mtime": 9})]),
        (NEW, [*NEW, ("etc", None, {"mtime": 9})]),  # a folder that one of them only touched
        (NEW, [*NEW, ("etc/a", b"a", {"mtime": 9})]),  # written again as it was
        ([("var/log/dpkg.log", b"1", {})], [("var/log/dpkg.log", b"22", {})]),
        ([("p/x-1.dist-info/uv_cache.json", b"1", {})], [("p/x-1.dist-info/uv_cache.json", b"22", {})]),
        ([("p/x-1.dist-info/RECORD", RECORD % 1, {})], [("p/x-1.dist-info/RECORD", RECORD % 2, {})]),
        ([("etc/.wh.a", b"", {"mtime": 5})], [("etc/.wh.a", b"", {"mtime": 9})]),
    ],
)
def test_times_are_no_content(tmp_path: Path, one: list[Entry], two: list[Entry]) -> None:
    assert differences(tmp_path, one, two, created="2026-02-02") == []


@pytest.mark.parametrize(
    ("two", "expected"),
    [
        ([("etc/new", b"now", {})], [("/etc/new", "content")]),
        ([("etc/new", b"new", {"mode": 0o755})], [("/etc/new", "mode")]),
        ([("etc/new", b"new", {"uid": 7})], [("/etc/new", "owner")]),
        ([("etc/new", b"", {"type": tarfile.SYMTYPE, "linkname": "a"})],
         [("/etc/new", "content"), ("/etc/new", "kind"), ("/etc/new", "link")]),
        ([], [("/etc/new", "path")]),
        ([*NEW, ("etc/a", b"other", {})], [("/etc/a", "content")]),
        ([*NEW, ("etc/.wh.a", b"", {})], [("/etc/a", "path")]),
        ([*NEW, ("p/RECORD", b"x", {})], [("/p/RECORD", "path")]),
    ],
)  # fmt: skip
def test_what_a_container_sees_is_content(tmp_path: Path, two: list[Entry], expected: list[tuple[str, str]]) -> None:
    assert [found for found in differences(tmp_path, NEW, two) if found[1] != "mode" or len(expected) == 1] == expected


def test_what_came_and_went_is_not_there(tmp_path: Path) -> None:
    first = saved(tmp_path / "1", BASE, NEW, [("etc/.wh.new", b"", {})])
    second = saved(tmp_path / "2", BASE, [("etc/none", b"", {})], [("etc/.wh.none", b"", {})])
    assert compare(first, second) == []


def test_the_configuration_is_content(tmp_path: Path) -> None:
    assert differences(tmp_path, NEW, NEW, env="A=2") == [("configuration: config.Env[0]", "value")]
