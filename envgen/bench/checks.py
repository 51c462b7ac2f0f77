"""`smoke` and `accept`: criteria for a serving environment, with verdicts; and `trace`."""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from envgen.bench.client import UNANSWERED, WORDS, BenchTarget, Replies, Reply, send, tokens
from envgen.bench.compare import Table, flags
from envgen.bench.facts import Vitals
from envgen.bench.tools import CellResult, figures
from envgen.engine.client import Engine
from envgen.engine.values import MISSHAPEN
from envgen.errors import ServiceError, UsageError
from envgen.live import doing
from envgen.logpattern import LogPattern
from envgen.serve import chat
from envgen.serve.events import Completion, short_answer
from envgen.serve.readiness import PROMPT
from envgen.text import last_printed, progress, shorten

PASSED, FAILED, UNKNOWN = "passed", "failed", "not checked"
SHORT, LONG, PARALLEL, REPEATS = 12, 4096, 4, 5
PROMPT_TOKENS, REPLY_TOKENS = 64, 32  # of each request of the load
SMOKE_GROWTH, LOAD_GROWTH = 1_000_000_000, 5_000_000_000  # bytes
TOLERANCE = 0.2  # throughput may be this far below a reference
_NO_CONTAINER = "no container is known: name it with --container"
Judge = Callable[[Reply], "tuple[bool | None, str]"]
GRAPHS = r"Graph capturing finished in"


@dataclass(frozen=True)
class Criterion:
    """A criterion with its verdict. ``note``: what was adapted, or a hint."""

    name: str
    verdict: str
    seen: str
    wanted: str
    note: str = ""
    part: str = ""


def criterion(name: str, good: bool | None, seen: str, wanted: str, note: str = "") -> Criterion:
    """A criterion; ``good`` None: not checked."""
    return Criterion(name, UNKNOWN if good is None else PASSED if good else FAILED, seen, wanted, note)


class ServerGone(ServiceError):
    """The server stopped answering."""


@dataclass
class Trial:
    """A run against a server. ``look``: the container's vitals, if known; ``alive``: whether its program still runs."""

    target: BenchTarget
    record: Callable[[Mapping[str, Any]], None]
    look: Callable[[], Vitals | None] = lambda: None
    alive: Callable[[], bool] | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    replies: list[Reply] = field(default_factory=list)

    def ask(self, test: str, bodies: Sequence[Mapping[str, Any]], concurrency: int = 1, **cell: Any) -> Replies:
        """Send requests, and record each reply as it arrives. ServerGone if the server stops answering."""
        done = failed = 0
        step = max(1, len(bodies) // 10)

        def on_reply(reply: Reply) -> None:
            nonlocal done, failed
            done, failed = done + 1, failed + bool(reply.fault)
            self.replies.append(reply)
            self.record(reply.sample({"test": test, "concurrency": concurrency, **cell}))
            if len(bodies) >= 20 and (done % step == 0 or done == len(bodies)):
                progress(f"  {test}: {done} of {len(bodies)} requests" + (f", {failed} failed" if failed else ""))

        load = send(self.target, bodies, concurrency=concurrency, on_reply=on_reply, alive=self.alive)
        if load.gone:
            good = sum(not reply.fault for reply in load.replies)
            # Not the last fault: that may be of a reply that was cut off.
            faults = ["its process exited", *(reply.fault for reply in load.replies if reply.kind in UNANSWERED)]
            raise ServerGone(f"the server stopped answering after {good} good replies: {faults[-1]}")
        return load


# --- smoke ------------------------------------------------------------------------------------------------------------


def smoke(trial: Trial) -> list[Criterion]:
    """Quick checks; each runs even if others fail. ServerGone if the server stops answering."""
    target, limit = trial.target, trial.target.max_len
    length = LONG if limit is None else max(1, min(LONG, limit - SHORT))
    note = "" if length == LONG else f"adapted: the server's context is {limit} tokens"
    text = "a text, not reasoning alone, without raw Harmony markup"
    found: list[Criterion] = []

    def judged(name: str, good: bool | None, seen: str, wanted: str, note: str = "") -> None:
        found.append(criterion(name, good, seen, wanted, note))

    def ask(name: str, body: Mapping[str, Any], judge: Judge, wanted: str, note: str = "", **cell: int) -> None:
        with doing("smoke", name):
            reply = trial.ask(name, [body], **cell).replies[0]
        judged(name, *(_wrong(reply, target) or judge(reply)), wanted, note)

    def ask_chat(
        name: str, judge: Callable[[Completion, chat.ChatFlags], chat.Verdict], wanted: str, *, tool: bool
    ) -> None:
        body = {**chat.body(target.model, limit, given, tool=tool), "stream_options": {"include_usage": True}}
        with doing("smoke", name):
            reply = trial.ask(name, [body]).replies[0]
        if reply.kind == "status":
            verdict = chat.refused(reply.status, reply.fault, given)
        else:
            wrong = None if reply.fault and reply.answer.finish else _wrong(reply, target)
            verdict = wrong or judge(reply.answer, given)
        judged(name, *verdict, wanted)

    ask("short prompt", target.body(PROMPT, SHORT), _text, "a text")
    given = chat.chat_flags(trial.environment.get("flags", ()))
    ask_chat("chat", chat.judge_chat, text, tool=False)
    if given.tools:
        ask_chat("tool call", chat.judge_call, "get_weather is called with JSON that names a city", tool=True)
    ask("NaN/Inf in log probabilities", target.body(PROMPT, 4 * SHORT, logprobs=1), _finite, "all finite")
    parallel = [target.body(tokens(32), SHORT) for _ in range(PARALLEL)]
    with doing("smoke", "parallel"):
        bad = trial.ask("parallel", parallel, PARALLEL).faults
    judged(f"{PARALLEL} in parallel", not bad, bad or f"all {PARALLEL} succeed", "all succeed")
    ask(f"prefill of {length} tokens", target.body(tokens(length), SHORT), _prefill, "no time-out, no error", note,
        prompt_tokens=length, output_tokens=SHORT)  # fmt: skip
    before = trial.look()
    with doing("smoke", "repeats"):
        bad = trial.ask("repeats", [target.body(PROMPT, 4 * SHORT)] * REPEATS).faults
    good, seen = _memory(before, trial.look(), SMOKE_GROWTH)
    wanted = f"all succeed, memory grows by less than {gigabytes(SMOKE_GROWTH)}"
    judged(f"{REPEATS} repeats", not bad and good, bad or f"all succeed; memory growth: {seen}", wanted)
    return found


def _wrong(reply: Reply, target: BenchTarget) -> tuple[bool, str] | None:
    """The verdict on a reply that failed, or that another model gave; None for others."""
    if reply.fault:
        return False, reply.fault
    if target.names and reply.answer.model not in ("", *target.names):
        return False, f"answered by the model {reply.answer.model[:80]}, not {target.model}"
    return None


def _text(reply: Reply) -> tuple[bool | None, str]:
    return bool(reply.answer.text), repr(shorten(reply.answer.text, 60))


def _finite(reply: Reply) -> tuple[bool | None, str]:
    values = reply.answer.logprobs
    bad = sum(not math.isfinite(value) for value in values)
    return (not bad, f"{bad} of {len(values)} are not finite") if values else (None, "the server gives none")


def _prefill(reply: Reply) -> tuple[bool | None, str]:
    count, seconds = reply.answer.prompt_tokens or "unknown", reply.ttft or reply.latency
    return True, f"{count} tokens, first token after {seconds:.2f} s"


def _memory(before: Vitals | None, after: Vitals | None, limit: int) -> tuple[bool | None, str]:
    if before is None or after is None:
        return None, _NO_CONTAINER
    if after.restarted(before):
        return False, "the server was restarted meanwhile"
    growth = after.growth(before)
    return growth < limit, gigabytes(growth)


# --- the load ---------------------------------------------------------------------------------------------------------


def put_under_load(trial: Trial, requests: int, concurrency: int) -> tuple[list[Criterion], dict[str, Any]]:
    """Send a load; every fourth request is a chat. Returns criteria and a summary. ServerGone if the server stops
    answering."""
    target, before = trial.target, trial.look()
    chats = send(target, [target.chat("Hello", 2)]).replies[0].status == 200
    bodies = [
        target.chat(" ".join(random.choices(WORDS, k=PROMPT_TOKENS)), REPLY_TOKENS)
        if chats and number % 4 == 3 else target.body(tokens(PROMPT_TOKENS), REPLY_TOKENS)
        for number in range(requests)
    ]  # fmt: skip
    load = trial.ask("load", bodies, concurrency, prompt_tokens=PROMPT_TOKENS, output_tokens=REPLY_TOKENS)
    return judge_load(load, before, trial.look()), summary_of(load)


def judge_load(load: Replies, before: Vitals | None, after: Vitals | None) -> list[Criterion]:
    """The criteria for a load."""
    bad = [reply for reply in load.replies if reply.fault]
    errors = sum(reply.status >= 500 for reply in bad)
    why = f": {load.faults}" if bad else ""
    note = "without GPU memory, which nvidia-smi doesn't show" if after and after.gpu_memory is None else ""
    return [
        criterion("requests", not bad, f"{len(bad)} of {len(load.replies)} failed{why}", "0 failed"),
        criterion("5xx answers", not errors, str(errors), "0"),
        zombies(after),
        criterion("memory growth, without a restart", *_memory(before, after, LOAD_GROWTH),
                  f"less than {gigabytes(LOAD_GROWTH)}", note),
    ]  # fmt: skip


def zombies(vitals: Vitals | None) -> Criterion:
    if vitals is None:
        return criterion("zombie processes", None, _NO_CONTAINER, "0")
    names = f": {', '.join(vitals.zombies)}" if vitals.zombies else ""
    return criterion("zombie processes", not vitals.zombies, f"{len(vitals.zombies)}{names}", "0")


def summary_of(load: Replies) -> dict[str, Any]:
    """Requests, rates and latencies of a load, for the record."""
    good = [reply for reply in load.replies if not reply.fault]
    seconds = load.seconds or 1e-9

    def spread(values: Sequence[float]) -> dict[str, float]:
        import numpy as np  # heavy; it comes with scipy

        if not values:
            return {}
        percentiles = zip(("p50", "p90", "p99"), np.percentile(values, (50, 90, 99)), strict=True)
        return {name: round(float(value) * 1000, 3) for name, value in percentiles}

    return {
        "requests": len(load.replies), "failed": len(load.replies) - len(good), "seconds": round(load.seconds, 3),
        "requests_per_s": round(len(good) / seconds, 3),
        "total_tps": round(sum(reply.answer.output_tokens or 0 for reply in good) / seconds, 3),
        "ttft_ms": spread([reply.ttft for reply in good if reply.ttft is not None]),
        "latency_ms": spread([reply.latency for reply in good]),
    }  # fmt: skip


# --- accept -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Requirements:
    """The requirements of `accept`. Limits in milliseconds; None: no limit."""

    references: Mapping[str, Table] = field(default_factory=dict)
    max_ttft: float | None = None
    max_per_token: float | None = None
    expect: Mapping[str, str] = field(default_factory=dict)
    forbid: Mapping[str, str] = field(default_factory=dict)


def throughput(cells: Sequence[CellResult], required: Requirements) -> list[Criterion]:
    """Is each cell as fast as the references, within the tolerance?"""
    failed = sum(cell.failed for cell in cells)
    if failed:
        fault = next(cell.fault for cell in cells if cell.failed)
        return [criterion("throughput", False, f"{failed} requests failed: {fault}", "0")]
    found = []
    for name, other in required.references.items():
        own = [_compared(measured, metric, speed, name)
               for measured in cells for metric, speed in figures(other, measured.cell).items()]  # fmt: skip
        missing = f"{name} has no figure of {', '.join(str(measured.cell) for measured in cells)}"
        found += own or [criterion(f"throughput against {name}", None, missing, "a figure of the same test")]
    if not found:
        seen = ", ".join(f"{cell.cell}: {cell.figures.get('decode_tps', '-')}" for cell in cells)
        hint = "add --reference RUN, or a figure: --reference tg32=57.85"
        return [criterion("throughput", None, seen, "comparable with a reference", hint)]
    return found


def _compared(measured: CellResult, name: str, speed: float, other: str) -> Criterion:
    figure, note = measured.figures.get(name), ""
    if figure is None and name == "decode_tps" and (figure := measured.figures.get("reply_tps")):
        note = "replies arrived in one piece: tokens over the time of the whole reply, prefill included"
    least = speed * (1 - TOLERANCE)
    wanted = f"at least {least:,.2f} t/s: {other} has {speed:,.2f}, less {TOLERANCE:.0%}"
    title = f"{name.removesuffix('_tps')} of {measured.cell} against {other}"
    if figure is None:
        return criterion(title, None, "; ".join(measured.notes) or "not measured", wanted)
    return criterion(title, figure.mean >= least, f"{figure} t/s", wanted, note)


def latency(cells: Sequence[CellResult], replies: Sequence[Reply], required: Requirements) -> list[Criterion]:
    """The limits for the first token of a short prompt and for the time per token, at one request at a time."""
    first = [reply.ttft * 1000 for reply in replies if reply.ttft is not None]
    per_token = [(1000 / measured.figures[key].mean, f" ({measured.cell})")
                 for measured in cells if measured.cell.concurrency == 1
                 for key in ("decode_tps", "reply_tps") if key in measured.figures]  # fmt: skip
    found = []
    for name, limit, (value, where) in (
        ("first token of a short prompt", required.max_ttft, (median(first) if first else None, ", the median")),
        ("time per token", required.max_per_token, max(per_token, default=(None, ""))),
    ):
        if limit is not None:
            good, seen = (None, "not measured") if value is None else (value <= limit, f"{value:.1f} ms{where}")
            found.append(criterion(name, good, seen, f"at most {limit:g} ms"))
    return found


def log_shows(required: Requirements, log: str | None, flags: Sequence[str] | None, gpu: bool) -> list[Criterion]:
    """The log has the lines that the profile expects, none that it forbids, and captured CUDA graphs on a GPU."""
    name, wanted = "backends in the log", "as the profile expects"
    if log is None:
        return [criterion(name, None, _NO_CONTAINER, wanted)]
    lines = [line[:4000] for line in log.splitlines()]

    def first(pattern: str) -> str:
        matcher = LogPattern(pattern)
        return shorten(next((line for line in lines if matcher.found_in(line)), ""), 120)

    found = []
    if not required.expect and not required.forbid:
        hint = "set ready.expect of the service"
        found.append(criterion(name, None, "the profile expects nothing", wanted, hint))
    for patterns, there, title, word in (
        (required.expect, True, "log shows", ""),
        (required.forbid, False, "log is free of", "not "),
    ):
        for key, pattern in patterns.items():
            seen = first(pattern)
            found.append(criterion(f"{title} {key}", bool(seen) is there, seen or "no such line", word + pattern))
    if gpu:
        eager = "--enforce-eager" in (flags or ())
        seen = first(GRAPHS) or ("switched off by --enforce-eager" if eager else "")
        found.append(criterion("CUDA graphs captured", bool(seen), seen or "no such line", f"`{GRAPHS}` in the log"))
    return found


Outcome = tuple[str, dict[str, Any]]  # passed or failed, and the summary for JSON and the record


def outcome(criteria: Sequence[Criterion], *, strict: bool = False, **more: Any) -> Outcome:
    """``failed`` if a criterion failed or, with ``strict``, was not checked."""
    bad = (FAILED, UNKNOWN) if strict else (FAILED,)
    word = FAILED if any(one.verdict in bad for one in criteria) else PASSED
    return word, {"criteria": [asdict(one) for one in criteria], **more}


def gigabytes(size: int) -> str:
    """Bytes as gigabytes (10^9)."""
    return f"{size / 1e9:.2f} GB"


# --- trace: vLLM writes it, and it is copied out of the container -----------------------------------------------------

LARGEST_TRACE = 256 << 20  # bytes of all files of a trace
PIECE = 8 << 20  # bytes that are read at a time
_LIST = 'test ! -d "$0" || exec find "$0" -maxdepth 1 -type f -printf "%f\\t%T@\\t%s\\n"'
TRACED_PROMPT, TRACED_REPLY = 128, 16  # tokens
_NAME = re.compile(r"[A-Za-z0-9_][\w.+=-]{0,200}")
_HINT = (
    "give the service `args: {profiler-config: {profiler: torch, torch_profiler_dir: /tmp/traces}}` "
    "in a variant, and start it: envgen up SERVICE --variant NAME"
)


def folder_of(words: Sequence[str], env: Mapping[str, str]) -> str:
    """The folder of the server's traces. UsageError if it was started without torch's profiler."""
    given = flags(words)
    folder = given.get("--profiler-config.torch_profiler_dir") or env.get("VLLM_TORCH_PROFILER_DIR", "")
    with contextlib.suppress(*MISSHAPEN):
        folder = str(json.loads(given["--profiler-config"])["torch_profiler_dir"])
    if not folder.startswith("/"):
        raise UsageError("the server was started without torch's profiler, or its folder is not absolute", hint=_HINT)
    return folder


def capture(
    trial: Trial, engine: Engine, container: str, folder: str, keep: Callable[[str, bytes], None]
) -> dict[str, int]:
    """Profile one completion and pass each new file to ``keep``. Returns name -> bytes."""

    def files() -> dict[str, tuple[str, int]]:
        listed = _run(engine, container, "sh", "-c", _LIST, folder)
        rows = (line.split("\t") for line in listed.decode(errors="replace").splitlines())
        return {name: (time, int(size)) for name, time, size in rows}

    before = files()
    _post(trial, "/start_profile")
    try:
        load = trial.ask("trace", [trial.target.body(tokens(TRACED_PROMPT), TRACED_REPLY)])
    finally:
        progress("  the server writes its trace")
        _post(trial, "/stop_profile")
    if load.faults:
        raise ServiceError(f"the profiled request failed: {load.faults}")
    new = {name: found[1] for name, found in files().items() if before.get(name) != found}
    if not new:
        raise ServiceError(f"the profiler wrote no file into {folder}", hint="see `envgen logs`")
    if sum(new.values()) > LARGEST_TRACE or not all(map(_NAME.fullmatch, new)):
        listed = ", ".join(f"{name} ({size >> 20} MiB)" for name, size in new.items())
        raise ServiceError(f"the trace stays in the container's {folder}: {listed}",
                           hint=f"at most {LARGEST_TRACE >> 20} MiB are copied: profile fewer tokens")  # fmt: skip
    for name, size in new.items():
        words = ("dd", f"if={folder}/{name}", f"bs={PIECE}", "count=1", "status=none")
        keep(name, b"".join(_run(engine, container, *words, f"skip={n}") for n in range(-(-size // PIECE))))
    return new


def _run(engine: Engine, container: str, *argv: str) -> bytes:
    done = engine.exec(container, argv, timeout=600)
    if done.code:
        raise ServiceError(f"the container's trace files can't be read: {last_printed(done.stderr, done.code)}")
    return done.stdout


def _post(trial: Trial, path: str) -> None:
    url = trial.target.url + path
    try:
        status, document = short_answer("POST", url, trial.target.headers, trial.target.silence)
    except OSError as error:
        raise ServiceError(f"{url}: {error}") from None
    if status != 200:
        raise ServiceError(f"{url} answers {status}: {shorten(str(document), 160)}")
