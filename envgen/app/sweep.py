"""`envgen sweep`: each variant of a service is started, compared with the first one by its answers, and measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from envgen.app.answers import GOOD, answered
from envgen.app.measure import Asked, bench, measure
from envgen.app.predict import predict, release_in_engine
from envgen.app.session import Session
from envgen.app.stage import Stage, sessions_of
from envgen.bench import record
from envgen.bench.checks import FAILED, PASSED, Outcome
from envgen.bench.record import RunRecord
from envgen.bench.tools import Matrix
from envgen.engine.process import terminable
from envgen.errors import EnvgenError, NotFoundError, UsageError
from envgen.inside.run import NoAnswer
from envgen.predict.gpus import target
from envgen.text import duration, progress

FITTING = "fitting"  # of --variants: what `envgen predict` lists
FIGURES = {"prefill_tps": "prefill t/s", "decode_tps": "decode t/s", "ttft_ms": "first token ms"}


def forms_of(session: Session, service: str, names: Sequence[str]) -> dict[str, Session]:
    """The session of each name: variants, stacked ones (``a+b``), ``plain``, profiles, and ``fitting``."""
    found: dict[str, Session] = {}
    for name in names:
        if name == FITTING and name not in session.profile().variants:
            found |= fitting(session, service)
        elif form := sessions_of(session, name):
            found[name] = form
        else:
            known = ", ".join(["plain", *session.profile().variants])
            raise UsageError(f"profile {session.profile().name} has no variant {name!r}", hint=f"known: {known}")
    for form in found.values():
        form.profile()  # all are right before anything is stopped
    return found


def fitting(session: Session, service: str) -> dict[str, Session]:
    """The profile as it is, and with each backend that its release would take for this model and GPU."""
    deployment = session.deployment()
    profile = deployment.profile
    asked = predict(profile, service, release_in_engine(deployment, service), target(profile), pretend=False)
    if isinstance(asked.answer, NoAnswer):
        raise NotFoundError(f"the release could not be asked what fits: {asked.answer}")
    found = {"plain": session}
    ready = profile.services[service].ready
    for backend in asked.effective.get("backends", ()):
        if backend["verdict"] == "accepted":
            changes = {f"args.{flag}": json.dumps(value) for flag, value in backend["args"].items()}
            if ready:  # what the profile says of its own kernels' lines
                changes |= {f"ready.expect.{key}": "null" for key in ready.expect if key == backend["step"]}
                changes |= {f"ready.forbid.{key}": "null" for key in ready.forbid}
            sets = (f"services.{service}.{key}={value}" for key, value in changes.items())
            found[f"{backend['step']}:{backend['backend']}"] = session.with_(sets=(*session.sets, *sets))
    return found


def sweep(
    asked: Asked, service: str, forms: Mapping[str, Session], matrix: Matrix | None, *, quick: bool = False
) -> tuple[Outcome, Path]:
    """Measure the answers of each form of the service, and with a ``matrix`` its speed. Returns the outcome with its
    rows, and the record's path."""
    deployment = asked.session.deployment()
    folder = asked.results or deployment.root / "results"
    environment = {"profile": deployment.profile.name, "service": service}
    parameters = {"variants": list(forms), "matrix": asdict(matrix) if matrix else None, "quick": quick}
    rows: list[dict[str, Any]] = []
    with terminable(), record.start(folder, "sweep", environment, parameters) as run:
        with Stage(asked.session, service) as stage:
            for number, (name, form) in enumerate(forms.items(), 1):
                progress(f"{name} ({number} of {len(forms)})")
                show = partial(stage.show, form)
                here = replace(asked, session=form, service=service)
                rows.append(_row(here, name, show, matrix, _reference(folder, rows), quick))
                run.sample(rows[-1])
        outcome = PASSED if all(not row["cause"] and row["verdict"] in GOOD for row in rows) else FAILED
        run.end(outcome, {"rows": rows})
    return (outcome, {"rows": rows}), run.path


def _reference(folder: Path, rows: Sequence[Mapping[str, Any]]) -> RunRecord | None:
    """The answers of the first form that gave some."""
    ids = [row["answers"] for row in rows if row["answers"]]
    return record.resolve(folder, ids[0]) if ids else None


def _row(
    asked: Asked, name: str, show: Callable[[], float], matrix: Matrix | None, reference: RunRecord | None, quick: bool
) -> dict[str, Any]:
    """Show a form and measure it. A form that fails is a row with its cause."""
    row: dict[str, Any] = {"variant": name, "seconds": None, "verdict": "", "answers": "", "bench": "", "figures": {},
                           "kernels": [], "cause": ""}  # fmt: skip
    try:
        row["seconds"] = round(show(), 1)
        word, summary, path = answered(asked, reference, quick=quick)
        kept = record.load(path)
        row |= {"verdict": word, "answers": kept.id, "kernels": kept.environment.get("kernels", [])}
        progress(f"  answers: {word}" + ("" if reference else ", the reference of the others"))
        if word not in GOOD:
            worst = [line for line in summary["rows"] if line["verdict"] == word]
            progress(f"    {worst[0]['name']}: {worst[0]['seen']}" if worst else "")
        if matrix:
            (_, found), path = measure(asked, "bench", asdict(matrix), bench(matrix))
            cells = found["cells"]
            medians = {f"{label} {cell['test']}" if len(cells) > 1 else label: cell[key]["median"]
                       for cell in cells for key, label in FIGURES.items() if key in cell}  # fmt: skip
            row |= {"bench": record.load(path).id, "figures": medians}
    except EnvgenError as error:
        row["cause"] = error.problems[0].message.strip().splitlines()[0]
        progress(f"  {name} failed: {row['cause']}", always=True)
    return row


def lines_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The table, its head first; a row whose answers are not the reference's is marked."""
    labels = list(dict.fromkeys(label for row in rows for label in row["figures"]))
    found: list[tuple[str, ...]] = [("variant", "started", "answers", *labels, "cause")]
    for row in rows:
        marked = row["verdict"] + ("" if row["verdict"] in GOOD or not row["verdict"] else " !")
        figures = (f"{row['figures'][label]:,.1f}" if label in row["figures"] else "-" for label in labels)
        started = "-" if row["seconds"] is None else duration(row["seconds"])
        found.append((row["variant"], started, marked or "-", *figures, row["cause"]))
    return found
