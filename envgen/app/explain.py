"""What `envgen explain` reads without a file: the newest failure of a build, of a start, or of a service that ended."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from envgen.app.session import Session
from envgen.deployment import Deployment, known_service
from envgen.engine.api import time_budget
from envgen.engine.values import MISSHAPEN, Container, container_of
from envgen.errors import EngineError, UsageError
from envgen.explain import UNKNOWN, Circumstances
from envgen.files import NotAFile, state_dir
from envgen.serve.ended import circumstances, known_of, last_end
from envgen.text import instant, reason_of

PATIENCE = 20.0  # seconds for all questions to the engine: a frozen one must not hide what the files say
LARGEST = 64 << 20  # bytes of a bundle that are read
_TAIL = 4096  # bytes at the end of a build log, where its result is
_BUNDLE = re.compile(r"^\d{8}T\d{6}Z-(?P<service>.+)\.tar\.gz$")
_ENDED = re.compile(rb"^ended with (-?\d{1,10}) after ", re.MULTILINE)


@dataclass(frozen=True)
class PastFailure:
    """A failure that is over. ``kind``: build, start or service; ``when``: seconds; ``text``: a sentence about it.

    ``path``: its build log or crash bundle; None for a container's log.
    """

    kind: str
    when: float
    text: str
    path: Path | None = None
    container: Container | None = None
    service: str = ""

    @property
    def name(self) -> str:
        """What is read, for the first column of the output."""
        return str(self.path) if self.path else f"log of {self.container.name}" if self.container else ""


@dataclass(frozen=True)
class Log:
    """An open log. ``known``: what is known beside it; ``kind``: build, serve or None; ``reason``: a crash bundle's."""

    file: BinaryIO
    known: Circumstances = UNKNOWN
    kind: str | None = None
    reason: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)


def newest(session: Session, service: str | None = None) -> PastFailure | None:
    """The newest failure of the session's project and profile, or of one service; None for none.

    Without an engine, only files are looked at.
    """
    deployment = session.deployment()
    if service is not None:
        known_service(deployment.profile, service)
    with time_budget(PATIENCE):
        found = [*starts(deployment.root, service), *ended(deployment, service)]
    if service is None:
        found += builds(deployment.root)
    return max(found, key=lambda one: one.when, default=None)


def of_files(root: Path) -> PastFailure | None:
    """The newest failure in a project's state folder; None for none."""
    return max((*builds(root), *starts(root)), key=lambda one: one.when, default=None)


def builds(root: Path) -> Iterator[PastFailure]:
    """Builds that failed or were cut off."""
    for path, seen in _files(root, "logs", "*.log"):
        with contextlib.suppress(OSError, UsageError), open_file(path) as file:
            file.seek(max(0, seen.st_size - _TAIL))
            end = file.read(_TAIL)
            codes = _ENDED.findall(end)
            if end.endswith(b"\ncancelled\n"):
                continue
            if not codes or int(codes[-1]):
                how = f"failed with {int(codes[-1])}" if codes else "has not ended"
                yield PastFailure("build", seen.st_mtime, f"the build {how}", path)


def starts(root: Path, service: str | None = None) -> Iterator[PastFailure]:
    """Starts that failed: their crash bundles."""
    for path, seen in _files(root, "crash", "*.tar.gz"):
        named = _BUNDLE.match(path.name)
        # Of two in one second, the later one ends with -2: then its content has the name of the service.
        if named and service in (None, named["service"], re.sub(r"-\d{1,3}$", "", named["service"])):
            yield PastFailure("start", seen.st_mtime, f"{named['service']} failed", path, service=named["service"])


def _files(root: Path, folder: str, pattern: str) -> Iterator[tuple[Path, os.stat_result]]:
    for path in state_dir(root, folder).glob(pattern):
        with contextlib.suppress(OSError):
            seen = path.lstat()
            if stat.S_ISREG(seen.st_mode):
                yield path, seen


def ended(deployment: Deployment, service: str | None = None) -> Iterator[PastFailure]:
    """Services of the profile that ended by themselves, those that Docker restarted included."""
    try:
        found = deployment.containers((service,) if service else (), all=True)
    except EngineError:
        return
    for one in found:
        end = last_end(deployment.engine, one)
        if end is not None and not end.asked:
            yield PastFailure("service", float(instant(end.at) or 0), str(end), container=one, service=one.service)


def container_of_service(deployment: Deployment, service: str) -> Container | None:
    """The container of a service, if there is one."""
    with contextlib.suppress(EngineError):
        return next((one for one in deployment.containers((service,), all=True) if not one.one_off), None)
    return None


def opened(failure: PastFailure, deployment: Deployment | None = None) -> Log:
    """Open a failure's log. ``deployment``: the deployment of its container."""
    if failure.path is not None:
        log = open_log(failure.path)
        return Log(log.file, log.known, "build" if failure.kind == "build" else log.kind, log.reason, log.about)
    if deployment is None or failure.container is None:
        raise ValueError("a container's log needs its deployment")
    return of_container(deployment, failure.container)


def of_container(deployment: Deployment, container: Container) -> Log:
    """The log of a container, and how it ended."""
    text = deployment.engine.logs(container.id)
    return Log(io.BytesIO(text.encode("utf-8", "replace")), known_of(deployment, container), "serve")


def open_log(path: Path) -> Log:
    """Open a log, a crash bundle, or a pipe (``explain <(docker logs serve)``). UsageError if it can't be read."""
    hint = "name a log file, a crash bundle or a service, or `-` for stdin"
    try:
        file = open_file(path)
        return _of_bundle(path, file) if path.name.endswith(".tar.gz") else Log(file)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as problem:
        why = reason_of(problem) if isinstance(problem, OSError) else str(problem)
        raise UsageError(f"{path} can't be read: {why}", hint=hint) from None


def open_file(path: Path) -> BinaryIO:
    """Open a file or a pipe. A FIFO without a writer is empty; nothing waits."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    mode = os.fstat(file.fileno()).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        file.close()
        raise NotAFile(path, "is not a log file")
    os.set_blocking(file.fileno(), True)
    if stat.S_ISREG(mode):
        file.peek(1)  # some of /proc can be opened, and not read
    return file


def _of_bundle(path: Path, file: BinaryIO) -> Log:
    """The server's log in a crash bundle, of the machine that failed first, and what the bundle knows beside it."""
    members, left = dict[str, bytes](), LARGEST
    with file, tarfile.open(fileobj=file, mode="r:gz") as bundle:
        for member in bundle:
            if member.name.endswith(("server.log", ".json")) and (content := bundle.extractfile(member)):
                members[member.name] = content.read(left)
                left -= len(members[member.name])
    logs = [name for name in sorted(members) if name.endswith("server.log")]
    if not logs:
        raise UsageError(f"{path} has no server.log", hint="name a crash bundle of `envgen up`, or a log file")
    findings = _document(members, "findings.json")
    culprit = f"{findings.get('culprit') or ''}/"
    folder = culprit if f"{culprit}server.log" in logs else logs[0].removesuffix("server.log")
    container, seen = None, _document(members, f"{folder}container.json")
    with contextlib.suppress(*MISSHAPEN):
        container = container_of(seen) if seen else None
    known = circumstances(container)
    reason = " ".join(str(findings.get("reason") or "").split())
    return Log(io.BytesIO(members[f"{folder}server.log"]), known, "serve", reason, findings)


def _document(members: Mapping[str, bytes], name: str) -> dict[str, Any]:
    try:
        document = json.loads(members.get(name, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def project_of(folder: Path) -> Path | None:
    """The nearest folder, upward, in which envgen keeps a state folder; None for none."""
    return next((one for one in (folder, *folder.parents) if state_dir(one).is_dir()), None)


def when_of(failure: PastFailure) -> str:
    """The time of a failure, in this machine's zone."""
    return datetime.fromtimestamp(failure.when).astimezone().strftime("%Y-%m-%d %H:%M:%S")
