"""Sends a program to another Python, and returns its one JSON document.

The program's files and the request go to stdin as JSON; the document comes on stdout after a unique
mark, which tells it from output of packages. Time and size are limited on both sides.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgen.binding import JsonDict, JsonObject
from envgen.engine import process
from envgen.engine.client import Engine
from envgen.engine.values import ContainerMount, ExecResult, read_json
from envgen.errors import EngineError, EngineTimeout
from envgen.profile.model import Profile
from envgen.text import KILLED

# Reads one line of stdin, which may stay open: `python3 -` would read it through its tokenizer.
# The comment marks a command line as envgen's (`inside/probe/running.py`).
STARTER = "import json, sys; ENVELOPE = json.loads(sys.stdin.buffer.readline()); exec(ENVELOPE['frame']) # envgen-inside"
PREFIX = "envgen-"
NO_ANSWER = "no answer"
BYTES = 4 << 20
GRACE = 15  # seconds for the container to report its own time-out
ABSENT = "bind source path does not exist: "  # Docker's own words
MEMORY = 8 << 30  # an import of vLLM and torch takes 2 to 4 GiB

FOLDER = Path(__file__).parent
NEEDED = "the container needs Python 3.8 or later under the name of the profile's base.python"

Execute = Callable[[Sequence[str], bytes, float], ExecResult]


def program_text(name: str) -> str:
    """The text of one of our programs: ``probe/facts`` is ``envgen/inside/probe/facts.py``."""
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Program:
    """A file of ``envgen/inside`` with ``answer(request)``; sent with ``common`` and all of its own
    folder.
    """

    entry: str
    flags: tuple[str, ...] = ()  # of Python
    watch: bool = False  # ends with envgen, which keeps its stdin open
    bytes: int = BYTES  # the longest answer

    def __post_init__(self) -> None:
        if not (FOLDER / f"{self.entry}.py").is_file():
            raise ValueError(f"no program {self.entry!r} in {FOLDER}")

    def files(self) -> dict[str, str]:
        """Module name -> source."""
        folder, slash, _ = self.entry.rpartition("/")
        beside = (
            [f"{folder}/{path.stem}" for path in (FOLDER / folder).glob("[!_]*.py")]
            if slash
            else [self.entry]
        )
        return {module_of(name): program_text(name) for name in ("common", *beside)}


def shell_python(profile: Profile) -> str:
    """The Python that a user's shell would start: a name, so that a virtual environment on PATH
    wins.
    """
    return profile.base.python if "/" not in profile.base.python else "python3"


def module_of(name: str) -> str:
    return f"envgen.inside.{name.replace('/', '.')}"


@dataclass(frozen=True)
class NoAnswer:
    """The reason for no answer: an exception, or the end of the process (``code``, ``is_late``)."""

    error: str
    message: str
    stack: tuple[str, ...] = ()
    code: int = 0
    is_late: bool = False

    def __str__(self) -> str:
        return f"{self.error}: {self.message}" if self.message else self.error

    @property
    def seen(self) -> str:
        """With the last line that was printed, where the program gave no reason."""
        words = [str(self)]
        if self.error.startswith(NO_ANSWER) or not self.message:
            words += self.stack[-1:]
        return "; ".join(words)[:400]


def in_container(
    engine: Engine, container: str, *, workdir: str = "", user: str = "", hold: bool = False
) -> Execute:
    """Run in a container that is running. ``hold``: keep stdin open, for a program that watches it."""
    return lambda argv, stdin, timeout: engine.exec(
        container, argv, stdin=stdin, workdir=workdir, user=user, timeout=timeout, hold=hold
    )


def in_image(
    engine: Engine,
    image: str,
    *,
    mounts: Sequence[ContainerMount] = (),
    memory: int = MEMORY,
    absent: list[ContainerMount] | None = None,
    **container: Any,
) -> Execute:
    """Run in a temporary container of an image. ``container``: more for ``Engine.run_once``.

    ``absent``: gets the mounts whose folders the engine's machine lacks; they are left out.
    """

    def execute(argv: Sequence[str], stdin: bytes, timeout: float) -> ExecResult:
        options = {**container, "stdin": stdin, "timeout": timeout, "memory": memory}
        present = list(mounts)
        while True:
            try:
                return engine.run_once(image, argv, mounts=present, **options)
            except EngineError as error:
                message = str(error).splitlines()[0]
                missing = [one for one in present if f"{ABSENT}{one.source}" in message]
                if absent is None or not missing:
                    raise
                absent.extend(missing)
                present = [mount for mount in present if mount not in missing]

    return execute


def first_of(*places: Execute) -> Execute:
    """Run in the first place that the engine can start; the last one's error if it can start none."""

    def execute(argv: Sequence[str], stdin: bytes, timeout: float) -> ExecResult:
        for place in places[:-1]:
            try:
                return place(argv, stdin, timeout)
            except EngineTimeout:
                raise
            except EngineError:
                continue
        return places[-1](argv, stdin, timeout)

    return execute


def on_host(env: Mapping[str, str]) -> Execute:
    """Run on this machine, with these variables besides the shell's."""

    def execute(argv: Sequence[str], stdin: bytes, timeout: float) -> ExecResult:
        return process.run(list(argv), stdin=stdin, env=dict(env), timeout=timeout, check=False)

    return execute


def ask(
    execute: Execute, python: str, program: Program, request: JsonObject, *, timeout: float
) -> JsonDict | NoAnswer:
    """The program's answer, or the reason for none. EngineError where the engine itself fails."""
    mark = f"{PREFIX}{secrets.token_hex(8)}"
    envelope = {
        "starter": STARTER,  # the probe starts other interpreters
        "frame": program_text("frame"),
        "files": program.files(),
        "entry": module_of(program.entry),
        "request": dict(request),
        "mark": mark,
        "seconds": timeout,
        "bytes": program.bytes,
        "watch": program.watch,
    }
    argv = [python, *program.flags, "-c", STARTER]
    stdin = json.dumps(envelope).encode() + b"\n"
    result = execute(argv, stdin, timeout + GRACE)
    return read(result, mark, python)


def _marked(printed: str, mark: str) -> JsonDict | NoAnswer | None:
    """The answer, or the error, of the last document that is marked; None without one."""
    marked = [line for line in printed.splitlines() if line.startswith(f"{mark} ")]
    if not marked:
        return None
    try:
        document = read_json(marked[-1][len(mark) + 1 :])
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    answer = document.get("answer")
    if isinstance(answer, dict):
        return answer
    if "error" not in document:
        return None
    stack = tuple(map(str, document.get("stack") or ()))
    return NoAnswer(str(document["error"]), str(document.get("message", "")), stack)


def read(result: ExecResult, mark: str, python: str) -> JsonDict | NoAnswer:
    """The marked document's answer; without a document, the end of stderr is the reason."""
    answer = _marked(result.stdout.decode("utf-8", "replace"), mark)
    if answer is not None:
        return answer
    # Docker's error for a program that it can't start comes on stdout.
    printed = result.stderr.strip() or result.stdout
    lines = printed.decode("utf-8", "replace").strip().splitlines()
    fatal = [line for line in lines if line.startswith("Fatal Python error")]
    tail = (*lines[-12:], *fatal[:1])  # faulthandler prints the fault before the stack
    code = f"exit code {result.code}"
    if result.code in (126, 127):
        reason = tail[-1] if tail else code
        raise EngineError(f"cannot start {python} in the container: {reason}", hint=NEEDED)
    if result.code in (137, -9):
        code = KILLED
    if any(line.startswith("Timeout (") for line in lines):
        return NoAnswer(f"{NO_ANSWER} in time", code, tail, result.code, True)
    return NoAnswer(NO_ANSWER, code, tail, result.code, False)
