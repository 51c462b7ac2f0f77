"""A plugin of vLLM, mounted beside it: the engine's loop hangs, or waits, while a file of that name is in /faults."""

import multiprocessing
import subprocess
import time
from pathlib import Path
from typing import Any


def load() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    schedule, context = Scheduler.schedule, multiprocessing.get_context

    def faulty(self: Any, *args: Any, **kwargs: Any) -> Any:
        while is_on("hang"):
            hangs_here()
        if is_on("compile"):
            waits_for_a_compiler()
        return schedule(self, *args, **kwargs)

    Scheduler.schedule = faulty
    # On a CPU vLLM spawns its engine and its worker, and each imports all of it again. A copy has it already.
    multiprocessing.get_context = lambda method=None: context("fork" if method == "spawn" else method)  # type: ignore


def is_on(name: str) -> bool:
    return Path("/faults", name).exists()


def hangs_here() -> None:
    time.sleep(0.2)


def waits_for_a_compiler() -> None:
    """A real one, which waits for the end of its source."""
    with subprocess.Popen(["g++", "-x", "c++", "-", "-c", "-o", "/dev/null"], stdin=subprocess.PIPE):
        while is_on("compile"):
            time.sleep(0.2)
