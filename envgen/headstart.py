"""A head start for the verbs that ask a container something: its interpreter starts while click is being imported.

An engine takes 80 ms from a request to the first byte that the program in the container reads, and the command line
takes 100 ms until it knows what to ask. With a head start both pass at once. It is a guess: the container, the words
and the user of the last such run. The program waits for its input; what it is to do is sent when the project file has
been read and leads to the same three (``Engine.prepare``), or never, and then it ends. Where something is deleted
follows from the project file and the engine's answers alone, with or without a head start.

Imports next to nothing at the top: every command passes here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envgen.aside import Aside
    from envgen.engine.base import Engine
    from envgen.remembered import Record

# The verbs that have one, with the words of a group's verbs. Each group's first question has words of its own.
VERBS: dict[str, tuple[str, ...]] = {"cache": ("list", "why", "baseline", "clear"), "doctor": ()}
_CHOOSERS = ("-f", "--file", "-p", "--profile")
_ID = frozenset("0123456789abcdef")
_current: HeadStart | None = None


class HeadStart:
    """What this command line's last run asked, kept in the user's cache folder, and the connection that asks again."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._known = record.load() or {}
        self._connecting: Aside[Engine] | None = None

    def start(self) -> None:
        """Connect and ask, in a thread, where something is remembered."""
        container, argv, user = (self._known.get(name) for name in ("container", "argv", "user"))
        if not (_is_id(container) and isinstance(argv, list) and argv and isinstance(user, str)):
            return
        # Here and not in the thread, where it would take turns with the imports of the command line.
        from envgen.aside import Aside
        from envgen.engine import docker

        words = [str(word) for word in argv]

        def connect() -> Engine:
            engine = docker.connect()
            engine.prepare(str(container), words, user=user)
            return engine

        self._connecting = Aside(connect)

    def connect(self) -> Engine:
        """The engine, as ``docker.connect`` gives it."""
        if self._connecting is None:
            from envgen.engine import docker

            return docker.connect()
        return self._connecting.result()

    def keep(self, container_id: str, argv: Sequence[str], user: str) -> None:
        """Remember what was asked, unless it is known."""
        found = {"container": container_id, "argv": list(argv), "user": user}
        if found != self._known:
            self._record.save(found)
            self._known = found


def begin(words: Sequence[str]) -> None:
    """Begin with a command line's words, if they are a verb that has a head start. Never raises for their sake."""
    global _current
    end()
    verb = next(iter(words), "")
    if verb not in VERBS or (VERBS[verb] and next(iter(words[1:]), "") not in VERBS[verb]):
        return
    if "--help" in words or "-h" in words:
        return
    import binascii

    from envgen.remembered import Record

    try:
        key = "\0".join([verb, os.getcwd(), *_place(words)]).encode("utf-8", "surrogateescape")  # noqa: PTH109
        record = Record("headstarts", f"{binascii.crc32(key):08x}")
    except (OSError, RuntimeError):  # the working folder was deleted, of which the verb will tell; or nobody's home
        return
    _current = HeadStart(record)
    _current.start()


def end() -> None:
    """The command is over: what comes next in this process has none."""
    global _current
    _current = None


def current() -> HeadStart | None:
    """That of the running command; None where it has none."""
    return _current


def connect() -> Engine:
    """The engine, by the head start of the running command if it has one. EngineError as ``docker.connect``."""
    if _current is not None:
        return _current.connect()
    from envgen.engine import docker

    return docker.connect()


def _place(words: Sequence[str]) -> list[str]:
    """What chooses project file, profile and service. Read loosely: another reading than click's is a wrong guess."""
    found = [] if VERBS[words[0]] else [word for word in words[1:2] if not word.startswith("-")]
    found += [os.environ.get("ENVGEN_FILE", ""), os.environ.get("ENVGEN_PROFILE", "")]
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith(_CHOOSERS):
            found += [word, following]
    return found


def _is_id(text: object) -> bool:
    """A full container ID: nothing else may become a part of a path."""
    return isinstance(text, str) and len(text) == 64 and set(text) <= _ID
