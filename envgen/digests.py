"""Digests that outlive a process: the identity of a lock or an image, as labels carry it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def digest_of(format_: int, document: Mapping[str, Any]) -> str:
    """SHA-256 over canonical JSON. Raise ``format_`` where the same document shall count as another one."""
    text = json.dumps({**document, "format": format_}, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
