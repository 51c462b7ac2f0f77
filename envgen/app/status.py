"""`envgen status`: the state of a profile, from what answers within a few seconds."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from envgen.app import lock
from envgen.app.cluster.machines import nodes_of, reach
from envgen.app.containers import as_data, changed
from envgen.app.session import VARIANT_LABEL, Session
from envgen.deployment import Deployment
from envgen.engine.api import time_budget
from envgen.engine.endpoint import with_plugin
from envgen.engine.git import WorkTree
from envgen.engine.process import in_background
from envgen.engine.values import Container
from envgen.errors import EngineError, EnvgenError
from envgen.files import state_dir
from envgen.profile.model import Profile
from envgen.render.environment import checkout_variable, compose_environment
from envgen.render.outputs import diff, render_project
from envgen.serve.differences import differences, keep_moment
from envgen.serve.ended import last_ends
from envgen.serve.notices import of_all

T = TypeVar("T")
PATIENCE = 5.0  # seconds in all
_TAIL = 4096


@time_budget(PATIENCE)
def look(session: Session) -> dict[str, Any]:
    """The state of the session's profile as JSON. What does not answer in time is left out."""
    deadline = time.monotonic() + PATIENCE
    project, profile = session.loaded().project, session.profile()
    root, trouble, reachable = project.root, None, True
    folders = _folders(profile, root)
    futures = {name: in_background(partial(checkout, path)) for name, path in folders.items()}
    found: dict[str, Any] = {
        "profile": profile.name, "others": [name for name in project.profiles if name != profile.name],
        "mode": profile.mode.value, "file": str(project.file), "image": None, "containers": [], "lost": {},
        "caches": [], "differences": {}, "drift": drift(session), "left_out": [], "other_folder": None,
        "notices": {},
    }  # fmt: skip
    try:
        reached, lost = reach(session.deployment(), nodes_of(profile), PATIENCE / 2)
        found["lost"] = {node: error.problems[0].message for node, error in lost.items() if node}
        if not reached:
            raise with_plugin(next(iter(lost.values())), "compose")
        first = next(iter(reached.values()))  # the head, if there are several
        found["image"], found["left_out"] = _image(first), first.left_out
        found["caches"] = [asdict(mount) for mount in first.caches.values()]
        found["other_folder"] = str(first.other_folder() or "") or None
        there = [
            (node, container) for node, one in reached.items()
            for container in one.containers(all=True)
        ]  # fmt: skip
        differ = changed(lambda: session.deployment().rendered_files(), [one for node, one in there if not node])
        ended = {
            node: last_ends(
                deployment.engine, [one for at, one in there if at == node and one.service in profile.services]
            )
            for node, deployment in reached.items()
        }
        found["containers"] = [
            as_data(one, first.digest, differ.get(one.id), node, ended[node].get(one.id)) for node, one in there
        ]
        for node, deployment in reached.items():
            told = of_all(deployment.engine, [one for at, one in there if at == node])
            found["notices"] |= {name: [one.data() for one in some] for name, some in told.items()}
        found["differences"] = _differences(session, [one for _, one in there if differ.get(one.id)])
    except EnvgenError as error:
        trouble = "; ".join(f"{one.place}: {one.message}" if one.place else one.message for one in error.problems)
        reachable = not isinstance(error, EngineError)
    return found | {
        "engine": {"ok": reachable, "error": trouble}, "lock": _lock(session, profile),
        "last_build": _last_build(root, profile),
        "checkouts": [
            {"name": name, "path": str(path), **_in_time(futures[name], deadline)} for name, path in folders.items()
        ],
    }  # fmt: skip


def drift(session: Session) -> list[str]:
    """The committed files that differ from what the project file renders to, without settings of this machine."""
    if session.sets or session.variant:
        return []  # committed files have neither
    try:
        project = session.loaded(local=False).project
        files = render_project(project, only=session.profile().name)
        return [
            path
            for path in sorted(files)
            if (project.root / path).is_file() and diff(project.root, {path: files[path]})
        ]
    except EnvgenError:
        return []  # `render --check` reports it


def _differences(session: Session, found: list[Container]) -> Mapping[str, list[str]]:
    """Container -> what `up` would change, with both values."""
    changes: dict[str, list[str]] = {}
    for one in found:
        deployment, old = session.deployment().rendered_files(), one.labels.get(VARIANT_LABEL, "")
        lines = [f"variant: {old or 'none'} → {session.variant or 'none'}"] if old != session.variant else []
        with contextlib.suppress(EnvgenError):  # Compose did not answer in time
            lines += differences(keep_moment(deployment, one), one.service, one)
        changes[one.name] = lines
    return changes


def _folders(profile: Profile, root: Path) -> dict[str, Path]:
    variables = compose_environment(profile, root)
    return {name: Path(variables[checkout_variable(name)]) for name in profile.mounted_sources}


def checkout(folder: Path) -> Mapping[str, Any]:
    """Branch (null: none), commit, and the numbers of edited and untracked files."""
    try:
        tree = WorkTree(folder)
        branch = tree.git(["symbolic-ref", "--short", "--quiet", "HEAD"], check=False)
        commit = tree.head
        names = tree.edited("HEAD") if commit else []
        edited, untracked = (len(paths) - len(tree.generated(paths)) for paths in (names, tree.untracked()))
        return {"branch": branch.text if branch.code == 0 else None, "commit": commit or None, "edited": edited,
                "untracked": untracked, "trouble": None}  # fmt: skip
    except EnvgenError as error:
        return _unknown(error.problems[0].message)


def _unknown(trouble: str) -> Mapping[str, Any]:
    return {"branch": None, "commit": None, "edited": None, "untracked": None, "trouble": trouble}


def _in_time(answer: Future[Mapping[str, Any]], deadline: float) -> Mapping[str, Any]:
    if not wait([answer], max(0.0, deadline - time.monotonic())).done:
        return _unknown(f"git did not answer within {PATIENCE:g} s")
    return answer.result()


def _image(deployment: Deployment) -> Mapping[str, Any]:
    image = deployment.image
    state = "missing" if image is None else "current" if deployment.is_current else "older"
    id_, created = (image.id, image.tagged or image.created) if image else (None, None)
    why = [asdict(one) | {"text": str(one)} for one in deployment.outdated]
    return {"name": deployment.profile.image_name, "id": id_, "created": created, "state": state, "changed": why}


def _lock(session: Session, profile: Profile) -> Mapping[str, Any]:
    try:
        found = lock.check(session)
    except EnvgenError as error:
        return {"state": "unreadable", "stale": [error.problems[0].message]}
    if found is None:
        return {"state": "missing", "stale": []}
    lacking = [str(one) for one in found.get(profile.name, ())]
    return {"state": "stale" if lacking else "current", "stale": lacking}


def _last_build(root: Path, profile: Profile) -> Mapping[str, Any] | None:
    logs = sorted(path for path in state_dir(root, "logs").glob(f"build-{profile.name}-2*.log") if path.is_file())
    if not logs:
        return None
    with logs[-1].open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        lines = file.read(_TAIL).decode(errors="replace").splitlines()
    ended = lines[-1] if lines and lines[-1].startswith(("ended ", "cancelled")) else None
    return {"log": str(logs[-1].relative_to(root)), "ended": ended}
