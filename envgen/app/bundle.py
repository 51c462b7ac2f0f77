"""`envgen doctor --bundle FILE`: what is needed for a diagnosis elsewhere, without secrets.

It holds what a crash bundle holds, of a service that may well run; the findings, the project's files and build logs.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from envgen import __version__, files
from envgen.app.doctor import Looked, joined
from envgen.bundle import as_json, write_bundle
from envgen.doctor import report
from envgen.doctor.collect import attempt
from envgen.doctor.model import Subject
from envgen.engine.session import hurry
from envgen.files import state_dir
from envgen.redact import secret_values
from envgen.serve import crash
from envgen.text import counted, progress, reason_of

PATIENCE = 60.0  # seconds for all questions to the engines together
LOG_BYTES = 4 << 20  # of each build log: its end
LOGS = 3  # newest build logs


def write(target: Path, looked: Sequence[Looked]) -> None:
    """Collect and write; of several machines, a folder each. What can't be had is a sentence in its place."""
    hurry(PATIENCE)
    members = collect(looked)
    write_bundle(target, members, known=set().union(*(secrets_of(one) for one in looked)))
    count = counted(len(members), "file")
    progress(f"  wrote {target}: {count}, secrets and names taken out; look into it before you send it")


def collect(looked: Sequence[Looked]) -> dict[str, bytes | str]:
    """The members by name."""
    found = joined(looked)
    about = "Made by `envgen doctor --bundle`. Secrets, home folders, host and user names were taken out.\n"
    members: dict[str, bytes | str] = {
        "findings.json": as_json(report.as_data(found)),
        "findings.txt": report.as_text(found) + "\n",
        **_files(looked[0].subject),
    }
    for one in looked:
        folder = f"{one.at.node}/" if len(looked) > 1 else ""
        context, profile = one.report.context, one.subject.profile
        engine = attempt(one.at.connect) if context.engine is not None else None
        if engine is None:
            about += f"There was no Docker Engine to ask{f' on {one.at.node}' if folder else ''}.\n"
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


def secrets_of(one: Looked) -> set[str]:
    """Values to look for everywhere: of the shell, of what the profile calls secrets, of the container."""
    container, named = one.report.context.container, one.subject.profile.secrets
    inside = dict(container.env) if container else {}
    known = {*secret_values(os.environ), *secret_values(inside)}
    return known | {value for name in named for place in (os.environ, inside) if (value := place.get(name, ""))}


def _files(subject: Subject) -> dict[str, bytes | str]:
    """The project file, the local one, the lock, the rendered files, the newest build logs."""
    profile = subject.profile
    names = (subject.project_file, "envgen.local.yaml", "envgen.lock", profile.dockerfile, profile.compose_file)
    there = {f"project/{name}": subject.root / str(name) for name in names}
    logs = [path for path in state_dir(subject.root, "logs").glob("*.log") if not path.is_symlink()]
    newest = sorted(logs, key=lambda one: one.lstat().st_mtime)[-LOGS:]
    there |= {f"logs/{path.name}": path for path in newest}
    return {name: _end(path) for name, path in there.items() if os.path.lexists(path)}


def _end(path: Path) -> bytes | str:
    """A file, or the end of a long one; a link may lead to private files."""
    try:
        with files.opened(path, follow=False) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            return file.read(LOG_BYTES)
    except OSError as error:
        return f"not available: {reason_of(error)}\n"
