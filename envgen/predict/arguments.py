"""A refusal of the release's own parser: which key of the project file it is about, and its message
without frames.
"""

from __future__ import annotations

import re

from envgen.profile.flags import long_name, plain_name
from envgen.profile.service import Service
from envgen.profile.tree import join_path

_FRAME = re.compile(
    r"(?m)^argument \S+: |\d+ validation errors? for \w+\n| \[type=.*|\n *For further information.*"
)


def key_of(message: str, service: Service) -> str:
    """The key below the service that the parser's ``message`` is about; "" where that is unknown."""
    named = re.search(
        r"(?:argument|unrecognized arguments:) (-[\w.-]+)|^invalid ([\w-]+):", message
    )
    flag = ""
    if named:
        flag = long_name(named[1]) if named[1] else plain_name(named[2])
    for key, value in service.args.items():
        name = plain_name(key)
        if flag and flag in (name, name.partition(".")[0], f"no-{name}"):
            return join_path(("args", key))
        if not flag and isinstance(value, str) and message == f"unrecognized arguments: {value}":
            return join_path(("args", key))  # the flag takes no value
    in_command = flag and any(long_name(word) == flag for word in service.command)
    return "command" if in_command else ""


def in_short(message: str) -> str:
    """The parser's message without the frames of argparse and pydantic."""
    return " ".join(_FRAME.sub("", message).split())
