"""The archive: every member clean, the same bytes for the same members, whole or not at all."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from planted import PLANTED

from envgen.errors import UsageError
from envgen.serve.crash import archive, as_text, write_bundle

TWENTY = 20


def read(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def test_no_planted_secret_leaves_in_any_member() -> None:
    assert len(PLANTED) >= TWENTY
    everything = "\n".join(text for text, _ in PLANTED.values())
    members: dict[str, bytes | str] = {
        "log.txt": everything,
        "bytes.log": everything.encode() + b"\xff\xfe\xfd",
        "coloured.log": "\n".join(f"\x1b[31m{t[:9]}\x1b[0m{t[9:]}" for t, _ in PLANTED.values()),
        "utf16.txt": everything.encode("utf-16"),
        "core.bin": b"\0" + everything.encode(),
        **{f"one/{n}.txt": text for n, (text, _) in enumerate(PLANTED.values())},
    }
    found = read(archive({name: one if isinstance(one, str) else as_text(one) for name, one in members.items()}))
    assert set(found) == set(members)
    for name, content in found.items():
        for kind, (_, secret) in PLANTED.items():
            assert secret.encode() not in content, f"{kind} in {name}"
    assert found["core.bin"].startswith(b"(left out: ")


def test_names_of_members_are_cleaned_too() -> None:
    secret = PLANTED["hugging face token"][1]
    assert all(secret not in name for name in read(archive({f"a/{secret}.txt": "x"})))


def test_equal_members_give_equal_bytes() -> None:
    one = archive({"b": "2", "a": "1"})
    assert one == archive({"a": "1", "b": "2"}) and list(read(one)) == ["a", "b"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", ""])
def test_a_name_that_leaves_the_archive_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="inside an archive"):
        archive({name: "x"})


def test_the_file_is_the_owners(tmp_path: Path) -> None:
    target = tmp_path / "b.tar.gz"
    write_bundle(target, {"a": "known-value-1"}, known=["known-value-1"])
    assert target.stat().st_mode & 0o777 == 0o600
    assert read(target.read_bytes()) == {"a": b"[redacted: known secret]"}


def test_what_was_there_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "b.tar.gz"
    target.write_bytes(b"old")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left"):
        write_bundle(target, {"a": "x"})
    assert target.read_bytes() == b"old" and list(tmp_path.iterdir()) == [target]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be written"):
        write_bundle(tmp_path / "no" / "b.tar.gz", {"a": "x"})
