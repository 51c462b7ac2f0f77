"""Text for a terminal: the one way to make strangers' text safe to print.

File names, keys, source lines, log lines and engine answers come from strangers. What could steer a terminal, hide
text or reorder it is shown as an escape (``\\x1b``, ``\\u202e``); everything else stays as it is.
"""

from __future__ import annotations

import re

# C0 and C1 controls, DEL; soft hyphen; bidi controls; zero-width characters; line and paragraph separators (also NEL,
# which is C1); annotation anchors; invisible tags and variation selectors; lone surrogates.
_UNSAFE = (
    "\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e"
    "\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff0-\\ufffb\\U000e0000-\\U000e0fff\\ud800-\\udfff"
)
_IN_LINE = re.compile(f"[{_UNSAFE}]")
_IN_LINES = re.compile(rf"(?![\n\t])[{_UNSAFE}]")
# What no value of a project file may hold: it would end a line or reorder the text around it.
_NO_TEXT = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escaped(char: str) -> str:
    """One character as an ASCII escape."""
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def visible(text: str, *, lines: bool = False) -> str:
    """``text`` safe for a terminal, in one line; with ``lines``, line breaks and tabs stay."""
    if text.isprintable():  # the common case, without a regular expression; invisible letters count as printable
        return text if text.isascii() else _IN_LINE.sub(lambda match: escaped(match[0]), text)
    if lines:
        return _IN_LINES.sub(lambda match: escaped(match[0]), text.replace("\r\n", "\n"))
    return _IN_LINE.sub(lambda match: escaped(match[0]), text)


def forbidden_character(text: str) -> str:
    """The first character that no value of a project file may hold, or nothing.

    Control characters (NEL among them), line and paragraph separators, bidi controls and lone surrogates.
    """
    if text.isascii() and text.isprintable():
        return ""
    found = _NO_TEXT.search(text)
    return found[0] if found else ""


def shorten(text: str, limit: int) -> str:
    """``text`` made visible and cut to ``limit`` characters."""
    text = visible(text[: limit + 1])
    return text if len(text) <= limit else text[: max(limit - 3, 0)] + "..."
