"""The matrix of a project: a row a variant, release and day, with what is not measured yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jinja2

from envgen.bench.compare import MatrixCell, median_of
from envgen.bench.record import RunRecord
from envgen.binding import JsonDict
from envgen.files import data_dir
from envgen.text import shell_line, visible

TODO = "TODO"
DEFAULT = MatrixCell(32, 2048)  # what `bench` measures unless told otherwise
_TITLES = "variant, release, day, test, prefill t/s, decode t/s, first token ms, answers, is, run"
HEAD = _TITLES.split(", ")


@dataclass(frozen=True)
class MatrixRow:
    """What one run measured in one cell; without ``run`` nothing was measured yet.

    ``made_of``: what somebody needs to make it again: lock, flags, kernels, driver, commits.
    """

    variant: str
    test: str
    release: str = ""
    day: str = ""
    prefill_tps: float | None = None
    decode_tps: float | None = None
    ttft_ms: float | None = None
    answers: str = ""
    rank: str = ""  # best, newest, or both
    run: str = ""
    start: str = ""  # the command that starts it
    made_of: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> JsonDict:
        """For JSON."""
        return asdict(self)

    def cells(self) -> tuple[str, ...]:
        """As a line of the table."""
        if not self.run:
            todo = [TODO] * 4
            return (self.variant, "", "", self.test, *todo, "", "")
        figures = []
        for value in (self.prefill_tps, self.decode_tps, self.ttft_ms):
            figures.append("-" if value is None else f"{value:,.1f}")
        head = (self.variant, self.release, self.day, self.test)
        answers = self.answers or TODO
        return (*head, *figures, answers, self.rank, self.run)


def rows_of(
    records: Iterable[RunRecord],
    profile: str,
    service: str,
    variants: Sequence[str],
    tests: Sequence[str] = (),
) -> list[MatrixRow]:
    """The best and the newest row of each variant and test of a service, and one for each of
    ``tests`` that one of ``variants`` lacks. ``records``: oldest first. Without ``tests``, a
    variant lacks what `bench` measures if it has no row.
    """
    groups: dict[tuple[str, str], list[MatrixRow]] = {}
    verdicts = {}
    for run in records:
        environment = run.environment
        if environment.get("profile") != profile or environment.get("service") != service:
            continue
        if run.kind == "answers":
            verdicts[_name(run), _inner(run, "image", "id")] = run.outcome
        if run.kind == "bench":
            for row in _rows(run):
                groups.setdefault((row.variant, row.test), []).append(row)
    rows = []
    for measured in groups.values():
        rows += _kept(measured, verdicts)
    known = {row.variant for row in rows}
    for name in variants:
        wanted = tests or [str(DEFAULT)] * (name not in known)
        rows += [MatrixRow(name, test) for test in wanted if (name, test) not in groups]
    order = {name: number for number, name in enumerate(variants)}

    def place(row: MatrixRow) -> tuple[Any, ...]:
        """A longer name of a test has larger numbers in it."""
        return order.get(row.variant, 99), row.variant, len(row.test), row.test, row.day

    return sorted(rows, key=place)


def _inner(run: RunRecord, key: str, name: str) -> str:
    """A text of the environment, two levels deep; "" without it."""
    inner = run.environment.get(key)
    return str(inner.get(name, "")) if isinstance(inner, Mapping) else ""


def _kept(measured: list[MatrixRow], verdicts: Mapping[tuple[str, str], str]) -> list[MatrixRow]:
    newest = measured[-1]
    best = max(measured, key=lambda row: row.decode_tps or 0.0)
    ranks = [(best, "best"), (newest, "newest")]
    if best is newest:
        ranks = [(best, "best and newest")]
    kept = []
    for row, rank in ranks:
        answers = verdicts.get((row.variant, row.made_of.get("image", "")), "")
        kept.append(replace(row, rank=rank, answers=answers))
    return kept


def _name(run: RunRecord) -> str:
    """The variant of a run, with the flags and whatever else was set for it; not what its log has
    to say.
    """
    environment = run.environment
    service = f"services.{environment['service']}."
    parts = [str(environment.get("variant") or "plain")]
    for value in map(str, environment.get("sets", ())):
        if not value.startswith(f"{service}ready."):
            parts.append(value.removeprefix(f"{service}args."))
    name = ", ".join(parts)
    return f"{name} (other settings)" if environment.get("differs") else name


def _start(run: RunRecord) -> str:
    """The command that starts what was measured, typed in the project's folder."""
    environment = run.environment
    words = ["envgen", "up", environment["service"], "-p", environment["profile"]]
    for option, values in (
        ("--variant", [environment.get("variant")]),
        ("--file", [environment.get("file")]),
        ("--set", environment.get("sets", ())),
    ):
        words += [word for value in values if value for word in (option, value)]
    return shell_line(map(str, words))


def _rows(run: RunRecord) -> Iterator[MatrixRow]:
    """A run's cells, each with the medians of its figures."""
    environment = run.environment
    made_of = {
        "image": _inner(run, "image", "id"),
        "lock": str(environment.get("lock", "")),
        "flags": " ".join(map(str, environment.get("flags") or ())),
        "kernels": "; ".join(map(str, environment.get("kernels") or ())),
        "driver": _inner(run, "gpu", "driver"),
        "GPU": _inner(run, "gpu", "name"),
    }
    for name, source in (environment.get("sources") or {}).items():
        made_of[f"source {name}"] = str(source)
    for cell in run.summary.get("cells", ()):
        figures = [median_of(cell, name) for name in ("prefill_tps", "decode_tps", "ttft_ms")]
        if not cell.get("failed") and figures != [None, None, None]:
            prefill, decode, first_token = figures
            if cell.get("fault"):  # of fewer runs than asked
                decode = None
            yield MatrixRow(
                _name(run),
                str(cell["test"]),
                _inner(run, "versions", "vllm"),
                f"{run.started:%Y-%m-%d}",
                prefill,
                decode,
                first_token,
                run=run.id,
                start="" if environment.get("differs") else _start(run),
                made_of={name: text for name, text in made_of.items() if text},
            )


def strangers(*, autoescape: bool) -> jinja2.Environment:
    """The templates of what records say, which are texts of strangers: each is safe to print."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_dir("templates")),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )


def markdown(title: str, rows: Sequence[MatrixRow], targets: Sequence[str]) -> str:
    """The file results/matrix.md."""
    template = strangers(autoescape=False).get_template("matrix.md.j2")
    return template.render(title=title, head=HEAD, rows=rows, targets=targets) + "\n"
