"""A YAML file -> a positioned tree, or every reason why not.

Nodes are composed, never constructed: no tag can make an object, and each scalar keeps its source text.
"""

from __future__ import annotations

from pathlib import Path

from envgen import files
from envgen.errors import Place, Problem, ProjectError
from envgen.profile.tree import LOCAL, PROJECT, Node, Source
from envgen.profile.yamlparse import parse
from envgen.text import reason_of

MAX_BYTES = 1 << 20


def read(path: Path, label: str, *, layer: str = PROJECT) -> Node:
    """Read ``path``, called ``label`` in messages, as one mapping. Raises ProjectError."""
    text = decode(_bytes(path, label), label)
    source = Source(label, layer, text)
    node, problems = parse(source)
    if problems or node is None:
        raise ProjectError(problems)
    return node


def _bytes(path: Path, label: str) -> bytes:
    try:
        with files.opened(path) as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        hint = "`envgen init DIR` writes a starter project"
        raise ProjectError([Problem("there is no such file", Place(label), hint)]) from None
    except files.NotAFile as error:
        hint = "name the file in it" if path.is_dir() else ""
        message = "is a folder, not a file" if path.is_dir() else reason_of(error)
        raise ProjectError([Problem(message, Place(label), hint)]) from None
    except OSError as error:
        reason = reason_of(error).lower()
        raise ProjectError([Problem(f"cannot be read: {reason}", Place(label))]) from None
    if len(data) > MAX_BYTES:
        hint = "is this really a project file?"
        raise ProjectError([Problem("is larger than 1 MiB, the limit for a project file", Place(label), hint)])
    return data


def decode(data: bytes, label: str) -> str:
    """UTF-8 text of ``data``, its byte order mark removed. Raises ProjectError with the byte's place."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Positions count from where decoding began, which is behind a byte order mark.
        offset = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        before = data[:offset]
        line = before.count(b"\n") + 1
        lead = before[before.rfind(b"\n") + 1 :].decode("utf-8-sig", "replace")
        shown = lead + "?"
        place = Place(label, line, len(lead) + 1, "", shown)
        message = f"is not UTF-8 text: byte {data[offset]:#04x} at offset {offset}"
        hint = "the file looks like UTF-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise ProjectError([Problem(message, place, hint or "save the file as UTF-8")]) from None


def read_local(path: Path, label: str) -> Node:
    """Read the local file beside a project."""
    return read(path, label, layer=LOCAL)
