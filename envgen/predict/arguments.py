"""A refusal of the release's own parser: which key of the project file it is about, and its message
without frames.
"""

from __future__ import annotations

import re

from envgen.profile.flags import SHORT, plain_name
from envgen.profile.service import Service
from envgen.profile.tree import join_path

_FRAME = re.compile(
    r"(?m)^argument \S+: |\d+ validation errors? for \w+\n| \[type=.*|\n *For further information.*"
)


def key_of(message: str, service: Service) -> str:
    """The key below the service that the parser's ``message`` is about; "" where it can't be told."""
    named = re.search(
        r"(?:argument|unrecognized arguments:) (-[\w.-]+)|^invalid ([\w-]+):", message
    )
    flag = (named[1] or "").lstrip("-") or named[2] if named else ""
    wanted = plain_name(SHORT.get(flag, flag))
    for key, value in service.args.items():
        name = plain_name(key)
        if wanted and wanted in (name, name.partition(".")[0], f"no-{name}"):
            return join_path(("args", key))
        if not wanted and isinstance(value, str) and message == f"unrecognized arguments: {value}":
            return join_path(("args", key))  # the flag takes no value
    return (
        "command"
        if any(word.lstrip("-").partition("=")[0] == flag for word in service.command if flag)
        else ""
    )


def in_short(message: str) -> str:
    """The parser's message without the frames of argparse and pydantic."""
    return " ".join(_FRAME.sub("", message).split())
