"""Steps: failures, and the end."""

from __future__ import annotations

import re
import time
from pathlib import Path

from gpu_day.day import ENVGEN, Day, Done, NotRun, Rows, start, step


@step(
    "crash", "a wrong flag, too little memory, a killed engine: what explain says, and the bundle"
)
def crash(day: Day, rows: Rows) -> None:
    service = f"services.{day.service}.args"
    if not day.options.without_gpu:
        done = day.envgen("up", day.service, "--recreate", "--set", f"{service}.no-such-flag=1")
        rows.add("a wrong flag is refused before a start", done.code == 6 and "no-such-flag" in done.err, done.last,
                 "exit 6", done.seconds)  # fmt: skip
    flag = day.envgen(
        "up", day.service, "--recreate", "--no-predict", "--set", f"{service}.no-such-flag=1"
    )
    failed(day, rows, "a wrong flag, not asked before", flag)
    little = (
        ["gpu-memory-utilization=0.03"]
        if not day.options.without_gpu
        else ["kv-cache-memory-bytes=4096"]
    )
    small = day.envgen(
        "up",
        day.service,
        "--recreate",
        "--no-predict",
        *(w for one in little for w in ("--set", f"{service}.{one}")),
    )
    failed(day, rows, "too little memory", small)
    if not start(day, rows, "up again"):
        return
    container = day.container(day.service)
    kill = (
        "import os, signal\nfor p in os.listdir('/proc'):\n try: t = open(f'/proc/{p}/cmdline').read()\n"
        " except OSError: continue\n if p.isdigit() and 'EngineCore' in t: os.kill(int(p), signal.SIGKILL); print(p)"
    )
    killed = day.docker("exec", container, "python3", "-c", kill)
    began = time.monotonic()
    while time.monotonic() < began + 90:
        if day.docker("inspect", "--format", "{{.State.Running}}", container).out.strip() != "true":
            break
        time.sleep(0.5)
    after = time.monotonic() - began
    told = day.run([*ENVGEN, "explain", "-", "--json"], stdin=day.log(day.service))
    found = [one["rule"] for one in told.document.get("explanations", [])]
    why = ", ".join(found) or told.document.get("first_exception")
    ended = bool(killed.out.strip()) and after < 90
    rows.add(
        "the engine is killed: the server ends",
        ended,
        f"{after:.1f} s; explain: {why}",
        "it ends",
        after,
    )
    day.envgen("down", day.service)


def failed(day: Day, rows: Rows, what: str, done: Done) -> None:
    """A start that had to fail: exit 5, a bundle with its parts, and what explain says."""
    match = re.search(r"(\S+\.tar\.gz)", done.err)
    bundle = (day.project / match[1]) if match else None
    told = day.run([*ENVGEN, "explain", str(bundle), "--json"]) if bundle else None
    found = (
        [f"{one['cause']} ({one['rule']})" for one in told.document.get("explanations", [])]
        if told
        else []
    )
    seen = f"explain: {'; '.join(found) or (told.document.get('first_exception') if told else 'no bundle')}"
    rows.add(
        what,
        done.code == 5 and bool(found),
        f"exit {done.code}; {seen}",
        "exit 5, a known cause",
        done.seconds,
    )
    if bundle:
        members = day.run(["tar", "tzf", str(bundle)]).out.split()
        parts = sorted({Path(one).name for one in members})
        lacking = {"server.log", "gpu.txt"} - set(parts)
        rows.add(f"{what}: the bundle", not lacking, ", ".join(parts), "server.log, gpu.txt, ...")
    plain = day.run([*ENVGEN, "explain"])
    rows.add(f"{what}: explain without a name", None, (plain.out or plain.err).strip()[:300])


@step("debug", "the variant debug: each kernel launch waits, no CUDA graphs")
def debug(day: Day, rows: Rows) -> None:
    if "debug" not in day.settings.variants:
        raise NotRun("the profile has no variant debug")
    if start(day, rows, "envgen up --variant debug", "--variant", "debug", "--recreate"):
        seen = day.docker(
            "exec", day.container(day.service), "sh", "-c", "echo $CUDA_LAUNCH_BLOCKING"
        ).out.strip()
        rows.add("CUDA_LAUNCH_BLOCKING in it", seen == "1", seen, "1")


@step("down", "stop, and remove what was started")
def down(day: Day, rows: Rows) -> None:
    done = day.envgen("down", *(() if day.foreign else ("--volumes",)))
    left = day.docker(
        "ps", "-aq", "--filter", f"label=com.docker.compose.project={day.settings.compose_name}"
    ).out.split()
    rows.add(
        "envgen down",
        done.code == 0 and not left,
        f"{len(left)} containers left",
        "none",
        done.seconds,
    )
