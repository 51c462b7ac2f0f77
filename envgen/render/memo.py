"""Finished renders, kept between runs under a digest of everything that they are made of.

Rendering is pure, so equal inputs have one outcome: the profile, the lock, the templates, the code of this package, the
patches and local files that a build reads. A hit saves importing Jinja2, which is most of what a render costs. A record
that is missing, foreign or damaged is the same as none.
"""

from __future__ import annotations

import hashlib
import os
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from envgen.paths import templates_dir
from envgen.profile.model import Profile
from envgen.remembered import Record

FORMAT = 1
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


class Memo(Record):
    """The record of one profile's render."""

    def __init__(self, profile: Profile, lock: Any, root: Path | None) -> None:
        self.key = _key(profile, lock, root)
        super().__init__("renders", self.key)


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
