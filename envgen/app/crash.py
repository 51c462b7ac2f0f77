"""Writes the crash bundle of a service that failed; `up`, `restart` and the load tests come here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from envgen.bundle import write_bundle
from envgen.doctor import report, run
from envgen.doctor.gather import gather
from envgen.doctor.model import Wish
from envgen.engine.base import Engine
from envgen.engine.docker import connect
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
    known = [value for name in profile.secrets if (value := os.environ.get(name, ""))]
    facts = {"profile": profile.name, "variant": profile.variant, "image": profile.image_name, **findings}
    try:
        members = dict(
            collect(engine, container_id, service, compose_files=compose_files, secrets=profile.secrets, findings=facts)
        )
        members["explanations.json"] = _explanations(members["server.log"])
        members["doctor.json"] = _doctor(profile, root, service)
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


def keeper(
    engine: Engine, profile: Profile, root: Path, service: str, compose_files: Sequence[Path]
) -> Callable[[Failure, str], str]:
    """What a Launcher calls when a start fails."""

    def keep(failure: Failure, cause: str) -> str:
        container = failure.container
        findings = {
            "reason": failure.reason,
            "cause": cause,
            "phases": failure.phases,
            "shown": failure.shown,
            "missing": failure.missing,
            "restarts": failure.restarts,
            "compose": failure.lines,
        }
        return write(engine, profile, root, service, container.id if container else "", findings, compose_files)

    return keep


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
    return (json.dumps([one.data() for one in found], indent=2, ensure_ascii=False) + "\n").encode()


def _doctor(profile: Profile, root: Path, service: str) -> bytes:
    """What `envgen doctor` finds right now, in the container if it still runs."""
    try:
        context, extra = gather(Wish(profile, root, service, False, "envgen.yaml"), connect)
        document: Any = report.as_data(run.examine(context, extra))
    except (EnvgenError, OSError) as error:
        document = {"not available": reason_of(error)}
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
