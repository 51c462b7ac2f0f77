"""One request under the server's own profiler: vLLM writes the trace, and it is copied out of the container."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envgen.bench.checks import Trial
from envgen.bench.client import post
from envgen.bench.compare import flags
from envgen.engine.base import MISSHAPEN
from envgen.errors import ServiceError, UsageError
from envgen.inside import run

PROGRAM = run.Program(("traces",))
LARGEST = 256 << 20  # bytes of all files of one trace
PROMPT, REPLY = 128, 16  # tokens
_NAME = re.compile(r"[A-Za-z0-9_][\w.+=-]{0,200}")
_HINT = (
    "give the service `args: {profiler-config: {profiler: torch, torch_profiler_dir: /tmp/traces}}` "
    "in a variant, and start it: envgen up SERVICE --variant NAME"
)


def folder_of(words: Sequence[str], env: Mapping[str, str]) -> str:
    """Where the server writes traces. UsageError when it was started without torch's profiler."""
    given = flags(words)
    folder = given.get("--profiler-config.torch_profiler_dir") or env.get("VLLM_TORCH_PROFILER_DIR", "")
    with contextlib.suppress(*MISSHAPEN):
        folder = str(json.loads(given["--profiler-config"])["torch_profiler_dir"])
    if not folder.startswith("/"):
        raise UsageError("the server was started without torch's profiler, or with a folder that is not absolute",
                         hint=_HINT)  # fmt: skip
    return folder


def capture(trial: Trial, execute: run.Execute, folder: str, keep: Callable[[str, bytes], None]) -> dict[str, int]:
    """Profile one completion, and hand over each new file; name -> bytes."""
    before = _ask(execute, {"folder": folder})["files"]
    post(trial.target, "/start_profile")
    try:
        load = trial.ask("trace", [trial.target.body(trial.prompts.of(PROMPT), REPLY)])
    finally:
        trial.say("  the server writes its trace")
        post(trial.target, "/stop_profile")
    if load.faults:
        raise ServiceError(f"the request that was profiled failed: {load.faults}")
    files = _ask(execute, {"folder": folder})["files"]
    new = {name: int(size) for name, (size, time) in files.items() if before.get(name) != [size, time]}
    if not new:
        raise ServiceError(f"the profiler wrote no file into {folder}", hint="envgen logs shows what it reports")
    if sum(new.values()) > LARGEST or not all(map(_NAME.fullmatch, new)):
        listed = ", ".join(f"{name} ({size >> 20} MiB)" for name, size in new.items())
        raise ServiceError(f"the trace stays in the container's {folder}: {listed}",
                           hint=f"at most {LARGEST >> 20} MiB are copied; profile fewer tokens")  # fmt: skip
    for name, size in new.items():
        content = bytearray()
        while len(content) < size:
            piece = base64.b64decode(_ask(execute, {"folder": folder, "name": name, "offset": len(content)})["piece"])
            if not piece:
                break  # it was cut meanwhile
            content += piece
        keep(name, bytes(content))
    return new


def _ask(execute: run.Execute, request: Mapping[str, Any]) -> dict[str, Any]:
    found = run.ask(execute, "python3", PROGRAM, request, timeout=60)
    if isinstance(found, run.Failure):
        raise ServiceError(f"the container's trace files can't be read: {found}")
    return found
