"""What `envgen explain` reads: a log, a crash bundle, or the newest failure of a build, a start or
a service.
"""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

from envgen.binding import JsonDict, JsonObject
from envgen.deployment import Deployment, LiveService
from envgen.engine.values import MISSHAPEN, Container, container_of, read_json
from envgen.errors import EngineError, EnvgenError, UsageError
from envgen.explain import UNKNOWN, Circumstances
from envgen.files import NotAFile, state_files
from envgen.inside import run as inside
from envgen.inside.owner import REGISTRY
from envgen.patches.wheel import released
from envgen.serve.ended import circumstances, known_of, last_end
from envgen.text import instant, progress, reason_of, shorten

LARGEST = 64 << 20  # bytes of a bundle that are read
_TAIL = 4096  # bytes at the end of a build log, where its result is
_BUNDLE = re.compile(r"^\d{8}T\d{6}Z-(?P<service>.+)\.tar\.gz$")
# What an import did not find, where packages are named in the log of an installed environment; an
# architecture that vLLM does not know; and the message of any other exception.
_ASKED = re.compile(
    r".*?(?:cannot import name '(?P<name>\w{1,80})' from (?:partially initialized module )?'(?P<module>[\w.]{1,160})'"
    r"|no module named '(?P<absent>[\w.]{1,160})'"
    r"|(?:model architectures \['|(?=\w{1,80} has no vllm implementation))(?P<model>\w{1,80})"
    r"|(?P<function>\w{1,80}) does not support (?:backend '|compute capability ))"
    r"|.*?(?:error|exception): (?P<text>.{24,})",
    re.IGNORECASE,
)
PROGRAM = inside.Program("owner")
ASKING = 60.0  # seconds
DISTRIBUTIONS = {"flashinfer": "flashinfer-python"}  # where its name is not the package's
_ENDED = re.compile(rb"^ended with (-?\d{1,10}) after ", re.MULTILINE)


@dataclass(frozen=True)
class Log:
    """An open log. ``known``: what is known beside it; ``kind``: build, serve or None; ``about``: a
    crash bundle's
    findings."""

    name: str
    file: BinaryIO
    known: Circumstances = UNKNOWN
    kind: str | None = None
    about: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class PastFailure:
    """A failure that is over. ``kind``: build, start or service; ``when``: seconds; ``text``: a
    sentence about it.
    """

    kind: str
    when: float
    text: str
    open: Callable[[], Log]
    service: str = ""


def newest(
    root: Path, deployment: Deployment | None = None, service: str | None = None
) -> PastFailure | None:
    """The newest failure in a project's state folder and, of a deployment, of its services; of one
    service.

    Without an engine, only files are looked at.
    """
    failures = list(starts(root, service))
    if service is None:
        failures += builds(root)
    if deployment is not None:
        failures += ended(deployment, service)
    return max(failures, key=lambda failure: failure.when, default=None)


def builds(root: Path) -> Iterator[PastFailure]:
    """Builds that failed or were cut off."""
    for path, seen in state_files(root, "logs", "*.log"):
        with suppress(OSError), path.open("rb") as file:
            file.seek(max(0, seen.st_size - _TAIL))
            end = file.read(_TAIL)
            codes = _ENDED.findall(end)
            if not end.endswith(b"\ncancelled\n") and (not codes or int(codes[-1])):
                how = f"failed with {int(codes[-1])}" if codes else "has not ended"
                yield PastFailure(
                    "build", seen.st_mtime, f"the build {how}", partial(open_log, path, "build")
                )


def starts(root: Path, service: str | None = None) -> Iterator[PastFailure]:
    """Starts that failed: their crash bundles."""
    for path, status in state_files(root, "crash", "*.tar.gz"):
        named = _BUNDLE.match(path.name)
        if not named or service not in (None, named["service"]):
            continue
        what = f"{named['service']} failed"
        opens = partial(open_log, path)
        yield PastFailure("start", status.st_mtime, what, opens, named["service"])


def ended(deployment: Deployment, service: str | None = None) -> Iterator[PastFailure]:
    """Services of the profile that ended by themselves, those that Docker restarted included."""
    try:
        for container in deployment.containers((service,) if service else (), all=True):
            end = last_end(deployment.engine, container)
            if end is None or end.asked:
                continue
            when = float(instant(end.at) or 0)
            # Of one that Docker started again, the run that ended is read, not the one since.
            opens = partial(of_container, deployment, container, instant(end.since))
            yield PastFailure("service", when, str(end), opens, container.service)
    except EngineError as error:
        progress(f"note: no container was looked at: {error.message}")


def asked(
    service: LiveService | None, evidence: str, package: str, versions: Mapping[str, str] = {}
) -> str:
    """What the service's image answers about a name that could not be imported, a model that vLLM
    does not know, or the condition under which the ``package`` raises this; "" for no answer.

    Without a service, the wheel of the release that the log names (``versions``) has the files.
    """
    named = _ASKED.match(evidence)
    if not named:
        return ""
    request = named.groupdict("")
    module = request["module"] or request["absent"] or (not request["model"] and package) or "vllm"
    request["module"] = module
    try:
        if service:
            python = service.profile.base.python
            execute, _ = service.temporary_container()
            found = inside.ask(execute, python, PROGRAM, request, timeout=ASKING)
        else:
            found = _of_release(request, versions)
    except EnvgenError:
        return ""
    if isinstance(found, inside.NoAnswer):
        return ""
    owners = " and ".join(found["owners"]) or "no package"
    if request["text"] or request["function"]:
        verb = "said at" if request["text"] else "compute capabilities of"
        said = found["places"] and f"{owners}: {verb} {'; '.join(found['places'])}"
    else:
        name = request["name"] or request["model"]
        has = {True: f", with {name} in it", False: f", without {name}"}.get(found["has"], "")
        said = f"{module} belongs to {owners}: {found['file'] or 'there is no such file'}{has}"
    return shorten(said or "", 800)


def _of_release(request: Mapping[str, str], versions: Mapping[str, str]) -> JsonDict:
    """The same from the wheel of a release: of a name and a model alone. EnvgenError for none."""
    module = request["module"]
    package = module.partition(".")[0]
    version = versions.get(package, "").partition("+")[0]
    if not version or request["text"] or request["function"]:
        raise UsageError("no release has an answer")
    distribution = DISTRIBUTIONS.get(package, package)
    wheel = released(distribution, version, (), None)
    stem = module.replace(".", "/")
    name = request["name"]
    if request["model"]:
        stem = f"{package}/{REGISTRY}"
        name = f'"{request["model"]}": ('
    places = (f"{stem}.", f"{stem}/__init__.")
    file = next((one for one in wheel.names if one == stem or one.startswith(places)), "")
    has = None
    if name and file.endswith(".py"):
        has = name.encode() in wheel.fetch([file])[file]
    return {"owners": [f"{distribution} {version}"], "file": file, "has": has, "places": ()}


def log_of(service: LiveService) -> Log | None:
    """The log of a service's container, if there is one."""
    containers = service.containers(all=True)
    return of_container(service.deployment, containers[0]) if containers else None


def of_container(deployment: Deployment, container: Container, until: str = "") -> Log:
    """The log of a container, up to a time of the engine, and how it ended."""
    lines = deployment.engine.logs(container.id, tail=None, until=until)
    text = io.BytesIO(lines.encode("utf-8", "replace"))
    return Log(f"log of {container.name}", text, known_of(deployment, container), "serve")


def open_log(path: Path, kind: str | None = None) -> Log:
    """Open a log, a crash bundle, or a pipe (``explain <(docker logs serve)``). UsageError if it
    can't be read.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_fifo()):
            raise NotAFile(path, "is not a log file")
        file = path.open("rb")
        return (
            _of_bundle(path, file)
            if path.name.endswith(".tar.gz")
            else Log(str(path), file, kind=kind)
        )
    except (OSError, EOFError, tarfile.TarError, zlib.error) as problem:
        why = reason_of(problem) if isinstance(problem, OSError) else str(problem)
        hint = "name a log file, a crash bundle or a service, or `-` for stdin"
        raise UsageError(f"{path} can't be read: {why}", hint=hint) from None


def _of_bundle(path: Path, file: BinaryIO) -> Log:
    """The server's log in a crash bundle, of the machine that failed first, and what the bundle
    knows beside it.
    """
    members = {}
    left = LARGEST
    with file, tarfile.open(fileobj=file, mode="r:gz") as bundle:
        for member in bundle:
            if member.name.endswith(("server.log", ".json")) and (
                content := bundle.extractfile(member)
            ):
                members[member.name] = content.read(left)
                left -= len(members[member.name])
    logs = [name for name in sorted(members) if name.endswith("server.log")]
    if not logs:
        raise UsageError(
            f"{path} has no server.log", hint="name a crash bundle of `envgen up`, or a log file"
        )
    findings = _document(members, "findings.json")
    own = f"{findings.get('culprit') or ''}/server.log"
    log = own if own in logs else logs[0]
    container = None
    seen = _document(members, f"{log.removesuffix('server.log')}container.json")
    with suppress(*MISSHAPEN):
        container = container_of(seen) if seen else None
    return Log(str(path), io.BytesIO(members[log]), circumstances(container), "serve", findings)


def _document(members: Mapping[str, bytes], name: str) -> JsonDict:
    try:
        return dict(read_json(members.get(name, b"{}")))
    except MISSHAPEN:
        return {}
