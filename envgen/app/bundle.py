"""`envgen doctor --bundle FILE`: what is needed for a diagnosis elsewhere, without secrets."""

from __future__ import annotations

import json
import os
import platform
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envgen import __version__, files
from envgen.app.doctor import Looked, joined
from envgen.bundle import write_bundle
from envgen.doctor import report
from envgen.doctor.gather import attempt
from envgen.doctor.model import Subject
from envgen.doctor.run import Report
from envgen.engine.base import Engine
from envgen.engine.owner import ours
from envgen.engine.session import DOCTOR, hurry
from envgen.errors import EnvgenError
from envgen.files import state_dir
from envgen.inside import run
from envgen.redact import secret_values
from envgen.text import counted, progress

Add = Callable[[str, Callable[[], "bytes | str | None"], str], None]  # name, how to get it, why there may be none
LOG_LINES = 5000  # of each container
LOG_BYTES = 4 << 20  # of each build log: its end
LOGS = 3  # newest build logs
COLLECT_ENV = run.Program(("collect_env",))


def write(target: Path, looked: Sequence[Looked]) -> None:
    """Collect and write; of several machines, a folder each. What can't be had is a line in its README."""
    hurry(DOCTOR)
    found = joined(looked)
    members: dict[str, bytes | str] = {
        "findings.json": _json(report.as_data(found)),
        "findings.txt": report.as_text(found) + "\n",
    }
    missing: list[str] = []
    for one in looked:
        members |= collect(one, missing, f"{one.at.node}/" if len(looked) > 1 else "")
    _files(looked[0].subject, _adder(members, missing))
    members["README.txt"] = _readme(members, missing)
    write_bundle(target, members, known=set().union(*(secrets_of(one) for one in looked)))
    files = counted(len(members), "file")
    progress(f"  wrote {target}: {files}, secrets and names taken out; look into it before you send it")


def _adder(members: dict[str, bytes | str], missing: list[str], folder: str = "") -> Add:
    def add(name: str, get: Callable[[], bytes | str | None], why: str) -> None:
        name = folder + name
        try:
            content = get()
        except (EnvgenError, OSError, ValueError) as problem:
            content, why = None, str(problem).splitlines()[0][:300]
        if content is None:
            missing.append(f"{name}: {why}")
        else:
            members[name] = content

    return add


def collect(one: Looked, missing: list[str], folder: str) -> dict[str, bytes | str]:
    """The members of one machine by name."""
    context, members = one.report.context, dict[str, bytes | str]()
    add = _adder(members, missing, folder)
    engine = attempt(one.at.connect) if context.engine is not None else None
    add("versions.json", lambda: _json(versions(one.report)), "")
    add("engine.json", lambda: _json(vars(context.engine)) if context.engine else None, "no Docker Engine")
    add("image.json", lambda: _json(vars(context.image)) if context.image else None, "the image is not built")
    if engine is not None:
        _containers(engine, one.subject, add)
    if engine is not None and context.container is not None and context.container.running:
        identity = context.container.id
        add("flashinfer-collect-env.json", lambda: _collect_env(engine, identity), "this FlashInfer has no collect-env")
        add("pip-list.txt", lambda: _pip_list(engine, identity), "no pip in the container")
    else:
        missing.append(f"{folder}flashinfer-collect-env.json: no running container")
    return members


def secrets_of(one: Looked) -> set[str]:
    """Values to look for everywhere: of the shell, of what the profile calls secrets, of the container."""
    subject, container = one.subject, one.report.context.container
    named = {name: os.environ[name] for name in subject.profile.secrets if name in os.environ}
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


def _containers(engine: Engine, subject: Subject, add: Add) -> None:
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
