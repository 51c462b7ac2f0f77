"""All rendered files of an unchanged project, remembered, so that finding nothing to do reads no YAML.

What is committed follows from the project file, the lock, the folder patches/ and this package alone (envgen.local.yaml
and variables are left out). A project with local encoding files isn't remembered: they can lie anywhere in it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from envgen.paths import templates_dir
from envgen.remembered import Record

if TYPE_CHECKING:
    from envgen.profile.model import Project

FILE_NAME = "envgen.yaml"
LIMIT = 1 << 20  # bytes of one input; larger ones are for the loader to refuse


class Whole(Record):
    """The record of a whole project's committed files. ``file`` is the project file, ``root`` its folder."""

    def __init__(self, file: Path) -> None:
        self.root = file.parent
        super().__init__("projects", _key(file))

    def files(self) -> dict[str, bytes] | None:
        """Path -> content, as ``render_project`` gave it for the same inputs; None when they were never rendered."""
        record = self.load()
        return {path: text.encode() for path, text in record["files"].items()} if record else None

    def remember(self, project: Project, files: dict[str, bytes]) -> None:
        """Keep ``files`` for the next time, unless something outside the key took part."""
        encodings = (e for p in project.profiles.values() for e in p.tiktoken.encodings.values())
        if all(encoding.file is None for encoding in encodings):
            self.save({"files": {path: content.decode() for path, content in files.items()}})


def nearest(file: Path | None) -> Path | None:
    """The project file that the loader would take; None where there is none, which is for the loader to tell."""
    if file is not None:
        return file if file.is_file() else None
    here = Path(os.path.abspath("."))  # noqa: PTH100  (as the loader: links on the way to the cwd are the user's)
    return next((folder / FILE_NAME for folder in (here, *here.parents) if (folder / FILE_NAME).is_file()), None)


def _key(file: Path) -> str:
    found = hashlib.sha256(f"1\0{file.name}".encode("utf-8", "surrogateescape"))
    for path in (file, file.parent / "envgen.lock"):
        found.update(_content(path))
    patches = file.parent / "patches"
    for folder, names, leaves in os.walk(patches):
        names.sort()
        for leaf in sorted(leaves):
            path = Path(folder, leaf)
            found.update(f"\0{path.relative_to(patches)}\0{path.is_symlink()}".encode("utf-8", "surrogateescape"))
            found.update(_content(path))
        found.update("\0".join(n for n in names if Path(folder, n).is_symlink()).encode("utf-8", "surrogateescape"))
    # Our own files: by size and time, as Python itself does for its compiled code.
    package = Path(__file__).parent.parent
    for top in (package, templates_dir()):
        for folder, names, leaves in os.walk(top):
            names[:] = sorted(name for name in names if name != "__pycache__")
            for leaf in sorted(leaves):
                status = os.stat(os.path.join(folder, leaf))  # noqa: PTH116, PTH118  (no object for each of 200)
                found.update(f"\0{folder}/{leaf}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return found.hexdigest()


def _content(path: Path) -> bytes:
    """A digest of the bytes, or of the reason why there are none."""
    try:
        with path.open("rb") as file:
            content = file.read(LIMIT + 1)
        return b"\1" + hashlib.sha256(content).digest() if len(content) <= LIMIT else os.urandom(16)
    except OSError as error:
        return f"\2{type(error).__name__}".encode()
