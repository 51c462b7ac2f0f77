"""What every file was when a module was compiled: ``<root>/.envgen/baseline/<version>/<arch>/<module>.json``.

Beside FlashInfer's folders, never in them: its own clear-cache removes those whole. A record counts only as long as the
library is the one that it was made for.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import Iterator

from envgen.inside.jit.bytesof import Files, digest_of_text
from envgen.inside.jit.fault import Fault
from envgen.inside.jit.layout import OURS, Cache, Shelf
from envgen.inside.jit.locks import enter, own_as
from envgen.inside.jit.recipe import Recipe
from envgen.inside.jit.tree import descend, open_folder, read_file, reason

FORMAT = 1
RECORDS = (OURS, "baseline")
# Flags that FlashInfer appends from the environment of the compiling process.
ENV_FLAGS = ("FLASHINFER_EXTRA_CFLAGS", "FLASHINFER_EXTRA_CUDAFLAGS", "FLASHINFER_EXTRA_LDFLAGS")


def read(cache: Cache, shelf: Shelf, name: str) -> dict[str, object] | None:
    """The record of this module; None where there is none that can be read."""
    try:
        with _folder(cache, shelf, create=False) as fd:
            document = json.loads(read_file(file_name(name), fd))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and _is_sound(document) else None


def _is_sound(document: dict[str, object]) -> bool:
    """It may have been edited: whatever is read from it later has the type that it must have."""
    files = document.get("files")
    return (
        document.get("format") == FORMAT
        and isinstance(document.get("library"), list)
        and isinstance(files, dict)
        and all(isinstance(entry, list) and len(entry) == 5 for entry in files.values())
        and all(isinstance(document.get(key), dict) for key in ("flags", "env"))
        and all(isinstance(document.get(key), str) for key in ("ninja", "cuda_home", "root"))
    )


def describe(recipe: Recipe, files: Files, environ: dict[str, str], now: float) -> dict[str, object]:
    """The record of a module as it is now."""
    known: dict[str, list[object]] = {}
    for path in recipe.inputs:
        stamp = files.stamp(path)
        known[path] = [files.digest(path), *(stamp or (0, 0, 0, 0))]
    return {"format": FORMAT, "module": recipe.name, "recorded": now, "library": list(recipe.library or ()),
            "ninja": recipe.ninja, "root": recipe.package_root(), "cuda_home": recipe.cuda_home,
            "flags": recipe.flags, "env": {name: environ[name] for name in ENV_FLAGS if environ.get(name)},
            "files": known}  # fmt: skip


def write(cache: Cache, shelf: Shelf, name: str, text: str) -> None:
    """Put the record in its place, whole or not at all."""
    temporary = ".new-" + os.urandom(8).hex()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with _folder(cache, shelf, create=True) as fd:
            with os.fdopen(os.open(temporary, flags, 0o644, dir_fd=fd), "w", encoding="ascii") as file:
                file.write(text)
                own_as(file.fileno(), fd)
            os.rename(temporary, file_name(name), src_dir_fd=fd, dst_dir_fd=fd)
    except OSError as error:
        raise Fault("refused", "/".join(RECORDS) + " can't be written: " + reason(error)) from None


def file_name(name: str) -> str:
    """A file name of at most 255 bytes, whatever the module's."""
    if len(os.fsencode(name)) <= 200:
        return name + ".json"
    return os.fsdecode(os.fsencode(name)[:150]) + "-" + digest_of_text(os.fsencode(name))[:16] + ".json"


@contextmanager
def _folder(cache: Cache, shelf: Shelf, *, create: bool) -> Iterator[int]:
    """The open folder of this shelf's records. Links on the way are not followed."""
    fd = descend(cache.fd, (*RECORDS, shelf.version, shelf.arch or "none"), enter if create else open_folder)
    try:
        yield fd
    finally:
        os.close(fd)
