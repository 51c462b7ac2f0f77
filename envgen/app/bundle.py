"""`envgen doctor --bundle FILE`: what is needed for a diagnosis elsewhere, without secrets."""

from __future__ import annotations

import json
import os
import platform
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from envgen import __version__, files
from envgen.bundle import write_bundle
from envgen.doctor import report
from envgen.doctor.model import Subject
from envgen.doctor.run import Report
from envgen.engine.base import Engine
from envgen.engine.docker import connect
from envgen.engine.owner import ours
from envgen.errors import EnvgenError
from envgen.files import state_dir
from envgen.inside import run
from envgen.redact import secret_values
from envgen.text import counted, progress

LOG_LINES = 5000  # of each container
LOG_BYTES = 4 << 20  # of each build log: its end
LOGS = 3  # newest build logs
COLLECT_ENV = run.Program(("collect_env",))
Add = Callable[[str, Callable[[], "bytes | str | None"], str], None]


def write(target: Path, found: Report, subject: Subject) -> None:
    """Collect and write. What can't be had is a line in the bundle's README, never an error."""
    members = collect(found, subject)
    write_bundle(target, members, known=secrets_of(subject, found))
    files = counted(len(members), "file")
    progress(f"  wrote {target}: {files}, secrets and names taken out; look into it before you send it")


def collect(found: Report, subject: Subject) -> dict[str, bytes | str]:
    """The members by name."""
    context = found.context
    members: dict[str, bytes | str] = {
        "findings.json": _json(report.as_data(found)),
        "findings.txt": report.as_text(found) + "\n",
    }
    missing: list[str] = []

    def add(name: str, get: Callable[[], bytes | str | None], why: str) -> None:
        try:
            content = get()
        except (EnvgenError, OSError, ValueError) as problem:
            content, why = None, str(problem).splitlines()[0][:300]
        if content is None:
            missing.append(f"{name}: {why}")
        else:
            members[name] = content

    engine = connect() if context.engine is not None else None
    add("versions.json", lambda: _json(versions(found)), "")
    add("engine.json", lambda: _json(vars(context.engine)) if context.engine else None, "no Docker Engine")
    add("image.json", lambda: _json(vars(context.image)) if context.image else None, "the image is not built")
    _files(subject, add)
    if engine is not None:
        _containers(engine, subject, add)
    if engine is not None and context.container is not None and context.container.running:
        identity = context.container.id
        add("flashinfer-collect-env.json", lambda: _collect_env(engine, identity), "this FlashInfer has no collect-env")
        add("pip-list.txt", lambda: _pip_list(engine, identity), "no pip in the container")
    else:
        missing.append("flashinfer-collect-env.json: no running container")
    members["README.txt"] = _readme(members, missing)
    return members


def secrets_of(subject: Subject, found: Report) -> set[str]:
    """Values to look for everywhere: of the shell, of what the profile calls secrets, of the container."""
    named = {name: os.environ[name] for name in subject.profile.secrets if name in os.environ}
    container = found.context.container
    inside = dict(container.env) if container else {}
    known = {*secret_values(os.environ), *secret_values(inside), *named.values()}
    return known | {inside[name] for name in subject.profile.secrets if inside.get(name)}


def versions(found: Report) -> dict[str, Any]:
    """Versions of envgen, of this machine and of what the probe saw."""
    engine = found.context.engine
    return {
        "envgen": __version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "engine": engine.version if engine else None,
        "profile": found.context.profile.name,
    }


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, sort_keys=True, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value)


def _files(subject: Subject, add: Add) -> None:
    """The project file, the local one, the lock, the rendered files, the newest logs."""
    root = subject.root
    for name in (
        subject.project_file,
        "envgen.local.yaml",
        "envgen.lock",
        subject.profile.dockerfile,
        subject.profile.compose_file,
    ):
        path = root / str(name)
        add(f"project/{name}", lambda path=path: _whole(path), "not there")  # type: ignore[misc]
    logs = [path for path in state_dir(root, "logs").glob("*.log") if stat.S_ISREG(path.lstat().st_mode)]
    for path in sorted(logs, key=lambda one: one.lstat().st_mtime)[-LOGS:]:
        add(f"logs/{path.name}", lambda path=path: _end(path), "")  # type: ignore[misc]


def _whole(path: Path) -> bytes | None:
    """A file of the project; a link may lead to private files."""
    try:
        return files.read(path, follow=False)
    except FileNotFoundError:
        return None


def _end(path: Path) -> bytes:
    with files.opened(path, follow=False) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        return file.read(LOG_BYTES)


def _containers(
    engine: Engine, subject: Subject, add: Callable[[str, Callable[[], bytes | str | None], str], None]
) -> None:
    for one in ours(engine.containers(subject.profile.compose_name, all=True), subject.root):
        add(f"containers/{one.service or one.name}.json", lambda one=one: _json(vars(one)), "")  # type: ignore[misc]
        add(f"logs/{one.service or one.name}.log", lambda one=one: engine.logs(one.id, tail=LOG_LINES), "")  # type: ignore[misc]


def _collect_env(engine: Engine, identity: str) -> str | None:
    answer = run.ask(run.in_container(engine, identity, workdir="/"), "python3", COLLECT_ENV, {}, timeout=60)
    return None if isinstance(answer, run.Failure) else _json(answer)


def _pip_list(engine: Engine, identity: str) -> bytes | None:
    answer = engine.exec(identity, ["python3", "-m", "pip", "list", "--format=freeze"], workdir="/", timeout=60)
    return answer.stdout if answer.code == 0 else None


def _readme(members: Mapping[str, Any], missing: list[str]) -> str:
    lines = ["Made by `envgen doctor --bundle`. Secrets, home folders, host and user names were taken out.", ""]
    lines += [f"  {name}" for name in sorted(members)]
    lines += ["", "Not here:", *(f"  {line}" for line in missing)] if missing else []
    return "\n".join(lines) + "\n"
