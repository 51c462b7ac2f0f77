"""A document that a server answers with: no more of it is read than its kind can have, whatever the server sends."""

from __future__ import annotations

import contextlib
from typing import Any

import requests

from envgen.engine.base import read_json

LARGEST = 1 << 20  # bytes; the list of a thousand models has a fifth of it
_SHOWN = 200  # characters of what is no JSON


def document_of(response: requests.Response | bytes) -> Any:
    """The JSON document, or else the beginning of the text; "" for one that is too long."""
    body = response if isinstance(response, bytes) else _body(response)
    try:
        return read_json(body)
    except ValueError:
        return body[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN] if len(body) <= LARGEST else ""


def _body(response: requests.Response) -> bytes:
    found = bytearray()
    with contextlib.closing(response):
        for chunk in response.iter_content(64 << 10):
            found += chunk
            if len(found) > LARGEST:
                break
    return bytes(found)
