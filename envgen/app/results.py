"""The results of a project as a whole: its matrix and its page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from envgen import __version__, files
from envgen.app.history import starts
from envgen.app.measure import results_folder, targets_of
from envgen.app.session import Session
from envgen.app.stage import PLAIN
from envgen.bench import matrix, page
from envgen.bench.compare import MatrixCell
from envgen.bench.matrix import MatrixRow
from envgen.bench.record import RunRecord, runs
from envgen.deployment import known_service
from envgen.errors import ResultsError
from envgen.profile.model import Profile
from envgen.text import progress, reason_of

STARTS = 12  # newest starts that are drawn


def service_named(profile: Profile, service: str | None) -> str:
    """``service``, else the first server. UsageError without one."""
    serving = [name for name, described in profile.services.items() if described.serves]
    name = service or "".join(serving[:1])
    known_service(profile, name)
    return name


def table(
    session: Session, service: str, names: Sequence[str] = (), tests: Sequence[str] = ()
) -> tuple[list[MatrixRow], list[RunRecord]]:
    """The matrix of a service, its variants in the order of the file and then ``names``, and all
    records. ``tests``: see ``rows_of``.
    """
    records, bad = runs(results_folder(session.file))
    for line in bad:
        progress(f"left out: {line}")
    profile = session.profile()
    variants = list(dict.fromkeys([PLAIN, *profile.variants, *names]))
    return matrix.rows_of(records, profile.name, service, variants, tests), records


def targets(profile: Profile, service: str) -> list[page.TargetLine]:
    """The targets for the model of a service. Those of one request without context are drawn."""
    lines = []
    for name, target in targets_of(profile, service).items():
        figures = target.figures
        place = MatrixCell(context=target.depth, concurrency=target.concurrency).place
        decode = figures.get("decode") or figures.get("tg32", "0")
        if place:
            decode = "0"
        listed = ", ".join(map(" ".join, figures.items()))
        text = f"{name}: {listed}{place} ({target.source})"
        lines.append(page.TargetLine(name, float(decode), text))
    return lines


def write_matrix(session: Session, service: str) -> Path:
    """Write results/matrix.md and .json. Returns the path of the first."""
    rows, _ = table(session, service)
    profile = session.profile()
    folder = results_folder(session.file)
    lines = [one.text for one in targets(profile, service)]
    text = matrix.markdown(f"{profile.name}: {service}", rows, lines)
    _write(folder / "matrix.md", text, folder)
    plain = [row.plain() for row in rows]
    text = json.dumps(plain, indent=1, ensure_ascii=False) + "\n"
    _write(folder / "matrix.json", text, folder)
    return folder / "matrix.md"


def write_page(
    session: Session, service: str | None, output: Path | None
) -> tuple[Path, list[MatrixRow]]:
    """Write the page of a service. Returns its path, and the rows of its matrix."""
    profile = session.profile()
    name = service_named(profile, service)
    rows, records = table(session, name)
    noted = starts(session.loaded().project.root, profile.name, name)[-STARTS:]
    phases = {f"{start.at[:16]} ({start.seconds:.0f} s)": start.phases for start in noted}
    made = (
        f"envgen {__version__}, {datetime.now(timezone.utc):%Y-%m-%d %H:%MZ}; {len(records)} runs"
    )
    title = f"{profile.project} {profile.name}, {name}"
    text = page.render(title, made, rows, records, targets(profile, name), phases)
    folder = results_folder(session.file)
    path = output or folder / "index.html"
    _write(path, text, folder if output is None else None)
    return path, rows


def _write(path: Path, text: str, folder: Path | None) -> None:
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        files.write(path, text.encode("utf-8", "backslashreplace"), within=folder)
    except OSError as error:
        raise ResultsError(
            f"can't write {path}: {reason_of(error)}", hint="the folder must exist and be writable"
        ) from error
