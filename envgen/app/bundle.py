"""The bundle: what `up` keeps of a service that failed, and what `doctor --bundle` writes. One list of files."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

from envgen import __version__, files
from envgen.app.doctor import Diagnosis, joined
from envgen.deployment import Deployment
from envgen.doctor import report
from envgen.doctor.collect import gather, or_none
from envgen.doctor.model import Subject
from envgen.engine.api import time_budget
from envgen.engine.values import Container
from envgen.errors import EnvgenError
from envgen.files import state_dir
from envgen.redact import secret_values
from envgen.serve.crash import as_json, as_member, as_text, collect, write_bundle
from envgen.serve.ended import StartFailure
from envgen.text import counted, progress, reason_of

FOLDER = "crash"  # below the state folder, which git ignores
PATIENCE = 60.0  # seconds for all questions of `doctor --bundle` to the engines together
LOG_BYTES = 4 << 20  # of each build log: its end
LOGS = 3  # newest build logs
ABOUT = """\
What envgen knows of a service. Tokens, keys, home folders, host and user names are taken out.

findings.json      of a failure: the reason, its likely cause, how long each phase took, what the log had to show
doctor.json        what `envgen doctor` found
versions.json      envgen, Python, the engine, the image
server.log         all that the service wrote, never filtered, each line with the engine's time (UTC)
container.json     the engine's view: state, exit code, restarts, health checks, mounts, limits
processes.txt      the processes inside, zombies marked
memory.txt         memory of the machine; with a guard, second by second before the end
gpu.txt            nvidia-smi
kernel.log         the end of the kernel's messages (GPU errors are "NVRM: Xid", the memory killer is "oom-kill")
project/           the project file, its lock, the Dockerfile and the Compose files in use
logs/              the newest logs of builds
If something could not be collected, its file has the reason.
"""


def files_of(deployment: Deployment, service: str, container_id: str, doctor: str) -> dict[str, str]:
    """The files about a service on one machine; the container's of ``container_id``. ``doctor``: its report."""
    profile, engine = deployment.profile, or_none(deployment.connect)
    about = {
        "envgen": __version__,
        "python": platform.python_version(),
        "system": " ".join((platform.system(), platform.release(), platform.machine())),
        "profile": profile.name,
        "variant": profile.variant,
        "engine": or_none(lambda: vars(engine.info())) if engine else None,
        "image": or_none(lambda: vars(deployment.image)) if engine else None,
    }
    members = {"README.txt": ABOUT, "doctor.json": doctor, "versions.json": as_json(about), **_project(deployment)}
    if engine is None:
        return {**members, "no-engine.txt": "There was no Docker Engine to ask.\n"}
    return {**members, **collect(engine, container_id, service, profile.secrets)}


def _project(deployment: Deployment) -> dict[str, str]:
    """The files of the project that decide what runs, and the newest build logs."""
    names = ("envgen.yaml", "envgen.local.yaml", "envgen.lock", deployment.profile.dockerfile)
    compose = or_none(lambda: deployment.compose.files) or [deployment.root / str(deployment.profile.compose_file)]
    there = {f"project/{name}": deployment.root / str(name) for name in names}
    there |= {f"project/compose/{path.name}": path for path in compose}
    logs = [path for path in state_dir(deployment.root, "logs").glob("*.log") if not path.is_symlink()]
    newest = sorted(logs, key=lambda one: one.lstat().st_mtime)[-LOGS:]
    there |= {f"logs/{path.name}": path for path in newest}
    return {name: as_member(lambda p=path: _end(p)) for name, path in there.items() if os.path.lexists(path)}  # type: ignore[misc]


def _end(path: Path) -> str:
    """The end of a file. Links are not followed: they may lead to private files."""
    with files.opened(path, follow=False) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        return as_text(file.read(LOG_BYTES))


def _below(node: str, members: Mapping[str, str]) -> dict[str, str]:
    """Of several machines, each has a folder."""
    return {f"{node}/{name}" if node else name: text for name, text in members.items()}


# --- envgen doctor --bundle -------------------------------------------------------------------------------------------


@time_budget(PATIENCE)
def write_report(target: Path, diagnoses: Sequence[Diagnosis]) -> None:
    """Write the bundle of `doctor --bundle`. What is not available is named."""
    members = collect_report(diagnoses)
    known = set().union(*(secrets_of(one.deployment, one.report.context.container) for one in diagnoses))
    write_bundle(target, members, known=known)
    count = counted(len(members), "file")
    progress(f"  wrote {target}: {count}, secrets and names taken out; look into it before you send it")


def collect_report(diagnoses: Sequence[Diagnosis]) -> dict[str, str]:
    """The files of `doctor --bundle`, by name."""
    members = {"doctor.txt": report.as_text(joined(diagnoses)) + "\n"}
    for diagnosis in diagnoses:
        context = diagnosis.report.context
        identity = context.container.id if context.container else ""
        collected = files_of(diagnosis.deployment, context.service, identity, as_json(report.as_data(diagnosis.report)))
        members |= _below(diagnosis.deployment.node if len(diagnoses) > 1 else "", collected)
    return members


def secrets_of(deployment: Deployment, container: Container | None) -> set[str]:
    """Values to remove everywhere, besides those of this shell: of the profile's secrets, and of the container."""
    inside = dict(container.env) if container else {}
    places = [place.get(name, "") for name in deployment.profile.secrets for place in (deployment.shell, inside)]
    return {*secret_values(inside), *filter(None, places)}


# --- a service that failed --------------------------------------------------------------------------------------------


def save(
    machines: Sequence[Deployment], service: str, failure: StartFailure, cause: str, culprit: str = ""
) -> str:  # fmt: skip
    """Write what ``service`` left behind, the log's cause and doctor's report to .envgen/crash/. Returns the path.

    ``machines``: those of the service, the head first. ``culprit``: the one that failed first. If the bundle can't be
    written, that is printed and the path is "": the failure itself matters more.
    """
    head, root = machines[0], machines[0].root
    facts = {name: value for name, value in vars(failure).items() if name != "container"}
    facts |= {"service": service, "cause": cause, "culprit": culprit}
    try:
        members = {"findings.json": as_json(facts), **_left_behind(machines, service, failure, culprit)}
        target = _free(root, service)
        write_bundle(target, members, known=secrets_of(head, failure.container), within=root)
    except (EnvgenError, OSError) as error:
        progress(f"  the crash bundle could not be written: {reason_of(error)}")
        return ""
    return str(target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target)


def _left_behind(
    machines: Sequence[Deployment], service: str, failure: StartFailure, culprit: str
) -> dict[str, str]:  # fmt: skip
    def of(deployment: Deployment) -> dict[str, str]:
        is_first = deployment.node == culprit
        container = failure.container if is_first else None
        try:
            if container is None and deployment.node:  # raises if the machine can't be reached
                left = deployment.engine.containers(deployment.profile.compose_name, service, all=True)
                container = left[0] if left else None
            doctor = _doctor(deployment, service) if is_first else as_json({"not asked": f"{culprit} failed first"})
            return files_of(deployment, service, container.id if container else "", doctor)
        except EnvgenError as error:
            return {"not-reached.txt": f"{reason_of(error)}\n"}

    if len(machines) == 1:
        return of(machines[0])
    members = {"README.txt": f"{culprit} failed first: {failure.reason}\nEach machine has a folder.\n"}
    with ThreadPoolExecutor(len(machines)) as pool:
        for deployment, found in zip(machines, pool.map(of, machines), strict=True):
            members |= _below(deployment.node, found)
    return members


def _free(root: Path, service: str) -> Path:
    """A name that no bundle has."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    names = (f"{stamp}-{service}{f'-{number}' if number > 1 else ''}.tar.gz" for number in range(1, 1000))
    return next(at for name in names if not (at := state_dir(root, FOLDER) / name).exists())


def _doctor(deployment: Deployment, service: str) -> str:
    """What `envgen doctor` finds now, in the container if it still runs."""
    try:
        context, extra = gather(Subject(deployment, service))
        return as_json(report.as_data(report.examine(context, extra)))
    except (EnvgenError, OSError) as error:
        return as_json({"not available": reason_of(error)})
