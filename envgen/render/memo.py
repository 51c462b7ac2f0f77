"""Finished renders, kept between runs under a digest of everything that they are made of.

Rendering is pure, so equal inputs have one outcome: the profile, the lock, the templates, the code of this package, the
patches and local files that a build reads. A hit saves importing Jinja2, which is most of what a render costs. A record
that is missing, foreign or damaged is the same as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from envgen.paths import templates_dir
from envgen.profile.model import Profile

FORMAT = 1
KEPT = 64  # records; each is about 60 KB
_CODE = (
    "render",
    "lock/ask.py",
    "lock/compare.py",
    "lock/model.py",
    "patches",
    "profile/model.py",
    "profile/values.py",
    "errors.py",
)


def cache_folder(name: str) -> Path:
    """``~/.cache/envgen/<name>``, or below XDG_CACHE_HOME."""
    return Path(os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser()), "envgen", name)


def owned(descriptor: int) -> bool:
    """True when only this user can have written the open file: others must not put code or results under our hands."""
    status = os.fstat(descriptor)
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def write_new(path: Path, content: bytes) -> None:
    """Put a whole file in place or none; any failure leaves things as they are."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


class Memo:
    """The record of one profile's render."""

    def __init__(self, profile: Profile, lock: Any, root: Path | None) -> None:
        self.key = _key(profile, lock, root)
        self.path = cache_folder("renders") / f"{self.key}.json"

    def load(self) -> dict[str, Any] | None:
        """What ``save`` was given for the same inputs, or None."""
        try:
            with self.path.open("rb") as file:
                if not owned(file.fileno()):
                    return None
                digest, _, body = file.read().partition(b"\n")
            if hashlib.sha256(body).hexdigest().encode() != digest:
                return None
            found: dict[str, Any] = json.loads(body)
            return found
        except (OSError, ValueError):
            return None

    def save(self, record: dict[str, Any]) -> None:
        """Remember a finished render, and forget the oldest ones."""
        body = json.dumps(record).encode()
        write_new(self.path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        with contextlib.suppress(OSError):
            records = sorted(self.path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in records[:-KEPT]:
                path.unlink(missing_ok=True)


def _key(profile: Profile, lock: Any, root: Path | None) -> str:
    found = hashlib.sha256(f"{FORMAT}\0{profile!r}\0{lock!r}\0{root is None}".encode("utf-8", "surrogatepass"))
    package = Path(__file__).parent.parent
    for part in _CODE:
        _add(found, package / part)
    _add(found, templates_dir())
    engine = PathFinder.find_spec("jinja2")
    if engine and engine.origin:
        status = Path(engine.origin).stat()
        found.update(f"{engine.origin}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    if root is not None:
        _add_inputs(found, profile, root)
    return found.hexdigest()


def _add(found: Any, path: Path) -> None:
    """A file's bytes, or those of a whole folder in the order of its names."""
    if path.is_dir():
        for entry in sorted(os.listdir(path)):  # noqa: PTH208  (names, not paths: no object for each)
            if entry != "__pycache__":
                _add(found, path / entry)
        return
    content = path.read_bytes()
    found.update(f"\0{path.name}\0{len(content)}\0".encode())
    found.update(content)


def _add_inputs(found: Any, profile: Profile, root: Path) -> None:
    """Patch folders and local encoding files: names, bytes, and whether they lie inside the project."""
    paths = [f"patches/{source.patches}" for source in profile.sources.values() if source.patches]
    paths += [encoding.file.path for encoding in profile.tiktoken.encodings.values() if encoding.file]
    top = root.resolve()
    for name in sorted(set(paths)):
        path = root / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            try:
                inside = file.resolve(strict=True).is_relative_to(top)
                digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "folder"
            except (OSError, RuntimeError) as error:
                inside, digest = False, type(error).__name__
            found.update(f"\0{file.relative_to(root)}\0{inside}\0{digest}".encode("utf-8", "surrogateescape"))
