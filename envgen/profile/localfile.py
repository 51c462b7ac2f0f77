"""Sets one value in envgen.local.yaml. Comments, order and everything else in it stay; the file appears whole."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envgen import files
from envgen.errors import UsageError

HEAD = "# Values of this machine alone; not committed.\n"


def with_value(text: str, keys: Sequence[str], value: str, name: str = "envgen.local.yaml") -> str:
    """``text`` with ``keys`` set to ``value``. UsageError when it is no mapping, or holds another kind on the way."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml: Any = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10_000  # no line is broken anew
    hint = "mend the file by hand"
    try:
        tree = yaml.load(text or HEAD)
    except YAMLError as problem:
        raise UsageError(f"{name} can't be read: {str(problem).splitlines()[0]}", hint=hint) from None
    if tree is None:
        body = io.StringIO()
        yaml.dump(_nested(keys, value), body)
        head = text or HEAD
        return head + ("" if head.endswith("\n") else "\n") + body.getvalue()
    node = tree
    for number, key in enumerate(keys[:-1]):
        if not isinstance(node, dict):
            raise UsageError(f"{name}: {'.'.join(keys[:number]) or 'the file'} is no mapping", hint=hint)
        if node.get(key) is None:
            node[key] = {}
        node = node[key]
    if not isinstance(node, dict):
        raise UsageError(f"{name}: {'.'.join(keys[:-1])} is no mapping", hint=hint)
    node[keys[-1]] = value
    changed = io.StringIO()
    yaml.dump(tree, changed)
    return changed.getvalue()


def _nested(keys: Sequence[str], value: str) -> dict[str, Any]:
    tree: Any = value
    for key in reversed(keys):
        tree = {key: tree}
    found: dict[str, Any] = tree
    return found


def set_value(path: Path, keys: Sequence[str], value: str) -> None:
    """Write it to ``path``, which may not be there yet. UsageError says why not; the file is then as it was."""
    try:
        text = files.read(path).decode() if path.exists() else ""
        changed = with_value(text, keys, value, path.name)
        files.write(files.inside(path, path.parent), changed.encode())
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"{path.name} can't be written: {problem}", hint="check who owns it") from None
