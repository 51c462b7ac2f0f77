"""Steps: what `predict` says, against the logs of servers."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpu_day.day import Day, NotRun, Rows, kept, step
from gpu_day.models import MODELS, NAME, WHOLE, service_of

# What a server's log says of its choices and its memory.
CHOICES = {
    "attention": r"Using (?:AttentionBackendEnum\.)?(\w+)(?:(?: attention)? backend| for attention)",
    "moe": r"Using '?(\w+)'? (?:\w+ )?MoE backend",
    "linear": r"(?:Selected|Using) (\w*Kernel\w*) for",
    "mamba": r"Using (\S+) (?:GDN prefill kernel|Mamba SSU backend)",
}
FIGURES = {
    "model_gib": r"Model loading took ([\d.]+) GiB",
    "available_gib": r"Available KV cache memory: ([\d.]+) GiB",
    "tokens": r"KV cache size: ([\d,]+) tokens",
    "length": r"Maximum concurrency for ([\d,]+) tokens per request: [\d.]+x",
    "sequences": r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x",
}
STARTED = "Application startup complete"


def predicted(found: Mapping[str, Any]) -> dict[str, str]:
    """What `predict` answered, by step."""
    return {name: found[name]["backend"] for name in CHOICES if found.get(name)}


def logged(text: str) -> dict[str, Any]:
    """What a server's log says of its choices and its memory."""
    found: dict[str, Any] = {}
    for name, pattern in CHOICES.items():
        if seen := list(dict.fromkeys(re.findall(pattern, text))):
            found[name] = seen
    for name, pattern in FIGURES.items():
        if match := re.search(pattern, text):
            found[name] = float(match[1].replace(",", ""))
    return found


def compare(
    rows: Rows, name: str, found: Mapping[str, Any], seen: Mapping[str, Any], text: str
) -> None:
    """A row for each choice that the log shows, one for the lines and one for the cache."""
    expected = predicted(found)
    if not seen.get("attention") and not seen.get("moe") and not seen.get("tokens"):
        first = [line for line in text.splitlines() if re.search(r"Error|error:", line)]
        told = [one.get("message", "") for one in found.get("refusals", [])]
        why = (first[-1] if first else text[-200:])[-300:]
        rows.add(
            f"{name}: started",
            bool(told),
            why,
            "a start, unless predict names a refusal" + f": {told}" * bool(told),
        )
        return
    for key in CHOICES:
        if key in seen and key in expected:
            named = set(re.split(r"[,\s/]+", expected[key].lower()))
            logged_ = {word for one in seen[key] for word in one.lower().split("/")}
            rows.add(
                f"{name}: {key}",
                bool(named & logged_),
                f"log {', '.join(seen[key])}",
                expected[key],
            )
        elif key in seen:
            rows.add(f"{name}: {key}", None, f"log {', '.join(seen[key])}", "unknown")
    memory = found.get("memory") or {}
    room = seen.get("available_gib", 0) * (1 << 30)
    if room and seen.get("tokens") and memory.get("sequence"):
        tokens = room / memory["sequence"] * memory["context"]
        off = tokens / seen["tokens"] - 1
        rows.add(
            f"{name}: KV tokens in the memory that the server found",
            abs(off) <= 0.1,
            f"{seen['tokens']:.0f} in the log",
            f"{tokens:.0f} ({off:+.1%}), within 10 %",
        )
    if memory.get("room") and seen.get("tokens") and memory.get("sequence"):
        tokens = memory["room"] / memory["sequence"] * memory["context"]
        off = tokens / seen["tokens"] - 1
        rows.add(
            f"{name}: KV tokens as estimated",
            abs(off) <= 0.1,
            f"{seen['tokens']:.0f} in the log; model "
            f"{seen.get('model_gib')} GiB, free for the cache {seen.get('available_gib')} GiB",
            f"{tokens:.0f} ({off:+.1%}), within 10 %; weights {(memory.get('weights') or 0) / (1 << 30):.2f} GiB, "
            f"room {memory['room'] / (1 << 30):.2f} GiB",
        )


@step("log", "what was predicted, against the server's log")
def log(day: Day, rows: Rows) -> None:
    before = kept(day, "predict").get("data", {}).get("predict")
    if not before:
        raise NotRun("no prediction: run the step predict first")
    text = day.log(day.service)
    seen = logged(text)
    compare(rows, day.service, before, seen, text)
    rows.data["log"] = seen


@step("models", "predict against the log, model by model")
def models(day: Day, rows: Rows) -> None:
    if day.foreign or not (day.hub / NAME / "gpt-oss/config.json").exists():
        raise NotRun("no models: run the step model first")
    chosen = day.options.models or [name for name in MODELS if name != WHOLE]
    answers, texts = dict[str, Any](), dict[str, str]()
    if not day.two:
        day.envgen("down", day.service)  # its memory is needed
    batches = [
        chosen[at : at + day.options.at_once] for at in range(0, len(chosen), day.options.at_once)
    ]
    for batch in batches:
        with ThreadPoolExecutor(len(batch)) as pool:
            asked = {
                name: pool.submit(day.envgen, "predict", service_of(name), "--json")
                for name in batch
            }
            texts |= started(day, batch)
            answers |= {name: one.result().document for name, one in asked.items()}
        for name in batch:
            (day.work / "logs" / f"server-{name}.log").write_text(texts[name])
    for name in chosen:
        seen = logged(texts[name])
        compare(rows, name, answers[name], seen, texts[name])
        rows.data[name] = {
            "log": seen,
            "predict": predicted(answers[name]),
            "memory": answers[name].get("memory"),
        }


def started(day: Day, names: Sequence[str], limit: float = 400) -> dict[str, str]:
    """Start servers without waiting for an answer; their logs once they serve or have ended. They
    are removed.
    """
    services = [service_of(name) for name in names]
    begun = day.envgen("up", "--no-wait", "--no-predict", *services)
    until, open_ = time.monotonic() + limit, dict.fromkeys(names, "")
    waiting = set(names)
    while waiting and time.monotonic() < until:
        time.sleep(2)
        for name in sorted(waiting):
            text = day.log(service_of(name))
            container = day.container(service_of(name))
            state = (
                day.docker("inspect", "--format", "{{.State.Running}}", container).out.strip()
                if container
                else ""
            )
            open_[name] = text or begun.last
            if STARTED in text or state != "true":
                waiting.discard(name)
    day.envgen("down", *services)
    return open_


@step("whole", "all 36 layers in all of the memory: the estimate against the log")
def whole(day: Day, rows: Rows) -> None:
    if day.foreign or not (day.hub / NAME / WHOLE / "config.json").exists():
        raise NotRun("no models: run the step model first")
    if not day.two:
        day.envgen("down", day.service)
    answer = day.envgen("predict", service_of(WHOLE), "--json").document
    text = started(day, [WHOLE])[WHOLE]
    (day.work / "logs" / f"server-{WHOLE}.log").write_text(text)
    seen = logged(text)
    # A path, not a repository: the published size of its weights is added here.
    memory = answer.get("memory") or {}
    compare(rows, WHOLE, answer, seen, text)
    rows.data["whole"] = {"log": seen, "memory": memory}
    if (
        memory.get("sequence")
        and seen.get("tokens")
        and seen.get("model_gib")
        and answer.get("gpu")
    ):
        room = (
            int(answer["gpu"]["memory"] * 0.9)
            - int(seen["model_gib"] * (1 << 30))
            - memory["engine"]
        )
        tokens = room / memory["sequence"] * memory["context"]
        off = tokens / seen["tokens"] - 1
        rows.add(
            "KV tokens from the size of the loaded model",
            abs(off) <= 0.1,
            f"{seen['tokens']:.0f} in the log; "
            f"model {seen['model_gib']} GiB, free for the cache {seen.get('available_gib')} GiB",
            f"{tokens:.0f} ({off:+.1%}), within 10 %",
        )
