"""`envgen sweep`: each variant of a service is started, compared with the first one by its answers,
and measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from envgen.app.answers import GOOD, answered
from envgen.app.measure import MeasureOptions, bench, measure, results_folder
from envgen.app.predict import predict, release_in_engine
from envgen.app.session import Session
from envgen.app.stage import PLAIN, VariantSwitch, sessions_of
from envgen.bench import record
from envgen.bench.answers import BROKEN
from envgen.bench.checks import FAILED, PASSED, Outcome
from envgen.bench.record import RunRecord, plain
from envgen.bench.tools import Matrix
from envgen.binding import JsonDict, JsonObject
from envgen.deployment import LiveService
from envgen.engine.process import terminable
from envgen.errors import EnvgenError, NotFoundError, UsageError
from envgen.inside.run import NoAnswer
from envgen.predict.gpus import target
from envgen.text import duration, progress

FITTING = "fitting"  # of --variants: what `envgen predict` lists
FIGURES = {"prefill_tps": "prefill t/s", "decode_tps": "decode t/s", "ttft_ms": "first token ms"}


def forms_of(session: Session, service: str, names: Sequence[str]) -> dict[str, Session]:
    """The session of each name: variants, stacked ones (``a+b``), ``plain``, profiles, and
    ``fitting``.
    """
    forms: dict[str, Session] = {}
    for name in names:
        if name == FITTING and name not in session.profile().variants:
            forms |= fitting(session, service)
        elif form := sessions_of(session, name):
            forms[name] = form
        else:
            known = ", ".join(["plain", *session.profile().variants])
            raise UsageError(
                f"profile {session.profile().name} has no variant {name!r}", hint=f"known: {known}"
            )
    for form in forms.values():
        form.profile()  # all are right before anything is stopped
    return forms


def fitting(session: Session, service: str) -> dict[str, Session]:
    """The profile as it is, and with each backend that its release would take for this model and
    GPU.
    """
    deployment = session.deployment()
    profile = deployment.profile
    asked = predict(
        profile,
        service,
        release_in_engine(LiveService(deployment, service)),
        target(profile),
        pretend=False,
    )
    if isinstance(asked.answer, NoAnswer):
        raise NotFoundError(f"the release could not be asked what fits: {asked.answer}")
    forms = {"plain": session}
    ready = profile.services[service].ready
    for backend in asked.known.get("backends", ()):
        if backend["verdict"] != "accepted":
            continue
        step = backend["step"]
        changes = {f"args.{flag}": json.dumps(value) for flag, value in backend["args"].items()}
        if ready:  # what the profile says of its own kernels' lines
            if step in ready.expect:
                changes[f"ready.expect.{step}"] = "null"
            for key in ready.forbid:
                changes[f"ready.forbid.{key}"] = "null"
        sets = [f"services.{service}.{key}={value}" for key, value in changes.items()]
        form = session.with_(sets=(*session.sets, *sets))
        forms[f"{step}:{backend['backend']}"] = form
    return forms


def sweep(
    asked: MeasureOptions,
    service: str,
    forms: Mapping[str, Session],
    matrix: Matrix | None,
    *,
    quick: bool,
    fresh: bool,
) -> tuple[Outcome, Path]:
    """Compare the answers of each form of the service, and with a ``matrix`` its speed. Returns the
    outcome with its rows, and the record's path.

    An interrupted sweep of the same is continued, unless ``fresh``.
    """
    session = asked.session
    deployment = session.deployment()
    folder = results_folder(session.file)
    image = deployment.image.id if deployment.image else ""
    parameters = plain(
        {
            "service": service,
            "profile": deployment.profile.name,
            "variants": list(forms),
            "image": image,
            "matrix": matrix and asdict(matrix),
            "quick": quick,
            "sets": session.sets,
        }
    )
    stage = VariantSwitch(session, service)
    earlier = None if fresh else unfinished(folder, parameters)
    rows = _continued(earlier, session, stage) if earlier else {}
    before = (stage.before.variant or PLAIN) if stage.before else ""
    environment = {"profile": deployment.profile.name, "service": service, "before": before}
    with terminable(), record.start(folder, "sweep", environment, parameters) as run:
        for row in rows.values():
            run.sample(row)
        try:
            with stage:
                for number, (name, form) in enumerate(forms.items(), 1):
                    if name in rows:
                        continue
                    progress(f"{name} ({number} of {len(forms)})")
                    first = reference_among(rows.values())
                    reference = record.resolve(folder, first) if first else None
                    shown = replace(asked, session=form, service=service)
                    show = partial(stage.show, form)
                    rows[name] = measured_row(shown, name, show, reference, matrix, quick)
                    run.sample(rows[name])
        except KeyboardInterrupt:
            progress("interrupted: the same command continues with the next variant")
            raise
        good = all(not row["cause"] and row["verdict"] in GOOD for row in rows.values())
        outcome = PASSED if good else FAILED, {"rows": list(rows.values())}
        run.end(*outcome)
    return outcome, run.path


def _continued(earlier: RunRecord, session: Session, stage: VariantSwitch) -> JsonDict:
    """The rows of an interrupted sweep. What runs now, if anything, is what it left."""
    rows = {row["variant"]: row for row in earlier.samples}
    progress(f"continuing {earlier.id}: {', '.join(rows) or 'nothing'} done")
    stage.before = sessions_of(session, str(earlier.environment["before"]))
    return rows


def reference_among(rows: Iterable[JsonObject]) -> str:
    """The run that the next form is compared with: the first whose own answers are right."""
    return next((str(row["answers"]) for row in rows if row["verdict"] in GOOD), "")


def unfinished(folder: Path, parameters: JsonObject) -> RunRecord | None:
    """The newest sweep with these parameters, if it was interrupted."""
    same = [
        run
        for run in record.runs(folder)[0]
        if run.kind == "sweep" and run.parameters == parameters
    ]
    return same[-1] if same and same[-1].outcome == record.UNFINISHED else None


def measured_row(
    asked: MeasureOptions,
    name: str,
    show: Callable[[], float],
    reference: RunRecord | None,
    matrix: Matrix | None,
    quick: bool,
) -> JsonDict:
    """Show a form and measure it. A form that fails is a row with its cause."""
    row = blank_row(name)
    try:
        row["seconds"] = round(show(), 1)
        word, summary, path = answered(asked, reference, quick=quick)
        kept = record.load(path)
        row["verdict"] = word
        row["answers"] = kept.id
        row["kernels"] = kept.environment.get("kernels", [])
        progress(f"  answers: {word}{'' if reference else ', the reference of the others'}")
        if word not in GOOD:
            worst = [line for line in summary["rows"] if line["verdict"] == word]
            progress(f"    {worst[0]['name']}: {worst[0]['seen']}" if worst else "")
        if matrix and word != BROKEN:  # how fast it is wrong does not matter, and costs time
            (_, speed), path = measure(asked, "bench", asdict(matrix), bench(matrix))
            figures = medians(speed)
            lengths, fitting_lengths = len(matrix.cells()), len(speed["cells"])
            if fitting_lengths < lengths:
                row["cause"] = f"its context has room for {fitting_lengths} of {lengths} tests"
            row |= {"bench": record.load(path).id, "figures": figures, "targets": speed["targets"]}
            for cell in (cell for cell in speed["cells"] if cell["fault"]):
                count = f"{cell['failed']} failed: " if cell["failed"] else ""
                row["cause"] = f"{cell['test']}: {count}{cell['fault']}"
                progress(f"  {name} failed: {row['cause']}")
                break
    except EnvgenError as error:
        reasons = []
        for problem in error.problems:
            reasons += problem.message.strip().splitlines()
        whole = [line for line in reasons if not line.endswith(":")]
        row["error"] = str(error)
        row["cause"] = (whole or reasons)[0]
        progress(f"  {name} failed: {row['cause']}")
    return row


def blank_row(name: str) -> JsonDict:
    """A row without measurements."""
    texts = dict.fromkeys(("verdict", "answers", "bench", "cause"), "")
    return {"variant": name, "seconds": None, "figures": {}, "targets": [], "kernels": [], **texts}


def medians(summary: JsonObject) -> dict[str, float]:
    """The figures of a benchmark, by what a reader calls them."""
    cells = summary["cells"]
    figures = {
        f"{label} {cell['test']}" if len(cells) > 1 else label: cell[key]["median"]
        for cell in cells
        for key, label in FIGURES.items()
        if key in cell
    }
    if "memory" in summary:
        figures["memory GiB"] = summary["memory"] / 2**30
    return figures


def lines_of(rows: Sequence[JsonObject]) -> list[tuple[str, ...]]:
    """The table, its head first; a row whose answers are not the reference's is marked."""
    labels = dict[str, str]()
    for row in rows:
        labels |= _cells(row)
    lines = [("variant", "started", "answers", *labels, "cause")]
    for row in rows:
        verdict = row["verdict"] or "-"
        if verdict not in (*GOOD, "-"):
            verdict += " !"
        started = "-" if row["seconds"] is None else duration(row["seconds"])
        cells = dict.fromkeys(labels, "-") | _cells(row)
        lines.append((row["variant"], started, verdict, *cells.values(), row["cause"]))
    return lines


def _cells(row: JsonObject) -> dict[str, str]:
    """The figures of a row, and how far they are from each target, by the head of the column."""
    cells = {label: f"{figure:,.1f}" for label, figure in row["figures"].items()}
    for gap in row.get("targets", ()):
        cells[f"{gap['wanted']:g} {gap['target']}"] = f"{gap['percent']:+.0f} %"
    return cells
