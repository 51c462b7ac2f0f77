"""`smoke` and `accept`: criteria for a serving environment, with verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from envgen.bench import answers
from envgen.bench.client import COMPLETIONS, BenchTarget, Refused, together, tokens
from envgen.bench.facts import Vitals
from envgen.bench.tools import CellResult
from envgen.live import doing
from envgen.logpattern import LogPattern
from envgen.serve import chat, readiness
from envgen.text import shorten

PASSED, FAILED, UNKNOWN = "passed", "failed", "not checked"
SHORT, LONG, PARALLEL = 12, 4096, 4
LOAD_GROWTH = 5_000_000_000  # bytes
_NO_CONTAINER = "no container is known: name it with --container"
GRAPHS = r"Graph capturing finished in"
Outcome = tuple[str, dict[str, Any]]  # passed or failed, and the summary for JSON and the record


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


def outcome(criteria: Sequence[Criterion], *, strict: bool = False, **more: Any) -> Outcome:
    """``failed`` if a criterion failed or, with ``strict``, was not checked."""
    bad = (FAILED, UNKNOWN) if strict else (FAILED,)
    word = FAILED if any(one.verdict in bad for one in criteria) else PASSED
    return word, {"criteria": [asdict(one) for one in criteria], **more}


@dataclass
class Trial:
    """A run against a server. ``look``: the container's vitals, if known; ``alive``: whether its program still runs."""

    target: BenchTarget
    look: Callable[[], Vitals | None] = lambda: None
    alive: Callable[[], bool] | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)


def smoke(trial: Trial) -> list[Criterion]:
    """The questions of `up`, some prompts at once, and a long one. ServerGone without an answer."""
    target, limit = trial.target, trial.target.max_len
    flags = chat.chat_flags(trial.environment.get("flags", ()))
    with doing("smoke", "first answers"):
        question = readiness.Question(target.model, api_key=target.key, chat=flags)
        first = readiness.ask(target.url, question, timeout=target.silence)
    wanted = "a text with finite log probabilities; a chat and a tool call, if the server has them"
    found = [criterion("first answers", first.ready, first.why or repr(shorten(first.text, 60)), wanted)]
    found += [criterion(name, *verdict, "no raw markup, not reasoning alone") for name, verdict in first.chats.items()]
    with doing("smoke", "parallel"):
        faults = [fault for fault in together(lambda _: fault_of(target, 32), range(PARALLEL)) if fault]
    seen = f"{len(faults)} failed: {faults[0]}" if faults else f"all {PARALLEL} succeed"
    found.append(criterion(f"{PARALLEL} in parallel", not faults, seen, "all succeed"))
    length = LONG if limit is None else max(1, min(LONG, limit - SHORT))
    note = "" if length == LONG else f"adapted: the server's context is {limit} tokens"
    with doing("smoke", "long prompt"):
        fault = fault_of(target, length)
    name = f"prefill of {length} tokens"
    return [*found, criterion(name, not fault, fault or "a text", "no time-out, no error", note)]


def fault_of(target: BenchTarget, length: int) -> str:
    """What is wrong with the answer to a random prompt of ``length`` tokens; "": nothing."""
    try:
        reply = target.ask(COMPLETIONS, {"prompt": tokens(length), "max_tokens": SHORT, "ignore_eos": True})
    except Refused as error:
        return str(error)
    choices = reply.get("choices") if isinstance(reply, dict) else None
    return "" if isinstance(choices, list) and choices else "the reply is not a completion"


def load(cell: CellResult, before: Vitals | None, after: Vitals | None, requests: int) -> list[Criterion]:
    """The criteria for a load that a tool sent: no request failed, and what it left behind."""
    note = "without GPU memory, which nvidia-smi doesn't show" if after and after.gpu_memory is None else ""
    why = f": {cell.fault}" if cell.failed else ""
    grown, seen = _memory(before, after)
    zombies = None if after is None else f"{len(after.zombies)} {', '.join(after.zombies)}".strip()
    return [
        criterion("requests", not cell.failed, f"{cell.failed} of {requests} failed{why}", "0 failed"),
        criterion("memory growth, without a restart", grown, seen, f"less than {gigabytes(LOAD_GROWTH)}", note),
        criterion("zombie processes", None if after is None else not after.zombies, zombies or _NO_CONTAINER, "0"),
    ]  # fmt: skip


def _memory(before: Vitals | None, after: Vitals | None) -> tuple[bool | None, str]:
    if before is None or after is None:
        return None, _NO_CONTAINER
    if after.restarted(before):
        return False, "the server was restarted meanwhile"
    growth = after.growth(before)
    return growth < LOAD_GROWTH, gigabytes(growth)


def latency(cell: CellResult, max_ttft: float | None, max_per_token: float | None) -> list[Criterion]:
    """The limits, in milliseconds, for the medians of a cell with one request at a time."""
    medians = {name: figure.median for name, figure in cell.figures.items()}
    rate, found = medians.get("decode_tps"), []
    token = 1000 / rate if rate else None
    for name, limit, value in (
        ("first token", max_ttft, medians.get("ttft_ms")), ("time per token", max_per_token, token)
    ):  # fmt: skip
        if limit is not None:
            good, seen = (None, "not measured") if value is None else (value <= limit, f"{value:.1f} ms, the median")
            found.append(criterion(f"{name} of {cell.cell}", good, seen, f"at most {limit:g} ms"))
    return found


def of_answers(name: str, verdict: str, seen: str) -> Criterion:
    """A row of `envgen answers` as a criterion."""
    good = None if verdict == answers.UNKNOWN else verdict in (answers.SAME, answers.CLOSE)
    return criterion(name, good, f"{verdict}: {seen}", "same or close")


def log_shows(
    expect: Mapping[str, str], forbid: Mapping[str, str], log: str | None, flags: Sequence[str] | None, gpu: bool
) -> list[Criterion]:
    """The log has the lines that the profile expects, none that it forbids, and captured CUDA graphs on a GPU."""
    name, wanted = "backends in the log", "as the profile expects"
    if log is None:
        return [criterion(name, None, _NO_CONTAINER, wanted)]
    lines = [line[:4000] for line in log.splitlines()]

    def first(pattern: str) -> str:
        matcher = LogPattern(pattern)
        return shorten(next((line for line in lines if matcher.found_in(line)), ""), 120)

    found = []
    if not expect and not forbid:
        found.append(criterion(name, None, "the profile expects nothing", wanted, "set ready.expect of the service"))
    for patterns, there, title, word in ((expect, True, "log shows", ""), (forbid, False, "log is free of", "not ")):
        for key, pattern in patterns.items():
            seen = first(pattern)
            found.append(criterion(f"{title} {key}", bool(seen) is there, seen or "no such line", word + pattern))
    if gpu:
        eager = "--enforce-eager" in (flags or ())
        seen = first(GRAPHS) or ("switched off by --enforce-eager" if eager else "")
        found.append(criterion("CUDA graphs captured", bool(seen), seen or "no such line", f"`{GRAPHS}` in the log"))
    return found


def gigabytes(size: int) -> str:
    """Bytes as gigabytes (10^9)."""
    return f"{size / 1e9:.2f} GB"
