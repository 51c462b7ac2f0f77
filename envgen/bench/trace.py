"""One request under the server's own profiler: vLLM writes the trace, and it is copied out of the container."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence

from envgen.bench.checks import Trial
from envgen.bench.client import tokens
from envgen.bench.compare import flags
from envgen.engine.base import MISSHAPEN, Engine
from envgen.errors import ServiceError, UsageError
from envgen.serve.events import short_answer
from envgen.text import last_printed, progress, shorten

LARGEST = 256 << 20  # bytes of all files of one trace
PIECE = 8 << 20  # of them are read at a time
_LIST = 'test ! -d "$0" || exec find "$0" -maxdepth 1 -type f -printf "%f\\t%T@\\t%s\\n"'
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


def capture(
    trial: Trial, engine: Engine, container: str, folder: str, keep: Callable[[str, bytes], None]
) -> dict[str, int]:
    """Profile one completion, and hand over each new file; name -> bytes."""

    def files() -> dict[str, tuple[str, int]]:
        listed = _run(engine, container, "sh", "-c", _LIST, folder)
        rows = (line.split("\t") for line in listed.decode(errors="replace").splitlines())
        return {name: (time, int(size)) for name, time, size in rows}

    before = files()
    _post(trial, "/start_profile")
    try:
        load = trial.ask("trace", [trial.target.body(tokens(PROMPT), REPLY)])
    finally:
        progress("  the server writes its trace")
        _post(trial, "/stop_profile")
    if load.faults:
        raise ServiceError(f"the request that was profiled failed: {load.faults}")
    new = {name: found[1] for name, found in files().items() if before.get(name) != found}
    if not new:
        raise ServiceError(f"the profiler wrote no file into {folder}", hint="envgen logs shows what it reports")
    if sum(new.values()) > LARGEST or not all(map(_NAME.fullmatch, new)):
        listed = ", ".join(f"{name} ({size >> 20} MiB)" for name, size in new.items())
        raise ServiceError(f"the trace stays in the container's {folder}: {listed}",
                           hint=f"at most {LARGEST >> 20} MiB are copied; profile fewer tokens")  # fmt: skip
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
