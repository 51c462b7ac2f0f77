"""What `doctor --fix` fixes by itself: the plan first; acting is the caller's word. Stale kernels are the cache's
business."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envgen.doctor import remedies
from envgen.doctor.model import Context, Finding, Severity
from envgen.engine.client import Engine
from envgen.engine.owner import ROOT, caller, host_user
from envgen.engine.values import Container, ExecResult, Mount
from envgen.errors import EnvgenError, RefusedError
from envgen.render import environment as promised
from envgen.text import last_printed

INSTALL_LIMIT = 1800.0  # seconds; a mounted vLLM may compile


@dataclass(frozen=True)
class Fix:
    """One thing to do. ``how`` is what it does, in the words of a shell; ``act`` does it or raises EnvgenError."""

    title: str
    how: str
    act: Callable[[], None]


def plan(context: Context, findings: Iterable[Finding], engine: Engine, root: Path) -> list[Fix]:
    """The safe steps against these findings, in the order in which they must be done."""
    wanted = [one for one in findings if one.severity >= Severity.WARNING]
    return [
        *_missing_folders(context, engine, root),
        *_of_root(context, engine),
        *_owners(context, wanted, engine),
        *_installs(context, wanted, engine),
    ]


def _missing_folders(context: Context, engine: Engine, root: Path) -> list[Fix]:
    """Host folders of caches that are not there: Docker would make them, owned by root."""
    machine, image = promised.compose_environment(context.profile, root), context.image
    if image is None or (context.engine is not None and not context.engine.local):
        return []  # the folders of another machine cannot be seen from here
    found = []
    for name, cache in context.profile.caches.items():
        folder = machine.get(promised.cache_variable(name), "") if cache.host else ""
        if folder and not Path(folder).exists():
            owner = "{}:{}".format(*host_user(engine))
            how = f"mkdir -p {folder} && chown {owner} {folder}   (in a container)"
            act = partial(_make, engine, image.id, Path(folder), owner)
            found.append(Fix(f"make the folder of the {name} cache, owned by you", how, act))
    return found


def _make(engine: Engine, image: str, folder: Path, owner: str) -> None:
    above = next(parent for parent in folder.parents if parent.exists())
    if not above.is_dir():
        raise RefusedError(f"{above} is not a folder", hint="name another host folder for this cache")
    inner = folder.relative_to(above)
    # Every new level gets the owner, not only the last: else only root could remove the rest.
    levels = 'while [ "$1" != . ]; do chown "$2" -- "$1"; set -- "$(dirname "$1")" "$2"; done'
    words = ["sh", "-c", f'cd /above && mkdir -p -- "$1" && {levels}', "sh", str(inner), owner]
    _must(engine.run_once(image, words, mounts=[Mount(str(above), "/above")]), f"{folder} could not be made")


def _of_root(context: Context, engine: Engine) -> list[Fix]:
    """Files of root's in checkouts and cache folders: given to the user, in a container that sees that folder alone."""
    found, owner = [], "{}:{}".format(*caller())
    # On this file system, links themselves and not what they lead to.
    words = ["find", "/folder", "-xdev", "-uid", "0", "-exec", "chown", "-h", owner, "{}", "+"]
    for one in context.foreign if context.image is not None else ():
        assert context.image is not None
        how = f"docker run --user 0 -v {one.folder}:/folder ... {' '.join(words)}"
        act = partial(_chown, engine, context.image.id, one.folder, words)
        found.append(Fix(f"give what belongs to root in {one.folder} to you", how, act))
    return found


def _chown(engine: Engine, image: str, folder: str, words: list[str]) -> None:
    answer = engine.run_once(image, words, mounts=[Mount(folder, "/folder")], user=ROOT, timeout=300)
    _must(answer, f"not all of {folder} could be given to you")


def _owners(context: Context, findings: list[Finding], engine: Engine) -> list[Fix]:
    """Caches that the container's user may not write: handed to it, through the container, links not followed."""
    container, probe = context.container, context.probe
    if container is None or not container.running or probe is None or not probe.system.uid:
        return []  # root that may not write owns nothing here: an engine with userns-remap
    found = []
    owner = f"{probe.system.uid}:{probe.system.gid}"
    for one in findings:
        name = str(one.evidence.get("cache", ""))
        if one.check != "mounts.caches" or one.case != "not-writable" or name not in context.profile.caches:
            continue
        path = str(context.profile.caches[name].path)
        mount = next((mount for mount in container.mounts if mount.target == path), None)
        if mount is None or mount.read_only:
            continue  # a read-only mount is the project's own word
        argv = ["chown", "-R", "-h", owner, "--", path]
        how = f"docker exec --user 0 {container.name} {' '.join(argv)}"
        act = partial(_run, engine, container, argv, "0", 300)
        found.append(Fix(f"hand the {name} cache to the container's user", how, act))
    return found


def _installs(context: Context, findings: list[Finding], engine: Engine) -> list[Fix]:
    """Sources that a finding advises to install again."""
    container = context.container
    if container is None or not container.running:
        return []
    found = []
    for name, source in context.profile.mounted_sources.items():
        cure = remedies.install(context, name, source)
        mine = [one for one in findings if one.remedy == cure]
        if mine:
            # What only looks installed must be installed by force.
            force = ["--force"] if any(one.check.startswith("flashinfer") for one in mine) else []
            argv = ["envgen-install", *force, name]
            act = partial(_run, engine, container, argv, "", INSTALL_LIMIT)
            how = f"docker exec {container.name} {' '.join(argv)}"
            found.append(Fix(f"install {name} from its mount again", how, act))
    return found


def _run(engine: Engine, container: Container, argv: list[str], user: str, limit: float) -> None:
    _must(engine.exec(container.id, argv, user=user, timeout=limit), f"`{' '.join(argv)}` failed")


def _must(answer: ExecResult, what: str) -> None:
    if answer.code:
        last = last_printed(answer.stderr or answer.stdout, answer.code, 3).replace("\n", " / ")
        raise EnvgenError(f"{what} (exit code {answer.code}): {last[:500]}")
