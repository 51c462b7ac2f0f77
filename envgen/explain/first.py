"""The first exception of the first process that failed, for logs in which no rule matches.

vLLM's processes share one log. The one that fails writes its traceback first; its parents follow
with longer ones about the child. So the first traceback that is not about another process has the
cause. In a chain of exceptions ("During handling of ...") the last one has the message for the
user, and the first one is the root.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from envgen.explain.line import MILD, is_source, read_line

TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ {0,8}File "(?P<path>[^"]{1,400})", line \d{1,9}')
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_NAME = r"(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80}"
_RAISED = re.compile(
    rf"^(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):){_NAME}(?:: |:?$)"
)  # names the exception
# Raised because another process, task or program failed.
_WRAPPER = re.compile(
    r"see (?:root cause|stack trace|the stack trace|above)|root cause above|engine core initialization failed|"
    r"workerproc initialization failed|worker failed with error|enginecore encountered an issue|enginedeaderror|"
    r"failed core proc|executor failed|^(?:asyncio\.(?:exceptions\.)?)?cancellederror|^keyboardinterrupt|^systemexit|"
    r"background loop has errored|childfailederror|failed to start\.?$|encountered a fatal error|died unexpectedly|"
    r"failed at startup|rayactorerror|the actor died|did not complete successfully: exit code|failed to solve:|"
    r"subprocess-exited-with-error|failed building (?:wheel|editable)|failed to build |failed-wheel-build|"
    r"subcommand failed|ld returned \d|configuring incomplete|non-zero exit status|subprocess exited when|"
    r"error compiling objects|could not compile .{1,80} due to|ninja build failed|webserver ?(?:crashed|failed)|"
    r"runtimeerror: cancelled$|executor worker (?:returned error|died)|"
    r"other ranks that didn't finish loading|server process terminated unexpectedly|error raised in subprocess:|"
    r"received sigquit from a child|\*\*\* \[.{1,200}\] error \d|: build failed$|metadata-generation-failed|"
    r"rpc call to \w{1,60} timed out|caught collective operation timeout|connection closed by peer|"
    r"due to a previous error during capture|timed out waiting for engine core|caught \w+ in \w+ worker process",
    re.IGNORECASE,
)
_VALIDATION = re.compile(r"\b\d{1,6} validation errors? for ")
_USAGE = re.compile(r"^[\w./ -]{1,80}: error: \S")
# A line that names an error: `error: ...`, `docker: Error response from daemon: ...`, `0.243 error:
# ...` of a build, `nvcc fatal : ...`, or an exception without its traceback.
_ERROR = re.compile(
    r"^(?:[\W\d]{0,16}(?:[\w.-]{1,40}:? )?(?:fatal|error)\b(?! [ijr]n?\b)[\w ]{0,40} {0,4}: ?\S|"
    r"(?:[A-Za-z_][\w.]{0,80}\.)?[A-Z]\w{1,60}(?:Error|Exception): \S)",
    re.IGNORECASE,
)
# The package of a file: below site-packages, or a checkout of one of these.
_PACKAGE = re.compile(
    r".*(?:site|dist)-packages/(?!torch/nn/modules/module\.py)([A-Za-z_]\w{0,60})/"
)
_CHECKOUT = re.compile(
    r"/(vllm|flashinfer|sglang|transformers|triton|torch(?!/nn/modules/module)|ray|huggingface_hub)/"
)
_VERSIONS = re.compile(
    r"\b(?:py)?(?P<name>vllm|flashinfer|torch|triton|transformers|ray|sglang|huggingface_hub|nccl|cudnn|"
    r"nvidia-cutlass-dsl)\b(?:-python)?(?: api server)?(?: version[ :=]{0,3}|==| ?)v?"
    r"(?P<version>\d{1,4}\.\d{1,6}[\w.+]{0,40})"
    r"|V1 LLM engine \(v(?P<engine>\d[\w.+]{0,40})\)",
    re.IGNORECASE,
)
SHOWN = 400  # characters


@dataclass(frozen=True)
class First:
    """The first failure: the process ("" if unknown), its exception, and the line, counted from 1.

    ``root``: the exception that it was raised from; "" for none. ``component``: the package whose
    code raised it, with its version if the log has one; "" if unknown.
    """

    process: str
    text: str
    line: int
    root: str = ""
    component: str = ""

    @property
    def package(self) -> str:
        """``component`` without the version."""
        return self.component.partition(" ")[0]

    def __str__(self) -> str:
        return f"{self.process}: {self.text}" if self.process else self.text


@dataclass
class _Process:
    """The state of one process's traceback."""

    # "frames" inside a traceback, "after" its exception, "chained" before the next of its chain
    state: str = ""
    best: First | None = None  # of the exceptions of this chain
    root: str = ""  # the first one of this chain
    links: int = 0  # of this chain
    package: str = ""  # of the last frame that has one
    wants_reason: bool = False  # the next indented line has the reason, as pydantic's does
    indent: int = 0  # of the traceback, in the output of another program

    def shown(self) -> Iterator[First]:
        """The exception that is shown for this chain."""
        if self.best:
            yield (
                replace(self.best, root=self.root)
                if self.links > 1 and self.root != self.best.text
                else self.best
            )


@dataclass
class Tracker:
    """Reads a log line by line; ``first`` is the first failure so far."""

    versions: dict[str, str] = field(default_factory=dict)  # by the package's name
    _processes: defaultdict[str, _Process] = field(default_factory=lambda: defaultdict(_Process))
    _found: list[First] = field(default_factory=list)
    _usage: list[First] = field(default_factory=list)
    _errors: list[First] = field(
        default_factory=list
    )  # lines that name an error, outside a traceback

    def feed(self, line: str, number: int) -> None:
        """Read the line with this number."""
        line = line[:8192].rstrip("\r\n")
        if "ersion" in line or "==" in line or " (v" in line:
            for named in _VERSIONS.finditer(line):
                package = "vllm" if named["engine"] else named["name"].lower()
                self.versions.setdefault(package, named["engine"] or named["version"])
        name, level, text = read_line(line)
        if level in MILD or is_source(text):  # exceptions that were caught; what raises them
            return
        process = self._processes[name]
        if process.state or "File" in text or TRACEBACK in text:
            self._found += _follow(process, name, text, number)
        if process.state in ("", "after") and (level or "rror" in text or "fatal" in text.lower()):
            if _USAGE.match(text):
                self._usage.append(First(name, text.strip()[:SHOWN], number))
            elif (
                len(self._errors) < 20
                and (level in ("ERROR", "CRITICAL") or _ERROR.match(text))
                and text.strip()
            ):
                self._errors.append(First(name, text.strip()[:SHOWN], number))

    @property
    def raised(self) -> bool:
        """Whether there was an exception that nothing caught."""
        return bool(self._found or self._usage) or any(
            process.best for process in self._processes.values()
        )

    @property
    def _exceptions(self) -> list[First]:
        unfinished = [
            exception for process in self._processes.values() for exception in process.shown()
        ]
        return sorted([*self._found, *unfinished], key=lambda exception: exception.line)

    @property
    def last(self) -> int:
        """The line of the last exception that is not about another process; 0 for none. Of one that
        is printed twice, as vLLM's engine prints its own, the first.
        """
        lines = dict[str, int]()
        for one in self._exceptions:
            if not is_consequence(one.text):
                lines.setdefault(one.text, one.line)
        return max(lines.values(), default=0)

    @property
    def first(self) -> First | None:
        """The first exception that is not about another process, else any exception or error. One
        that is printed twice comes before: it ended its process, and others may have been caught.
        """
        exceptions = self._exceptions
        causes, errors = (
            [one for one in some if not is_consequence(one.text)]
            for some in (exceptions, self._errors)
        )
        times = Counter(one.text for one in causes)
        fatal = [one for one in causes if times[one.text] > 1]
        best = next(
            iter([*fatal, *causes, *self._usage, *errors, *exceptions, *self._errors]), None
        )
        if not best or not best.component:
            return best
        return replace(
            best, component=f"{best.component} {self.versions.get(best.component, '')}".strip()
        )


def is_consequence(text: str) -> bool:
    """Whether a line only says that another process or task has failed."""
    return bool(_WRAPPER.search(text))


def _follow(process: _Process, name: str, text: str, number: int) -> Iterator[First]:
    """Read one line of a process; yield the chain's exception once the chain is complete."""
    plain = text.strip()
    if plain.endswith(TRACEBACK):
        process.indent = len(text) - len(text.lstrip())
        if process.state == "after":  # a new failure, not a link of the chain
            yield from _complete(process)
        process.state = "frames"
        process.package = ""
        return
    if text[: process.indent].isspace():
        text = text[process.indent :]
    if frame := _FRAME.match(text):
        if process.state == "":  # an excerpt that lacks the header
            process.state = "frames"
        if inside := _PACKAGE.match(frame["path"]) or _CHECKOUT.search(frame["path"]):
            process.package = inside[1]
    elif process.state == "frames" and (raised := _RAISED.match(text)):
        wrapper = is_consequence(text)
        if process.best is None or not wrapper:
            path = _PACKAGE.match(text)
            package = process.package or (path[1] if path else "")
            process.best = First(name, text[:SHOWN], number, component=package)
        process.root = process.root or ("" if wrapper else text[:SHOWN].strip())
        process.links += not wrapper
        rest = text[raised.end() :]
        process.wants_reason = bool(_VALIDATION.search(rest)) or rest.rstrip().endswith(":")
        process.state = "after"
    elif process.state in ("after", "chained"):
        if any(words in plain for words in CHAINED):
            process.state = "chained"
        elif process.wants_reason and process.best and plain and text[0].isspace():
            reason = plain.partition(" [type=")[0].removeprefix("Value error, ")
            kind = process.best.text.partition(":")[0].rpartition(".")[2]
            process.best = replace(process.best, text=f"{kind}: {reason}"[:SHOWN], line=number)
            process.wants_reason = False
        elif (
            plain
            and process.state == "after"
            and not process.wants_reason
            and not text[0].isspace()
        ):
            yield from _complete(process)


def _complete(process: _Process) -> Iterator[First]:
    yield from process.shown()
    process.best = None
    process.state = ""
    process.root = ""
    process.package = ""
    process.links = 0
