"""Runs inside a server's container: the traces of torch's profiler, summed by kernel.

A trace is a file of Chrome's trace format, often compressed. Kernels of a GPU are its events of the
category ``kernel`` (and ``gpu_memcpy``, ``gpu_memset``); without a GPU, operators of the CPU count
with the time that they spend outside of other operators.
"""

from __future__ import annotations

import glob
import gzip
import json
import os
from typing import Any, Tuple

from envgen.inside.common import Doc

Interval = Tuple[float, float]

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
STEPS = ("gpu_user_annotation", "user_annotation")  # vLLM names each step of its engine
DECODES = "context_0("  # in the name of a step that reads no prompt
LARGEST = 2 << 30  # bytes of a trace when it is unpacked
MOST = 400  # kernels that are named, by their time


def answer(request: Doc) -> Doc:
    """``folder``: where the profiler writes. Each trace of it is summed. ``decode``: only what
    comes after the prompt was read.

    Answers with ``kernels``: [{name, calls, us}], ``busy_us`` and ``wall_us``: time in which any
    kernel ran, and from the first to the end of the last; ``device``: gpu or cpu; ``file``: the
    trace, the only one that is left. Of several ranks the one that worked longest counts, for the
    others wait for it.
    """
    summaries = []
    for path in traces(request["folder"]):
        events = read(path)
        if events:
            summaries.append(dict(summed(events, request["decode"]), file=path))
    on_gpu = [one for one in summaries if one["device"] == "gpu"]
    nothing: Doc = {"kernels": []}
    chosen = max(on_gpu or summaries, key=lambda one: one["busy_us"], default=nothing)
    for path in traces(request["folder"]):
        if path != chosen.get("file"):
            os.remove(path)
    return chosen


def traces(folder: str) -> list[str]:
    """The files of traces below ``folder``."""
    found = glob.glob(f"{folder}/**/*.json*", recursive=True)
    return [path for path in sorted(found) if not os.path.islink(path)]


def read(path: str) -> list[Doc]:
    """The events that take time. ValueError where the file is too large, or no trace."""
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rb") as file:
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError(f"the trace {path} has more than {LARGEST} bytes")
    # Names of kernels are not always right UTF-8 or JSON.
    document = json.loads(text.decode("utf-8", "replace"), strict=False)
    events = document.get("traceEvents", [])
    return [one for one in events if one.get("ph") == "X" and "dur" in one]


def summed(events: list[Doc], decode: bool = False) -> Doc:
    """The events by kernel. ``decode``: those from the first step on that reads no prompt."""
    is_gpu = any(one.get("cat") == "kernel" for one in events)
    device = "cpu"
    wanted: Tuple[str, ...] = ("cpu_op",)
    steps = STEPS[1]
    if is_gpu:
        device = "gpu"
        wanted = ON_GPU
        steps = STEPS[0]
    begin = float("-inf")
    if decode:
        named = [one for one in events if one.get("cat") == steps]
        starts = [float(one["ts"]) for one in named if DECODES in str(one.get("name"))]
        begin = min(starts, default=begin)
    chosen = []
    for one in events:
        if one.get("cat") in wanted and float(one["ts"]) >= begin:
            chosen.append(one)
    if not is_gpu:
        chosen = own_time(chosen)
    rows: dict[str, Doc] = {}
    for one in chosen:
        name = str(one.get("name", ""))[:400]
        row = rows.setdefault(name, {"name": name, "calls": 0, "us": 0.0})
        row["calls"] += 1
        row["us"] += float(one["dur"])
    spans = []
    for one in chosen:
        start = float(one["ts"])
        length = float(one["dur"])
        if "span" in one:
            length = float(one["span"])
        spans.append((start, start + length))
    ordered = sorted(rows.values(), key=lambda row: -row["us"])
    wall = 0.0
    if spans:
        first = min(start for start, _ in spans)
        last = max(end for _, end in spans)
        wall = last - first
    return {
        "device": device,
        "kernels": ordered[:MOST],
        "busy_us": covered(spans),
        "wall_us": wall,
    }


def own_time(events: list[Doc]) -> list[Doc]:
    """The events with ``dur`` without what others on the same thread spend inside of them."""
    threads: dict[Any, list[Doc]] = {}
    for one in events:
        thread = one.get("pid"), one.get("tid")
        threads.setdefault(thread, []).append(one)
    own = []
    for rows in threads.values():
        open_: list[Doc] = []
        rows.sort(key=lambda row: (float(row["ts"]), -float(row["dur"])))
        for one in rows:
            start = float(one["ts"])
            length = float(one["dur"])
            while open_ and start >= float(open_[-1]["ts"]) + open_[-1]["span"]:
                open_.pop()
            if open_:
                open_[-1]["dur"] = max(0.0, open_[-1]["dur"] - length)
            copy = dict(one, dur=length, span=length)
            open_.append(copy)
            own.append(copy)
    return own


def covered(spans: list[Interval]) -> float:
    """Microseconds in which at least one of the spans lies."""
    total = 0.0
    end = float("-inf")
    for start, stop in sorted(spans):
        if stop > end:
            total += stop - max(start, end)
            end = stop
    return total
