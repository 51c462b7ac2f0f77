"""`envgen answers`: ask a server the committed questions, record its answers, and compare them with
a reference's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from envgen.app.measure import Measurement, MeasureOptions, measure, results_folder, service_of
from envgen.app.stage import VariantSwitch, sessions_of
from envgen.bench import answers, record
from envgen.bench.checks import Outcome
from envgen.bench.compare import differing
from envgen.bench.questions import BATCH, Asker, questions, scorer
from envgen.bench.record import Run, RunRecord
from envgen.binding import JsonDict
from envgen.errors import RefusedError
from envgen.live import doing, now_doing
from envgen.serve.chat import chat_flags
from envgen.text import progress

Agree = Callable[[str], bool]
GOOD = (answers.SAME, answers.CLOSE)


def ask(trial: Measurement, run: Run, reference: RunRecord | None, quick: bool = False) -> Outcome:
    """Ask the questions and record the answers. Returns the verdict, and a summary with its rows."""
    earlier = answers.read(reference) if reference else {}
    asked = questions(quick)
    progress(f"  {len(asked)} questions, alone and {BATCH} at once")
    with doing("answers", "the questions"):
        flags = chat_flags(trial.flags)
        asker = Asker(trial.target, flags, lambda step: now_doing("answers", step))
        given = asker.ask(asked)
        for answer in given.values():
            run.sample(answer.sample())
        scored = scorer(asker, earlier, given)
    own = answers.itself(given)
    names = {question.name for question in asked}
    other = answers.against(earlier, given, scored, names) if reference else []
    verdict = answers.verdict(own, other)
    rows = [row.plain() for row in (*other, *own)]
    summary: JsonDict = {"verdict": verdict, "rows": rows}
    if reference:
        now = replace(reference, environment=trial.environment)
        summary["reference"] = {
            "id": reference.id,
            "title": reference.title,
            "file": str(reference.path),
        }
        summary["differing"] = differing(reference, now, ("reference", "here"))
    return verdict, summary


def answered(
    asked: MeasureOptions, reference: RunRecord | None = None, *, quick: bool = False
) -> tuple[str, JsonDict, Path]:
    """Ask a running server. Returns the verdict, the summary, and the record's path."""
    parameters: JsonDict = {"quick": quick}
    if reference:
        parameters["reference"] = reference.id
    (verdict, summary), path = measure(
        asked, "answers", parameters, lambda trial, run: ask(trial, run, reference, quick)
    )
    return verdict, summary, path


def reference_of(
    asked: MeasureOptions, name: str, agree: Agree, *, quick: bool = False
) -> RunRecord:
    """The answers to compare with: a record's, those of the server at a URL, or those of a variant
    or profile, which is
    started for it after ``agree``, in place of what runs."""
    if name.startswith(("http://", "https://")):
        elsewhere = replace(asked, service=None, url=name, model=None)
        return record.load(answered(elsewhere, quick=quick)[2])
    other = sessions_of(asked.session, name) if asked.url is None else None
    if other is None:
        return record.resolve(results_folder(asked.session.file), name, "answers")
    running = service_of(asked)
    assert running is not None  # without --url
    service = running.name
    stage = VariantSwitch(asked.session, service)
    if not agree(
        f"{service} is stopped, {name} answers in its place, and {service} starts again. Do it?"
    ):
        raise RefusedError(f"--against {name} stops {service} for a while", hint="add --yes")
    with stage:
        stage.show(other)
        path = answered(replace(asked, session=other, service=service), quick=quick)[2]
    return record.load(path)
