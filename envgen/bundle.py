"""One archive to show to others: every member redacted, equal bytes for equal members, written whole or not at all."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from envgen import files
from envgen.errors import UsageError
from envgen.redact import redact
from envgen.text import reason_of

_STEERING = re.compile(r"\x1b(?:\[[0-9;?]{0,20}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")


def write_bundle(
    target: Path, members: Mapping[str, bytes | str], *, known: Iterable[str] = (), within: Path | None = None
) -> None:
    """Write ``members`` (name in the archive -> content) as a .tar.gz for the owner's eyes (mode 0600).

    Contents and names are redacted; ``known`` are further secret values. What is not text is left out, with a note in
    its place, since its content is unknown. Either the whole file appears or nothing changes. UsageError when
    it can't be written there; ValueError for a member's name that leaves the archive.
    """
    data = archive(members, known=known)
    try:
        files.write(target, data, mode=0o600, within=within)
    except OSError as problem:
        hint = "name a file in a folder that is there, is yours and has space"
        raise UsageError(f"{target} can't be written: {reason_of(problem)}", hint=hint) from None


def archive(members: Mapping[str, bytes | str], *, known: Iterable[str] = ()) -> bytes:
    """The bytes of such an archive: names sorted, no times, no owners."""
    known = tuple(known)
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in sorted(_clean(members, known).items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(content), 0o644, 0
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)


def as_json(document: Any) -> str:
    """A document as a member; what JSON lacks becomes what is nearest to it."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        return sorted(value) if isinstance(value, (set, frozenset)) else str(value)

    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, default=plain) + "\n"


def _clean(members: Mapping[str, bytes | str], known: tuple[str, ...]) -> dict[str, bytes]:
    cleaned: dict[str, bytes] = {}
    for name, content in members.items():
        path = PurePosixPath(redact(name, known=known))
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"not a name inside an archive: {name!r}")
        text = content if isinstance(content, str) else as_text(content)
        cleaned[str(path)] = redact(_STEERING.sub("", text), known=known).encode("utf-8", "replace")
    return cleaned


def as_text(content: bytes) -> str:
    """Bytes as text; stray bytes become U+FFFD. UTF-16 is read as such; anything else with NULs is only mentioned."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", "replace")
    if b"\0" in content:
        return f"(left out: {len(content)} bytes that are not text)\n"
    return content.decode("utf-8", "replace")
