"""A refusal of the release's own parser in words of the project file: which key, its value, and what is allowed."""

from __future__ import annotations

import re

from envgen.profile.flags import SHORT, plain_name
from envgen.profile.service import Service
from envgen.profile.tree import join_path

# The functions that read a value, as argparse names them -> what they take.
_TAKES = {
    "int": "a whole number",
    "float": "a number",
    "loads": "JSON",
    "human_readable_int": "a number such as 8192 or 8k",
    "human_readable_int_or_auto": "a number such as 8192, 8k or auto",
}
_FRAME = re.compile(r"(?m)^\d+ validation errors? for \w+\n| \[type=.*|\n *For further information.*")


def key_of(message: str, service: Service) -> str:
    """The key below the service that the parser's ``message`` is about; "" where it can't be told."""
    named = re.search(r"(?:argument|unrecognized arguments:) (-[\w.-]+)|^invalid ([\w-]+):", message)
    flag = (named[1] or "").lstrip("-") or named[2] if named else ""
    wanted = plain_name(SHORT.get(flag, flag))
    for key, value in service.args.items():
        name = plain_name(key)
        if wanted and wanted in (name, name.partition(".")[0], f"no-{name}"):
            return join_path(("args", key))
        if not wanted and isinstance(value, str) and message == f"unrecognized arguments: {value}":
            return join_path(("args", key))  # the flag takes no value
    return "command" if any(word.lstrip("-").partition("=")[0] == flag for word in service.command if flag) else ""


def in_short(message: str) -> str:
    """The parser's message without the frames of argparse and pydantic, and with what a type takes."""
    text = re.sub(r"^argument \S+: ", "", message)
    text = re.sub(r"invalid (\w+) value: (.*)", _expected, text, flags=re.DOTALL)
    text = re.sub(r"Value (.*) cannot be converted to <function (\w+) at .*", _converted, text, flags=re.DOTALL)
    return " ".join(_FRAME.sub("", text).split())


def _expected(found: re.Match[str]) -> str:
    return f"{found[2]} is not {_TAKES.get(found[1], found[1])}"


def _converted(found: re.Match[str]) -> str:
    return f"{found[1]!r} is not {_TAKES.get(found[2], found[2])}"
