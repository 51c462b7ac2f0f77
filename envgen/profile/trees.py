"""Trees of files that were read before: ``~/.cache/envgen/trees``. PyYAML is then not even imported.

A record holds the whole text that it was made of, and counts for exactly that text. One that is missing, damaged, or
could have been written by anybody else is the same as none.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from envgen.profile.tree import Node, Source

KEPT = 64
_KINDS = frozenset(("map", "list", "text", "int", "float", "bool", "null"))


class Trees:
    """The records of this user. ``folder``: elsewhere than in the user's cache."""

    def __init__(self, folder: Path | None = None) -> None:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
        self.folder = folder or Path(home, "envgen", "trees")

    def load(self, path: Path, source: Source) -> Node | None:
        """The tree of this very text, or None."""
        try:
            with open(self._record(path), "rb") as file:  # noqa: PTH123
                status = os.fstat(file.fileno())
                if status.st_uid != os.getuid() or status.st_mode & 0o022:
                    return None
                check, _, body = file.read().partition(b"\n")
            if check != _check(body):
                return None
            document = json.loads(body)
            if document["made_by"] != _maker() or document["text"] != source.text:
                return None
            return _node(document["tree"], source)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def save(self, path: Path, node: Node) -> None:
        """Remember it, and forget the oldest ones. Any failure leaves things as they are."""
        target = self._record(path)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        document = {"made_by": _maker(), "text": node.source.text, "tree": _plain(node)}
        with contextlib.suppress(OSError, ValueError, RecursionError):
            body = json.dumps(document).encode()
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(_check(body) + b"\n" + body)
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
            records = sorted(self.folder.glob("*.json"), key=lambda one: one.stat().st_mtime)
            for old in records[:-KEPT]:
                old.unlink(missing_ok=True)

    def _record(self, path: Path) -> Path:
        # Two files on one record only overwrite each other.
        return self.folder / f"{_check(os.fsencode(path)).decode()}.json"


def _check(data: bytes) -> bytes:
    """Against accidents, not against people: a digest would cost more than all else here."""
    import binascii

    return b"%08x" % binascii.crc32(data)


def _maker() -> str:
    """Another parser makes another tree: which release of ours, by the times of its own files."""
    folder = Path(__file__).parent
    return " ".join(str((folder / name).stat().st_mtime_ns) for name in ("yamlparse.py", "tree.py", "trees.py"))


def _plain(node: Node) -> list[Any]:
    items = {name: _plain(child) for name, child in node.items.items()}
    return [node.kind, node.line, node.column, node.key_line, node.key_column, node.text, items]


def _node(plain: Any, source: Source) -> Node:
    kind, line, column, key_line, key_column, text, items = plain
    if kind not in _KINDS or not isinstance(text, str):
        raise ValueError(kind)
    node = Node(kind, source, int(line), int(column))
    node.key_line, node.key_column, node.text = int(key_line), int(key_column), text
    node.items = {name: _node(child, source) for name, child in items.items()}
    return node
