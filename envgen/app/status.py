"""`envgen status`: the state of a profile, from what answers within a few seconds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from envgen.app import lock, prune
from envgen.app.cluster.machines import connect_all, nodes_of
from envgen.app.containers import also_running, rows_of
from envgen.app.session import Session
from envgen.app.upgrade.trial import upgrade_state
from envgen.binding import JsonDict, JsonObject
from envgen.deployment import Deployment
from envgen.engine.values import Container
from envgen.errors import EngineError, EnvgenError
from envgen.render.outputs import diff, render_project
from envgen.serve.notices import of_all

PATIENCE = 2.5  # seconds for each other machine


def look(session: Session) -> JsonDict:
    """The state of the session's profile as JSON. What does not answer in time is left out."""
    project = session.loaded().project
    profile = session.profile()
    trouble = None
    reachable = True
    state: JsonDict = {
        "profile": profile.name,
        "others": [name for name in project.profiles if name != profile.name],
        "mode": profile.mode.value,
        "file": str(project.file),
        **dict.fromkeys(("image", "other_folder", "trial", "back", "leftovers")),
        "containers": [],
        "lost": {},
        "also": [],
        "caches": [],
        "left_out": [],
        "notices": {},
    }
    first = deployment = session.deployment()
    try:
        reached, lost = connect_all(deployment, nodes_of(profile), PATIENCE)
        for node, error in lost.items():
            if node:
                state["lost"][node] = error.message
        if not reached:
            raise next(iter(lost.values()))
        first = next(iter(reached.values()))  # the head, if there are several
        if not first.node:
            with suppress(EnvgenError):
                state["leftovers"] = sum(item.bytes for item in prune.find(first.engine, project))
        state["image"], state["left_out"] = _image(first), first.left_out
        state["trial"], state["back"] = upgrade_state(first)
        state["also"] = also_running(session, first)
        state["caches"] = [asdict(mount) for mount in first.caches.values()]
        for deployment in reached.values():
            there = deployment.engine.containers(profile.compose_name, all=True)
            if deployment is first:
                state["other_folder"] = str(first.other_folder(there) or "") or None
            _add_containers(state, deployment, deployment.ours(there))
    except EnvgenError as problem:
        trouble = "; ".join(one.sentence for one in problem.problems)
        reachable = not isinstance(problem, EngineError)
    return state | {
        "engine": {"ok": reachable, "error": trouble},
        "drift": drift(session, first),
        "lock": _lock(session, first),
    }


def _add_containers(
    state: JsonDict, deployment: Deployment, containers: Sequence[Container]
) -> None:
    """Add the containers of one machine to the state, and the notices in their logs."""
    state["containers"] += rows_of(deployment, containers)
    for name, explained in of_all(deployment.engine, containers).items():
        state["notices"][name] = list(map(vars, explained))


def drift(session: Session, deployment: Deployment) -> list[str]:
    """The committed files that differ from what the project file renders to, without settings of
    this machine.

    ``deployment``: of the session; what it has rendered is not rendered again.
    """
    if session.sets or session.variant:
        return []  # committed files have neither
    try:
        project = session.loaded(local=False).project
        same = project is session.loaded().project and not deployment.node
        known = vars(deployment).get("rendered") if same else None
        if known is not None and (session.file or deployment.lock is not deployment.locked):
            known = None
        name = deployment.profile.name
        lock = deployment.lock_file
        files = render_project(project, only=name, lock=lock, known=known)
    except EnvgenError:
        return []  # `render --check` reports it
    root = project.root
    there = [path for path in sorted(files) if (root / path).is_file()]
    return [path for path in there if diff(root, {path: files[path]})]


def _image(deployment: Deployment) -> JsonObject:
    image = deployment.image
    described = {
        "name": deployment.profile.image_name,
        "id": None,
        "created": None,
        "state": "missing",
        "changed": [asdict(one) | {"text": str(one)} for one in deployment.outdated],
    }
    if image is not None:
        described["id"] = image.id
        described["created"] = image.tagged or image.created
        described["state"] = "current" if deployment.is_current else "differs"
    return described


def _lock(session: Session, deployment: Deployment) -> JsonObject:
    try:
        differences = lock.check(session, deployment.lock_file)
    except EnvgenError as error:
        return {"state": "unreadable", "stale": [error.message]}
    if differences is None:
        return {"state": "missing", "stale": []}
    own = differences.get(deployment.profile.name, ())
    lacking = [str(one) for one in own]
    state = "stale" if lacking else "current"
    return {"state": state, "stale": lacking}
