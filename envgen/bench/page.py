"""One self-contained HTML page of runs: tables, plots by matplotlib (SVG), what differed. No script, no network."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from envgen import files
from envgen.bench.compare import Comparison, compare, sections
from envgen.bench.record import SUFFIX, Record
from envgen.errors import RefusedError, ResultsError
from envgen.paths import templates_dir
from envgen.redact import redact
from envgen.text import reason_of, visible

_PLOTTED = ("prefill_tps", "decode_tps", "ttft_ms")


def write_page(target: Path, records: Sequence[Record]) -> None:
    """Write the page of ``records``, whole or not at all."""
    if target.exists() and not target.is_file():
        raise RefusedError(f"refusing to write {target}: it is not a file", hint="choose another name")
    if target.suffix == SUFFIX:
        raise RefusedError(f"refusing to write {target}: that is the name of a record", hint="such as compare.html")
    try:
        files.write(target, page(records).encode("utf-8"))
    except OSError as error:
        raise ResultsError(f"can't write {target}: {reason_of(error)}") from error


def page(records: Sequence[Record]) -> str:
    """The page as text: the same records give the same bytes."""
    found = compare(records)
    environment = Environment(
        loader=FileSystemLoader(templates_dir() / "results"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["safe_text"] = lambda text: visible(redact(str(text)))
    plots = [_plot(found, name) for name in _PLOTTED if any(row.metric.name == name for row in found.rows)]
    title = f"{len(records)} runs compared" if len(records) > 1 else records[0].title
    return environment.get_template("page.html").render(title=title, tables=sections(found), plots=plots)


def _plot(found: Comparison, name: str) -> str:
    """Means with one standard deviation, a line for each run. No name from a record enters the picture."""
    import matplotlib as mpl  # heavy, and only here

    mpl.use("svg")
    from matplotlib import pyplot

    rows = [row for row in found.rows if row.metric.name == name]
    # Fixed ids: the same records give the same bytes.
    with mpl.rc_context({"svg.hashsalt": "envgen", "font.size": 10, "text.parse_math": False}):
        figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
        try:
            for index, run in enumerate(found.runs):
                seen = [(place, one) for place, row in enumerate(rows) if (one := row.series[index])]
                spread = [one.sd or 0.0 for _, one in seen]
                axes.errorbar([place for place, _ in seen], [one.mean for _, one in seen], spread, fmt="o-", capsize=3,
                              label=run)  # fmt: skip
            axes.set_xticks(range(len(rows)), [str(row.cell) for row in rows], rotation=20, ha="right")
            axes.set_title(f"{rows[0].metric.label}, {rows[0].metric.unit}")
            axes.set_ylim(bottom=0)
            axes.grid(axis="y", alpha=0.3)
            if len(found.runs) > 1:
                axes.legend()
            out = io.StringIO()
            figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        finally:
            pyplot.close(figure)
    return out.getvalue().partition("<svg")[2].join(['<svg role="img"', ""])
