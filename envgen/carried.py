"""Compiled code for programs that run in a container: it travels beside the source, for a Python that can take it.

Compiling takes longer than what most of these programs do. A container whose Python is of the same version as this one
runs the code as it is; any other one compiles the source.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def tag() -> tuple[str, bytes]:
    """What must be the same there for compiled code to be of use."""
    loader: Any = sys.modules["_frozen_importlib_external"]
    return sys.implementation.cache_tag or "", loader.MAGIC_NUMBER


# The same question, for the container's Python to ask itself.
SAME = "(sys.implementation.cache_tag, sys.modules['_frozen_importlib_external'].MAGIC_NUMBER)"


def code_of(source: Path) -> bytes:
    """The code that Python keeps beside a source file, for marshal.loads; empty when there is none for it."""
    _, magic = tag()
    try:
        data = _kept(source).read_bytes()
        status = source.stat()
    except OSError:
        return b""
    stamp = b"".join((int(number) & 0xFFFFFFFF).to_bytes(4, "little") for number in (status.st_mtime, status.st_size))
    return data[16:] if data[:16] == magic + bytes(4) + stamp else b""


def keep(sources: Iterable[Path]) -> None:
    """Compile the files for which ``code_of`` finds nothing, where that may be written down at all."""
    for source in () if sys.dont_write_bytecode else sources:
        if not code_of(source):
            import contextlib
            import py_compile

            mode = py_compile.PycInvalidationMode.TIMESTAMP
            with contextlib.suppress(OSError):
                py_compile.compile(str(source), str(_kept(source)), quiet=2, optimize=0, invalidation_mode=mode)


def _kept(source: Path) -> Path:
    return source.parent / "__pycache__" / f"{source.stem}.{tag()[0]}.pyc"
