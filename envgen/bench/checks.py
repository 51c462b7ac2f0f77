"""`smoke`: criteria for a serving environment, with verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from envgen.bench import answers
from envgen.bench.client import COMPLETIONS, BenchTarget, Refused, tokens
from envgen.bench.facts import Vitals
from envgen.bench.tools import CellResult
from envgen.binding import JsonDict, JsonObject
from envgen.engine.values import MISSHAPEN
from envgen.live import doing
from envgen.profile.service import Ready
from envgen.serve import chat, readiness
from envgen.serve.events import Completion, NoCompletion
from envgen.serve.wait import Evidence
from envgen.text import shorten

PASSED = "passed"
FAILED = "failed"
UNKNOWN = "not checked"
SHORT, LONG = 12, 4096  # tokens
LOAD_GROWTH = 5_000_000_000  # bytes
Outcome = tuple[str, JsonDict]  # passed or failed, and the summary for JSON and the record


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
    return Criterion(
        name, UNKNOWN if good is None else PASSED if good else FAILED, seen, wanted, note
    )


def outcome(criteria: Sequence[Criterion], *, strict: bool = False, **more: Any) -> Outcome:
    """``failed`` if a criterion failed or, with ``strict``, was not checked."""
    bad = (FAILED, UNKNOWN) if strict else (FAILED,)
    word = FAILED if any(one.verdict in bad for one in criteria) else PASSED
    return word, {"criteria": [asdict(one) for one in criteria], **more}


def smoke(target: BenchTarget, flags: Sequence[str]) -> list[Criterion]:
    """The questions of `up`, and a long one. ServerGone without an answer."""
    limit = target.max_len
    with doing("smoke", "first answers"):
        question = readiness.Question(target.model, api_key=target.key, chat=chat.chat_flags(flags))
        first = readiness.ask(target.url, question, timeout=target.silence)
    wanted = "a text with finite numbers; a chat and a tool call, if the server has them"
    seen = first.why or repr(shorten(first.text, 60))
    rows = [criterion("first answers", first.ready, seen, wanted)]
    rows += [
        criterion(name, *verdict, "no raw markup, not reasoning alone")
        for name, verdict in first.chats.items()
    ]
    length = LONG if limit is None else max(1, min(LONG, limit - SHORT))
    note = "" if length == LONG else f"adapted: the server's context is {limit} tokens"
    with doing("smoke", "long prompt"):
        fault = fault_of(target, length)
    name = f"prefill of {length} tokens"
    return [*rows, criterion(name, not fault, fault or "a text", "no time-out, no error", note)]


def fault_of(target: BenchTarget, length: int, output: int = SHORT) -> str:
    """What is wrong with the answer of ``output`` tokens to a random prompt of ``length``; "":
    nothing.
    """
    body = {"prompt": tokens(length), "max_tokens": output, "ignore_eos": True}
    try:
        reply = target.ask(COMPLETIONS, body)
    except Refused as error:
        return str(error)
    try:
        completion = Completion().add(reply)
        counted = (reply.get("usage") or {}).get("completion_tokens")
    except (NoCompletion, *MISSHAPEN):
        return "the reply is not a completion"
    # Ends of texts that are ignored are tokens without letters.
    return "" if completion.text or counted else "the reply has no token"


def load(cell: CellResult, before: Vitals, after: Vitals, requests: int) -> list[Criterion]:
    """The criteria for a load that a tool sent: no request failed, and what it left behind."""
    note = "without GPU memory, which nvidia-smi doesn't show" if after.gpu_memory is None else ""
    why = f": {cell.fault}" if cell.failed else ""
    growth = after.memory - before.memory
    if after.gpu_memory is not None and before.gpu_memory is not None:
        growth += after.gpu_memory - before.gpu_memory
    restarted = (after.restarts, after.started_at) != (before.restarts, before.started_at)
    seen = "the server was restarted meanwhile" if restarted else f"{growth / 1e9:.2f} GB"
    zombies = f"{len(after.zombies)} {', '.join(after.zombies)}".strip()
    return [
        criterion(
            "requests", not cell.failed, f"{cell.failed} of {requests} failed{why}", "0 failed"
        ),
        criterion(
            "memory growth, without a restart",
            not restarted and growth < LOAD_GROWTH,
            seen,
            "less than 5.00 GB",
            note,
        ),
        criterion("zombie processes", not after.zombies, zombies, "0"),
    ]


def of_answers(row: JsonObject) -> Criterion:
    """A row of `envgen answers` as a criterion."""
    verdict = row["verdict"]
    good = None if verdict == answers.UNKNOWN else verdict in (answers.SAME, answers.CLOSE)
    return criterion(row["name"], good, f"{verdict}: {row['seen']}", "same or close")


def log_shows(ready: Ready | None, log: str, flags: Sequence[str], *, gpu: bool) -> list[Criterion]:
    """The log has the lines that the profile expects, none that it forbids, and captured CUDA
    graphs on a GPU.
    """
    expect, forbid = (ready.expect, ready.forbid) if ready else ({}, {})
    if gpu and "--enforce-eager" not in flags:
        expect = {**expect, "captured CUDA graphs": "Graph capturing finished in"}
    evidence = Evidence(expect, forbid)
    none = "no such line"
    for line in log.splitlines():
        evidence.feed(line[:4000])
    rows = [
        criterion(
            f"log shows {name}",
            name in evidence.seen,
            shorten(evidence.seen.get(name, none), 120),
            pattern,
        )
        for name, pattern in expect.items()
    ]
    if forbid:
        name, line = evidence.forbidden or ("what ready.forbid names", none)
        rows.append(
            criterion(
                f"log is free of {name}", not evidence.forbidden, shorten(line, 120), "no such line"
            )
        )
    hint = "set ready.expect of the service"
    return rows or [
        criterion("backends in the log", None, "the profile expects nothing", "as it expects", hint)
    ]
