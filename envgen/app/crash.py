"""Writes the crash bundle of a service that failed; `up`, `restart` and the load tests come here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from envgen.app.places import Opened
from envgen.bundle import as_json, write_bundle
from envgen.doctor import report
from envgen.doctor.collect import gather
from envgen.doctor.model import Subject
from envgen.engine.client import Engine
from envgen.errors import EnvgenError
from envgen.explain import classify
from envgen.files import state_dir
from envgen.profile.model import Profile
from envgen.serve.crash import collect
from envgen.serve.wait import Failure
from envgen.text import progress, reason_of

FOLDER = "crash"  # below the state folder, which git ignores


def write(
    engine: Engine,
    profile: Profile,
    root: Path,
    service: str,
    container_id: str,
    findings: Mapping[str, Any],
    compose_files: Sequence[Path] = (),
) -> str:
    """Collect what ``service`` left behind and write it to .envgen/crash/; returns the file's path.

    ``findings``: plain data, the reason first. What the log says and what the doctor sees is added here. A bundle that
    can't be written is reported on stderr, and the path is empty: the failure itself matters more.
    """
    return _written(
        profile, root, service, lambda: _members(engine, profile, root, service, container_id, findings, compose_files)
    )


def keeper(places: Sequence[Opened], service: str, culprit: str = "") -> Callable[[Failure, str], str]:
    """What a Launcher calls when a start fails. Several machines get a folder each; ``culprit`` failed first."""

    def keep(failure: Failure, cause: str) -> str:
        findings = {
            "reason": failure.reason,
            "cause": cause,
            "phases": failure.phases,
            "shown": failure.shown,
            "missing": failure.missing,
            "restarts": failure.restarts,
            "compose": failure.lines,
        }
        head = places[0]

        def of(here: Opened) -> dict[str, bytes]:
            mine = here.node == culprit
            container = failure.container if mine else None
            if container is None and here.node:  # raises where the machine is out of reach
                found = here.engine.containers(here.profile.compose_name, service, all=True)
                container = found[0] if found else None
            told = findings if mine else {"reason": f"{culprit} failed first"}
            told = {**told, "node": here.node} if here.node else told
            return _members(
                here.engine, here.profile, here.root, service, container.id if container else "", told,
                here.compose.files, examine=mine,
            )  # fmt: skip

        def collect_all() -> dict[str, bytes]:
            if len(places) == 1:
                return of(head)
            with ThreadPoolExecutor(len(places)) as pool:
                asked = {here.node: pool.submit(of, here) for here in places}
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

        return _written(head.profile, head.root, service, collect_all)

    return keep


def _members(
    engine: Engine, profile: Profile, root: Path, service: str, container_id: str, findings: Mapping[str, Any],
    compose_files: Sequence[Path] = (), *, examine: bool = True,
) -> dict[str, bytes]:  # fmt: skip
    facts = {"profile": profile.name, "variant": profile.variant, "image": profile.image_name, **findings}
    members = dict(
        collect(engine, container_id, service, compose_files=compose_files, secrets=profile.secrets, findings=facts)
    )
    members["explanations.json"] = _explanations(members["server.log"])
    if examine:
        members["doctor.json"] = _doctor(engine, profile, root, service)
    return members


def _written(profile: Profile, root: Path, service: str, collected: Callable[[], Mapping[str, bytes]]) -> str:
    known = [value for name in profile.secrets if (value := os.environ.get(name, ""))]
    try:
        members = collected()
        folder = state_dir(root, FOLDER)
        target = _free_name(folder, service)
        write_bundle(target, members, known=known, within=root)
    except (EnvgenError, OSError) as error:
        progress(f"  the crash bundle could not be written: {reason_of(error)}")
        return ""
    try:
        return str(target.relative_to(Path.cwd()))
    except ValueError:
        return str(target)


def _free_name(folder: Path, service: str) -> Path:
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    for number in range(1, 1000):
        target = folder / (f"{stamp}-{service}.tar.gz" if number == 1 else f"{stamp}-{service}-{number}.tar.gz")
        if not target.exists():
            break
    return target


def _explanations(log: bytes) -> bytes:
    """All that the rules know in the whole log, best first."""
    found = classify(log.decode("utf-8", "replace").splitlines(), kind="serve")
    return as_json([one.data() for one in found]).encode()


def _doctor(engine: Engine, profile: Profile, root: Path, service: str) -> bytes:
    """What `envgen doctor` finds right now, in the container if it still runs."""
    try:
        context, extra = gather(Subject(profile, root, service, False, "envgen.yaml"), lambda: engine)
        document: Any = report.as_data(report.examine(context, extra))
    except (EnvgenError, OSError) as error:
        document = {"not available": reason_of(error)}
    return as_json(document).encode()
