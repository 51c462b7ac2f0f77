"""The bundle: what `up` keeps of a service that failed, and what `doctor --bundle` writes. One list
of files.

A file that can't be collected holds the reason instead. Secrets and names are taken out when the
archive is written, which is complete or does not exist; equal files give equal bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import tarfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from envgen import __version__, files
from envgen.app.doctor import Diagnosis, joined
from envgen.binding import JsonDict
from envgen.deployment import Deployment, LiveService
from envgen.doctor import report
from envgen.doctor.collect import gather, or_none
from envgen.doctor.model import Subject
from envgen.engine import process
from envgen.engine.client import Engine
from envgen.engine.values import Container, ExecResult
from envgen.errors import EnvgenError, UsageError
from envgen.files import state_dir
from envgen.redact import redact, secret_values
from envgen.serve.ended import StartFailure
from envgen.text import counted, plain_text, progress, reason_of, table

FOLDER = "crash"  # below the state folder, which git ignores
STUCK = 20.0  # seconds for one question to a container that may be stuck
RECORD = (
    "/run/envgen-memory"  # of docker/runtime/libexec/memory-guard: two minutes, a line a second
)
LOG_LINES = (
    100_000  # of a server's log: as many as LOG_LIMIT holds, with lines as servers write them
)
LOG_BYTES = 4 << 20  # of each build log: its end
LOGS = 3  # newest build logs

Ask = Callable[[], str]
Collected = tuple[
    dict[str, str], set[str]
]  # the files of one machine, and secrets to remove everywhere


def write_report(target: Path, diagnoses: Sequence[Diagnosis]) -> None:
    """Write the bundle of `doctor --bundle`."""
    asks = {}
    for diagnosis in diagnoses:
        context = diagnosis.report.context
        doctor = partial(report.as_data, diagnosis.report)
        service = LiveService(diagnosis.deployment, context.service)
        asks[service.deployment.node] = partial(collect, service, doctor, context.container)
    text = report.as_text(joined(diagnoses)) + "\n"
    count = counted(write(target, {"doctor.txt": text}, asks), "file")
    advice = "secrets and names taken out; look into it before you send it"
    progress(f"  wrote {target}: {count}, {advice}")


def save(
    machines: Sequence[LiveService],
    failure: StartFailure,
    cause: str,
    culprit: str = "",
    changes: Sequence[str] = (),
) -> str:
    """Write what a service left behind, the log's cause and doctor's report to .envgen/crash/.
    Returns the path.

    ``machines``: the service on each of them, the head first. ``culprit``: the one that failed
    first. ``changes``: since it last worked. If the bundle can't be written, that is printed and
    the path is "": the failure itself matters more.
    """
    head = machines[0]
    root = head.deployment.root
    name = head.name
    facts = {key: value for key, value in vars(failure).items() if key != "container"}
    facts |= {
        "profile": head.profile.name,
        "service": name,
        "cause": cause,
        "culprit": culprit,
        "changes": "\n".join(changes),
    }

    def doctor(service: LiveService) -> Any:
        if service.deployment.node != culprit:
            return {"not asked": f"{culprit} failed first"}
        return report.as_data(report.examine(gather(Subject(service.deployment, name))))

    asks = {}
    for one in machines:
        asks[one.deployment.node] = partial(collect, one, partial(doctor, one), failure.container)
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    target = state_dir(root, FOLDER) / f"{stamp}-{name}.tar.gz"
    try:
        write(target, {"findings.json": as_json(facts)}, asks, within=root)
    except (EnvgenError, OSError) as error:
        progress(f"  the crash bundle could not be written: {reason_of(error)}")
        return ""
    here = Path.cwd()
    if target.is_relative_to(here):
        target = target.relative_to(here)
    return str(target)


# --- the archive
# ------------------------------------------------------------------------------------------------------


def write(
    target: Path,
    members: dict[str, str],
    machines: Mapping[str, Callable[[], Collected]],
    within: Path | None = None,
) -> int:
    """Write ``members`` (name -> text) and what each machine has, in its own folder if there are
    several.

    Returns the number of files. UsageError if it can't be written there.
    """
    known = set()
    with ThreadPoolExecutor(len(machines)) as pool:
        collected = list(pool.map(lambda ask: ask(), machines.values()))
    for node, (texts, secrets) in zip(machines, collected, strict=True):
        folder = f"{node}/" if len(machines) > 1 else ""
        members |= {folder + name: text for name, text in texts.items()}
        known |= secrets
    try:
        files.write(target, archive(members, known), mode=0o600, within=within)
    except OSError as problem:
        hint = "name a file in a folder that is there, is yours and has space"
        raise UsageError(f"{target} can't be written: {reason_of(problem)}", hint=hint) from None
    return len(members)


def archive(members: Mapping[str, str], known: set[str] = frozenset()) -> bytes:  # type: ignore[assignment]
    """A .tar.gz without times and owners; names and texts redacted. ``known``: further secret
    values.
    """
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, text in sorted(members.items()):
            clean = redact(plain_text(text), known=known)
            data = clean.encode("utf-8", "replace")
            info = tarfile.TarInfo(redact(name, known=known))
            info.size = len(data)
            info.mode = 0o644
            info.mtime = 0
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), mtime=0)


def as_json(document: Any) -> str:
    """``document`` as JSON; types that JSON lacks become text."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, default=str) + "\n"


# --- one machine
# ------------------------------------------------------------------------------------------------------


def collect(
    service: LiveService, doctor: Callable[[], Any], container: Container | None = None
) -> Collected:
    """The files about a service on one machine. ``container``: as it was known last."""
    deployment = service.deployment
    profile = service.profile
    asked = _project(deployment)
    asked["doctor.json"] = lambda: as_json(doctor())
    about: JsonDict = {
        "envgen": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "profile": profile.name,
        "variant": profile.variant,
    }
    try:
        engine = deployment.engine
        there = service.containers(all=True) if service.name else ()
        container = there[0] if there else None
        # A machine that is off costs its time limit once.
        info = or_none(engine.info)
        about["engine"] = info and vars(info)
        about["image"] = or_none(lambda: deployment.image and vars(deployment.image))
        asked["server.log"] = lambda: "not available: there was no container"
        if info and info.local:
            asked["memory.txt"] = lambda: Path("/proc/meminfo").read_text("utf-8")
            asked["gpu.txt"] = lambda: _printed(process.run(["nvidia-smi", "-q"], timeout=STUCK))
            asked["kernel.log"] = lambda: _printed(process.run(["dmesg"], timeout=STUCK))
        if container:
            asked |= _of_container(engine, container, profile.secrets)
    except EnvgenError as error:
        asked["no-engine.txt"] = partial(reason_of, error)
    asked["versions.json"] = partial(as_json, about)
    inside = dict(container.env) if container else {}
    secrets = set(secret_values(inside))  # besides those of this shell, which redact knows
    for name in profile.secrets:
        for variables in (deployment.shell, inside):
            secrets.add(variables.get(name, ""))
    secrets.discard("")
    return {name: _text(ask) for name, ask in asked.items()}, secrets


def _text(ask: Callable[[], str]) -> str:
    """What ``ask`` returns, or why there is nothing."""
    try:
        text = ask()
    except (EnvgenError, OSError, ValueError) as error:
        text = f"not available: {reason_of(error)}"
    return text if not text or text.endswith("\n") else text + "\n"


def _of_container(engine: Engine, container: Container, secrets: Sequence[str]) -> dict[str, Ask]:
    """``secrets``: names of variables whose values must not be kept."""
    return {
        "server.log": lambda: engine.logs(container.id, tail=LOG_LINES, timestamps=True),
        "container.json": lambda: _inspected(engine, container, secrets),
        "container-gpu.txt": lambda: _printed(
            engine.exec(container.id, ["nvidia-smi", "-q"], timeout=STUCK)
        ),
        "memory-guard.txt": lambda: engine.read_file(container.id, RECORD).decode(errors="replace"),
        "processes.txt": lambda: _processes(engine, container),
    }


def _printed(done: ExecResult) -> str:
    return done.stdout.decode(errors="replace")


def _inspected(engine: Engine, container: Container, secrets: Sequence[str]) -> str:
    document = dict(engine.inspect(container.id) or {})
    config = dict(document.get("Config") or {})
    env = []
    for pair in config.get("Env") or ():
        name, _, value = pair.partition("=")
        hidden = name in secrets and value
        env.append(f"{name}=(secret)" if hidden else f"{name}={value}")
    config["Env"] = env
    return as_json({**document, "Config": config})


def _processes(engine: Engine, container: Container) -> str:
    rows = [("PID", "PARENT", "STATE", "MEMORY", "COMMAND")]
    for one in engine.processes(container.id):
        pid = str(one.pid)
        parent = str(one.parent)
        memory = f"{one.memory >> 20}M"
        rows.append((pid, parent, one.state, memory, one.command))
    lines = table(rows, right=(0, 1, 3))
    return "\n".join(lines)


def _project(deployment: Deployment) -> dict[str, Ask]:
    """The files of the project that decide what runs, and the newest build logs."""
    root = deployment.root
    profile = deployment.profile
    there = dict[str, Path]()
    for name in ("envgen.yaml", "envgen.local.yaml", "envgen.lock", str(profile.dockerfile)):
        there[f"project/{name}"] = root / name
    rendered = or_none(lambda: deployment.compose.files)
    for path in rendered or [root / str(profile.compose_file)]:
        there[f"project/compose/{path.name}"] = path
    for path, _status in files.state_files(root, "logs", "*.log")[-LOGS:]:
        there[f"logs/{path.name}"] = path
    asks = dict[str, Ask]()
    for name, path in there.items():
        if os.path.lexists(path):
            asks[name] = partial(_end, path)
    return asks


def _end(path: Path) -> str:
    """The end of a file. Links are not followed: they may lead to private files."""
    with files.opened(path, follow=False) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        content = file.read(LOG_BYTES)
    if b"\0" in content:
        return f"(left out: {len(content)} bytes that are not text)"
    return content.decode(errors="replace")
