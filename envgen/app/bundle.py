"""Bundles: crash bundles of services that failed, and those of `envgen doctor --bundle`."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from envgen import __version__, files
from envgen.app.doctor import Diagnosis, joined
from envgen.deployment import Deployment
from envgen.doctor import report
from envgen.doctor.collect import gather, or_none
from envgen.doctor.model import Subject
from envgen.engine.api import time_budget
from envgen.errors import EnvgenError
from envgen.explain import Circumstances, classify
from envgen.files import state_dir
from envgen.redact import secret_values
from envgen.serve import crash
from envgen.serve.crash import as_json, collect, write_bundle
from envgen.serve.wait import StartFailure
from envgen.text import counted, progress, reason_of

PATIENCE = 60.0  # seconds for all questions to the engines together
LOG_BYTES = 4 << 20  # of each build log: its end
LOGS = 3  # newest build logs


@time_budget(PATIENCE)
def write_report(target: Path, diagnoses: Sequence[Diagnosis]) -> None:
    """Write the bundle of `doctor --bundle`; each of several machines has a folder. What is not available is named."""
    members = collect_report(diagnoses)
    write_bundle(target, members, known=set().union(*(secrets_of(one) for one in diagnoses)))
    count = counted(len(members), "file")
    progress(f"  wrote {target}: {count}, secrets and names taken out; look into it before you send it")


def collect_report(diagnoses: Sequence[Diagnosis]) -> dict[str, bytes | str]:
    """The files of the bundle, by name."""
    found = joined(diagnoses)
    about = "Made by `envgen doctor --bundle`. Secrets, home folders, host and user names were taken out.\n"
    members: dict[str, bytes | str] = {
        "findings.json": as_json(report.as_data(found)),
        "findings.txt": report.as_text(found) + "\n",
        **_files(diagnoses[0].subject),
    }
    for one in diagnoses:
        folder = f"{one.deployment.node}/" if len(diagnoses) > 1 else ""
        context, profile = one.report.context, one.subject.deployment.profile
        engine = or_none(one.deployment.connect) if context.engine is not None else None
        if engine is None:
            about += f"There was no Docker Engine to ask{f' on {one.deployment.node}' if folder else ''}.\n"
        else:
            identity = context.container.id if context.container else ""
            seen = crash.collect(engine, identity, context.service, secrets=profile.secrets)
            members |= {folder + name: text for name, text in seen.items() if name not in ("README.txt", *members)}
        members[f"{folder}versions.json"] = as_json(
            {
                "envgen": __version__,
                "python": platform.python_version(),
                "system": " ".join((platform.system(), platform.release(), platform.machine())),
                "profile": profile.name,
                "engine": vars(context.engine) if context.engine else None,
                "image": vars(context.image) if context.image else None,
            }
        )
    return members | {"README.txt": about}


def secrets_of(one: Diagnosis) -> set[str]:
    """Values to remove everywhere: of the shell, of the profile's secrets, of the container."""
    container, named = one.report.context.container, one.subject.deployment.profile.secrets
    inside = dict(container.env) if container else {}
    known = {*secret_values(os.environ), *secret_values(inside)}
    return known | {
        value for name in named for place in (one.deployment.shell, inside) if (value := place.get(name, ""))
    }


def _files(subject: Subject) -> dict[str, bytes | str]:
    """The project file, the local one, the lock, the rendered files, the newest build logs."""
    profile = subject.deployment.profile
    names = (subject.project_file, "envgen.local.yaml", "envgen.lock", profile.dockerfile, profile.compose_file)
    there = {f"project/{name}": subject.deployment.root / str(name) for name in names}
    logs = [path for path in state_dir(subject.deployment.root, "logs").glob("*.log") if not path.is_symlink()]
    newest = sorted(logs, key=lambda one: one.lstat().st_mtime)[-LOGS:]
    there |= {f"logs/{path.name}": path for path in newest}
    return {name: _end(path) for name, path in there.items() if os.path.lexists(path)}


def _end(path: Path) -> bytes | str:
    """The end of a file. Links are not followed: they may lead to private files."""
    try:
        with files.opened(path, follow=False) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            return file.read(LOG_BYTES)
    except OSError as error:
        return f"not available: {reason_of(error)}\n"


FOLDER = "crash"  # below the state folder, which git ignores


def save(
    machines: Sequence[Deployment], service: str, failure: StartFailure, cause: str, culprit: str = ""
) -> str:  # fmt: skip
    """Write what ``service`` left behind, the log's cause and doctor's report to .envgen/crash/. Returns the path.

    ``machines``: those of the service, the head first. ``culprit``: the one that failed first. If the bundle can't be
    written, that is printed and the path is "": the failure itself matters more.
    """
    findings, head = (
        {**{name: value for name, value in vars(failure).items() if name != "container"}, "cause": cause},
        machines[0],
    )

    def of(deployment: Deployment) -> dict[str, bytes]:
        mine = deployment.node == culprit
        container = failure.container if mine else None
        if container is None and deployment.node:  # raises if the machine can't be reached
            found = deployment.engine.containers(deployment.profile.compose_name, service, all=True)
            container = found[0] if found else None
        facts = findings if mine else {"reason": f"{culprit} failed first"}
        facts = {**facts, "node": deployment.node} if deployment.node else facts
        identity = container.id if container else ""
        return _members(deployment, service, identity, facts, examine=mine)

    def collect_all() -> dict[str, bytes]:
        if len(machines) == 1:
            return of(head)
        with ThreadPoolExecutor(len(machines)) as pool:
            asked = {deployment.node: pool.submit(of, deployment) for deployment in machines}
        members = {
            "README.txt": f"{culprit} failed first: {failure.reason}\nEach machine has a folder.\n".encode(),
            "findings.json": as_json({"culprit": culprit, "service": service, **findings}).encode(),
        }
        for node, answer in asked.items():
            error = answer.exception()
            if isinstance(error, EnvgenError):
                members[f"{node}/not-reached.txt"] = f"{reason_of(error)}\n".encode()
            else:
                members |= {f"{node}/{name}": data for name, data in answer.result().items()}
        return members

    return _written(head, service, collect_all)


def _members(
    deployment: Deployment, service: str, container_id: str, findings: Mapping[str, Any], *, examine: bool
) -> dict[str, bytes]:
    engine, profile, compose_files = deployment.engine, deployment.profile, deployment.compose.files
    facts = {"profile": profile.name, "variant": profile.variant, "image": profile.image_name, **findings}
    found = collect(engine, container_id, service, compose_files=compose_files, secrets=profile.secrets, findings=facts)
    # Every cause that the rules find in the log, best first.
    known = classify(
        found["server.log"].decode("utf-8", "replace").splitlines(), kind="serve", known=Circumstances(failed=True)
    )
    members = {**found, "explanations.json": as_json([one.data() for one in known]).encode()}
    return members | ({"doctor.json": _doctor(deployment, service)} if examine else {})


def _written(deployment: Deployment, service: str, collected: Callable[[], Mapping[str, bytes]]) -> str:
    root = deployment.root
    known = [value for name in deployment.profile.secrets if (value := deployment.shell.get(name, ""))]
    try:
        members = collected()
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        names = (f"{stamp}-{service}{f'-{number}' if number > 1 else ''}.tar.gz" for number in range(1, 1000))
        target = next(at for name in names if not (at := state_dir(root, FOLDER) / name).exists())
        write_bundle(target, members, known=known, within=root)
    except (EnvgenError, OSError) as error:
        progress(f"  the crash bundle could not be written: {reason_of(error)}")
        return ""
    try:
        return str(target.relative_to(Path.cwd()))
    except ValueError:
        return str(target)


def _doctor(deployment: Deployment, service: str) -> bytes:
    """What `envgen doctor` finds now, in the container if it still runs."""
    try:
        context, extra = gather(Subject(deployment, service))
        document: Any = report.as_data(report.examine(context, extra))
    except (EnvgenError, OSError) as error:
        document = {"not available": reason_of(error)}
    return as_json(document).encode()
