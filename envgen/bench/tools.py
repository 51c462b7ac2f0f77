"""Run llama-benchy or ``vllm bench serve`` in a container, once for each cell, and read its
results.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from envgen.bench import meter
from envgen.bench.client import COMPLETIONS, WORDS, BenchTarget
from envgen.bench.compare import FigureRange, MatrixCell, number, table
from envgen.binding import JsonDict, JsonObject
from envgen.engine.values import MISSHAPEN, read_json
from envgen.errors import ServiceError, UsageError
from envgen.inside import run
from envgen.live import doing
from envgen.text import progress, visible

PROGRAM = run.Program("bench_tool")
LLAMA_BENCHY = "llama-benchy"
VLLM = "vllm"
_DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_bytes())
TOOLS: Mapping[str, Sequence[Any]] = _DATA["tools"]
# What `vllm bench serve` runs. The command line itself needs a distribution named `vllm`; builds
# for CPUs have another name.
_VLLM = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
_DETAILED = """
    --backend openai --dataset-name random --percentile-metrics ttft,tpot,itl,e2el
    --metric-percentiles 50,90,99 --result-dir {folder} --result-filename result --save-result
    --save-detailed --ignore-eos
"""
# Replies of exact length, and no coherence test, which random weights fail.
_BENCHY = """
    --latency-mode generation --book-url {book} --save-result {result} --format json --no-cache
    --exact-tg --skip-coherence --emit-progress {progress}
"""
FASTEST = 20_000  # tokens a second of a request; what is faster was held back and sent at once
LONGEST = 86400.0  # seconds for a cell; a tool without output is stopped earlier (--timeout)
BENCHY: Mapping[str, str] = _DATA["benchy"]


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
    failure, or which rate has fewer values than runs.
    """

    cell: MatrixCell
    samples: tuple[JsonObject, ...]
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
        rate = self.figures.get("total_tps") or self.figures.get("decode_tps")
        beside = meter.lines_of(self.beside, rate.median if rate else None)
        failed = [f"{self.failed} failed: {self.fault}"] if self.failed else []
        return [*self.notes, *beside, *failed]

    def plain(self) -> JsonDict:
        """For JSON and for the record."""
        return {
            "test": str(self.cell),
            **self.cell.sample,
            "seconds": self.seconds,
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
        words = self._vllm(cell) if self.plan.tool == VLLM else self._benchy(cell)
        called = f"{self.plan.tool} {self.version}"
        request = {
            "verb": "run",
            "words": [*words, "--model", self.target.model, "--tokenizer", self.tokenizer],
            "book": self._book(),
            "silence": self.target.silence,
            "metrics": f"{self.url}/metrics",
            "env": {"OPENAI_API_KEY": self.target.key} if self.target.key else {},
        }
        done = self.ask(request, LONGEST, f"{self.plan.tool} could not be run")
        tail = [visible(str(line)) for line in done.get("tail") or ()]
        last = "\n  its last lines:" + "".join(f"\n    {line}" for line in tail) if tail else ""
        if done.get("code") == -9:
            raise ServiceError(
                f"{called} printed nothing for {self.target.silence:g} s at {cell}{last}",
                hint=f"increase --timeout (now {self.target.silence:g})",
            )
        try:
            if done["code"]:
                raise ValueError(f"it ended with exit code {done['code']}")
            return self._measured(cell, read_json(done["result"]), done)
        except MISSHAPEN as error:
            raise ServiceError(
                f"the results of {called} at {cell} can't be read: {type(error).__name__}: {error}{last}",
                hint="docs/benchmarking.md lists the tested versions",
            ) from None

    def ask(self, request: JsonObject, timeout: float, what: str) -> JsonDict:
        """The answer of the program in the container. ServiceError, which says ``what`` failed."""
        reply = run.ask(self.execute, "python3", PROGRAM, request, timeout=timeout)
        if isinstance(reply, run.NoAnswer):
            raise ServiceError(f"{what}: {reply}")
        return reply

    def _measured(self, cell: MatrixCell, report: Any, done: JsonObject) -> CellResult:
        benchy = self.plan.tool != VLLM
        samples = benchy_samples(report, cell) if benchy else vllm_samples(report, cell)
        if benchy:  # its report has no request's length or failure
            ends = list(map(read_json, done["ended"]))
            report["output_lens"] = [end["total_tokens"] for end in ends]
            report["errors"] = [end["error"] for end in ends]
        notes = [
            f"the tool's lengths are those of another tokenizer: {line}"
            for line in done["fell_back"]
        ]
        faults = []
        # Both tools count a reply that ended early, or claims more than it has, as any other.
        for length, error in zip(report["output_lens"], report["errors"], strict=True):
            text = f"a reply has {length} of {cell.output} tokens"
            if error:
                faults.append(error.strip().splitlines()[-1])
            # llama-benchy does not count the tokens of pieces without text: markup, parts of a
            # character. Of random tokens a third are such, and once in a hundred replies half.
            elif benchy and cell.output / 4 <= length < cell.output:
                notes.append(text)
            elif length != cell.output:
                faults.append(text)
        runs = self.plan.runs
        answered = sum("ttft_ms" in one for one in samples)
        rates = sum("decode_tps" in one for one in samples)
        failed = max(len(faults), abs(runs * cell.concurrency - answered))
        if failed:
            faults.append("no figures in the tool's results")
        elif rates < runs and cell.output > 1 and (benchy or cell.concurrency == 1):
            faults.append(f"a decode rate in {rates} of {runs} runs: a reply in one piece has none")
            notes += faults
        return CellResult(
            cell,
            tuple(samples),
            float(done["seconds"]),
            failed,
            visible(faults[0] if faults else ""),
            tuple(map(visible, notes)),
            done["result"],
            {**meter.of_drafts(*done["drafts"]), **meter.of_gpus(done["meter"])},
        )

    def _benchy(self, cell: MatrixCell) -> list[str]:
        key = self.target.key or "EMPTY"  # as without the option
        words = ["-m", "llama_benchy", "--base-url", f"{self.url}/v1", "--api-key", key]
        sizes = f"--pp {cell.prompt} --tg {cell.output} --depth {cell.context}"
        load = f"--concurrency {cell.concurrency} --runs {self.plan.runs}"
        return [*words, *f"{sizes} {load} {_BENCHY}".split()]

    def _vllm(self, cell: MatrixCell) -> list[str]:
        words = ["-c", _VLLM, "--base-url", self.url, "--endpoint", COMPLETIONS]
        sizes = f"--random-input-len {cell.prompt} --random-output-len {cell.output} --random-prefix-len {cell.context}"
        load = f"--num-prompts {self.plan.runs * cell.concurrency} --max-concurrency {cell.concurrency}"
        seed = f"--seed {random.getrandbits(30)}"
        return [*words, *f"{sizes} {load} {seed} {_DETAILED}".split()]

    def _book(self) -> str:
        """A random text to cut prompts from, longer than any prompt."""
        longest = max(self.plan.pp) + max(self.plan.depth)
        return " ".join(random.choices(WORDS, k=max(20_000, 2 * longest)))


def find_tool(tool: BenchTool) -> BenchTool:
    """With the plan's tool, or else llama-benchy or vllm, and its version. UsageError if it is not
    installed.
    """
    tools = {name: row[:2] for name, row in TOOLS.items()}
    what = f"{tool.where} could not be asked for {tool.plan.tool or 'a tool'}"
    versions = tool.ask({"verb": "probe", "tools": tools}, 150, what)
    other = not tool.plan.tool and versions[VLLM] and not versions[LLAMA_BENCHY]
    name = tool.plan.tool or (VLLM if other else LLAMA_BENCHY)
    if not versions[name]:
        raise UsageError(f"{name} is not in {tool.where}", hint=TOOLS[name][2])
    if other:
        progress(f"  llama-benchy is not in {tool.where} (pip.tools): using `vllm bench serve`")
    return replace(tool, version=versions[name], plan=replace(tool.plan, tool=name))


def benchy_samples(report: JsonObject, asked: MatrixCell) -> list[JsonDict]:
    """The values of llama-benchy's JSON as samples, without the phase that fills the context."""
    samples = []
    for result in report["benchmarks"]:
        if result.get("is_context_prefill_phase"):
            continue
        for theirs, ours in BENCHY.items():
            values = (result.get(theirs) or {}).get("values") or []
            for value in map(_figure, values):
                if ours != "decode_tps" or value < FASTEST * asked.concurrency:
                    samples.append({**asked.sample, ours: value})
    return samples


def _figure(value: Any) -> float:
    """A figure of a tool. ValueError where it is none."""
    figure = number(value) or 0.0
    if figure > 0:
        return figure
    raise ValueError(f"{value!r} is not a figure")


def vllm_samples(report: JsonObject, asked: MatrixCell) -> list[JsonDict]:
    """The requests of ``vllm bench serve --save-detailed``, and the throughput of the whole run."""
    samples = []
    cell = asked.sample
    lists = (report["ttfts"], report["itls"], map(int, report["output_lens"]), report["errors"])
    for ttft, gaps, tokens, error in zip(*lists, strict=True):
        if error:
            continue
        sample = {**cell, "ttft_ms": _figure(ttft) * 1000}
        seconds = sum(map(float, gaps))
        # A reply of one or two pieces, or of pieces that came at once, has no rate.
        if len(gaps) > 1 and seconds * FASTEST > tokens > 1:
            sample["itl_ms"] = seconds * 1000 / (tokens - 1)  # the tool's TPOT
            if asked.concurrency == 1:
                sample["decode_tps"] = (tokens - 1) / seconds
        sample["latency_ms"] = (float(ttft) + seconds) * 1000
        samples.append(sample)
    if not samples:
        return samples
    rates = {
        "total_tps": _figure(report["output_throughput"]),
        "requests_per_s": _figure(report["request_throughput"]),
    }
    return [*samples, {**cell, **rates}]


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
    done = []
    for index, cell in enumerate(fitting):
        progress(f"  {cell} ({index + 1} of {len(fitting)})")
        with doing("cell", f"{cell} ({index + 1} of {len(fitting)})"):
            done.append(tool.measure(cell))
        on_cell(done[-1])
    return done
