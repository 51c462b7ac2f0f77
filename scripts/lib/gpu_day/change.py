"""Steps: where a token's time goes, a server that hangs, and another release beside what runs."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from envgen.bench.trace import lines_of
from gpu_day.day import ENVGEN, Day, NotRun, Rows, merge, start, step
from gpu_day.models import COMMIT, MODEL, NAME
from gpu_day.moe import edit

LONG = 100_000  # tokens of a prompt that takes its time


@step("trace", "where a token's time goes, kernel by kernel")
def trace(day: Day, rows: Rows) -> None:
    traced(day, rows, "envgen trace")


def traced(day: Day, rows: Rows, what: str, *words: str) -> None:
    """`envgen trace`, and a row for each phase of it: kinds of kernels, and the longest of each."""
    done = day.envgen("trace", day.service, "--yes", "--json", *words, timeout=1200)
    rows.add(what, done.code == 0, done.last if done.code else "", "exit 0", done.seconds)
    for phase, summary in (done.document.get("phases") or {}).items():
        cells = [f"{name.strip()} {share}" for name, share, *_ in lines_of(summary)[1:]]
        rows.add(f"{phase}, shares of the time", bool(cells), "; ".join(cells)[:590])
        rows.data[f"{what}: {phase}"] = summary


# --- a server that hangs

ENGINE = """
import glob
for path in glob.glob("/proc/[0-9]*/comm"):
    name = open(path).read()
    if name.startswith(("VLLM::Engine", "EngineCor")):
        print(path.split("/")[2])
"""


# Only a request with this top_p runs into the loop: those of the start don't.
TOP_P = "float top_p = (top_p_arr == nullptr) ? top_p_val : top_p_arr[row_idx];"
LOOP = 'while (top_p > 0.110f && top_p < 0.112f) asm volatile("nanosleep.u32 1000;");'


def _restarts(day: Day, container: str) -> int:
    done = day.docker("inspect", "--format", "{{.RestartCount}}", container)
    return int(done.out.strip() or 0)


def answers(day: Day) -> bool:
    """Whether the server completes a prompt."""
    body = {"prompt": "The capital of France is", "max_tokens": 2, "temperature": 0}
    try:
        return bool(day.ask("/v1/completions", body)["choices"])
    except (OSError, KeyError, ValueError):
        return False


def until(held: Any, limit: float) -> float | None:
    """Seconds until ``held()``; None if it does not hold within ``limit``."""
    began = time.monotonic()
    while time.monotonic() - began < limit:
        if held():
            return time.monotonic() - began
        time.sleep(2)
    return None


@step("wedged", "a long prompt is not taken for a hang; an engine that stands still is ended")
def wedged(day: Day, rows: Rows) -> None:
    container = day.container(day.service)
    before = _restarts(day, container)
    began = time.monotonic()
    body = {"prompt": [20 + number % 150 for number in range(LONG)], "max_tokens": 2}
    try:
        seen = repr(day.ask("/v1/completions", body)["usage"])
    except (OSError, KeyError, ValueError) as error:
        seen = f"{type(error).__name__}: {error}"
    is_same = _restarts(day, container) == before
    taken = time.monotonic() - began
    rows.add(f"a prompt of {LONG} tokens", is_same and "prompt_tokens" in seen, seen, "", taken)

    engine = day.envgen("exec", "-T", day.service, "--", "python3", "-c", ENGINE).out.split()
    if not engine:
        raise NotRun("no engine process has a name that this program knows")
    stopped = day.docker("exec", container, "kill", "-STOP", engine[0])
    rows.add("the engine's process is stopped", stopped.code == 0, f"process {engine[0]}")
    _ends_itself(day, rows, container, before)


def _ends_itself(day: Day, rows: Rows, container: str, before: int) -> None:
    """A server that stands still is ended with evidence, and serves again."""
    ended = until(lambda: _restarts(day, container) > before, 420)
    text = day.log(day.service)
    evidence = [line for line in text.splitlines() if line.startswith("envgen: wedged:")]
    (day.work / "logs" / "wedged.log").write_text(text)
    named = ("EngineCore", "vllm:num_requests", "power", "(most recent call first)")
    found = [name for name in named if name in text.partition("envgen: wedged:")[2]]
    rows.add("ended, and started again by Docker", ended is not None, found, "evidence", ended)
    rows.add("evidence in its log", len(evidence) > 5, f"{len(evidence)} lines; {evidence[:3]}")
    served = until(lambda: answers(day), 600)
    rows.add("served again", served is not None, "after the end", "an answer", served)
    told = day.envgen("explain", day.service).out
    rows.add("envgen explain", "wedged" in told, told.strip()[:400], "wedged")
    status = day.envgen("status").out
    rows.add("envgen status", None, [x for x in status.splitlines() if day.service in x][:4])


@step(
    "endless", "a kernel of the sampler that never returns: the server is ended, and serves again"
)
def endless(day: Day, rows: Rows) -> None:
    container = day.container(day.service)
    edited = edit(day, "sampling.cuh", TOP_P, f"{TOP_P} {LOOP}")
    if edited.code:
        raise NotRun(edited.last)
    day.envgen("cache", "clear", "sampling")
    again = day.envgen("restart", day.service, timeout=3600)
    rows.add("served with the loop", answers(day), again.last, "an answer", again.seconds)
    before = _restarts(day, container)
    body = {"prompt": "Once", "max_tokens": 4, "temperature": 1, "top_p": 0.111}
    try:
        seen = repr(day.ask("/v1/completions", body))
    except OSError as error:
        seen = f"{type(error).__name__}: {error}"
    rows.add("a request runs into it", "choices" not in seen, seen, "no answer")
    _ends_itself(day, rows, container, before)
    day.envgen("down", day.service)
    day.envgen("cache", "clear", "sampling")


# --- one module beside the server


@step("clear", "cache clear of one module beside the server, warm, restart")
def clear(day: Day, rows: Rows) -> None:
    listed: list[dict[str, Any]] = day.envgen("cache", "list", "--json").document.get("modules", [])
    names = [str(one["name"]) for one in listed]
    if not names:
        raise NotRun("no module is compiled")
    name = "sampling" if "sampling" in names else names[0]
    cleared = day.envgen("cache", "clear", name)
    told = f"{cleared.out} {cleared.err}".strip()
    is_cleared = cleared.code == 0 and "removed" in told
    rows.add(f"cache clear {name}", is_cleared, told, "removed", cleared.seconds)
    rows.add("the server answers", answers(day), "a completion")
    warmed = day.envgen("cache", "warm", name, timeout=3600)
    rows.add(f"cache warm {name}", warmed.code == 0, warmed.last, "exit 0", warmed.seconds)
    again = day.envgen("restart", day.service, timeout=3600)
    is_served = again.code == 0 and answers(day)
    rows.add("envgen restart", is_served, again.last, "an answer", again.seconds)


# --- another release


@contextmanager
def away(day: Day) -> Iterator[list[float]]:
    """Seconds, at the end one number, in which the server did not answer."""
    found: list[float] = []
    ended = threading.Event()
    gone: list[float] = []

    def watch() -> None:
        last = time.monotonic()
        while not ended.wait(0.5):
            try:
                day.ask("/v1/models")
                is_there = True
            except OSError:
                is_there = False
            now = time.monotonic()
            if not is_there:
                gone.append(now - last)
            last = now

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
        found.append(sum(gone))


def older(day: Day, release: str, name: str = "older") -> Day:
    """The same day in a project of its own, with another ``release``: of vLLM, where it names no
    package. "" is the shipped one.
    """
    day.write_project()
    folder = day.work / name
    if not folder.exists():
        shutil.copytree(day.project, folder, ignore=shutil.ignore_patterns(".envgen", "results"))
        project = yaml.safe_load((folder / "envgen.yaml").read_text())
        project["name"] = f"{NAME}-{name}"
        package, _, version = release.rpartition("==")
        source = "flashinfer" if package.startswith("flashinfer") else "vllm"
        origin = project["profiles"][day.profile]["sources"][source]["origin"]
        if release:
            origin["wheel"] = f"{origin['wheel'].partition('==')[0]}=={version}"
        # What is locked is what the file says, not what a machine changes. The weights' commit is
        # named, and no draft, so that the lock asks no hub.
        own = yaml.safe_load((folder / "envgen.local.yaml").read_text())["profiles"][day.profile]
        shared = {key: own[key] for key in ("base", "apt", "pip", "tiktoken", "cuda") if key in own}
        merge(project["profiles"][day.profile], shared)
        project["defaults"]["services"]["serve"]["model"]["revision"] = COMMIT
        project["defaults"].pop("variants")
        (folder / "envgen.yaml").write_text(yaml.safe_dump(project, sort_keys=False))
    return Day(argparse.Namespace(**{**vars(day.options), "project": str(folder)}))


def _changed(rows: Rows, what: str, day: Day, *words: str, codes: tuple[int, ...] = (0,)) -> None:
    """An `envgen upgrade`, with the seconds without a server."""
    with away(day) as gone:
        done = day.envgen("upgrade", *words, timeout=3600)
    lines = [line.strip() for line in done.out.splitlines() if line.strip()]
    wanted = "exit " + " or ".join(map(str, codes))
    rows.add(what, done.code in codes, "; ".join(lines)[:500] or done.last, wanted, done.seconds)
    rows.add(f"{what}: without a server", None, f"{gone[0]:.0f} s")
    rows.data[what] = {"out": done.out, "err": done.err[-6000:], "away": gone[0]}


# What an upgrade has printed when it is ended, and how often: from its first step to its last.
KILLS = (
    ("resolving in", 1),
    ("load build definition", 1),
    ("32 questions", 1),
    ("compiling for the candidate", 1),
    ("in place of what runs", 1),
    ("32 questions", 2),
)


def _broken_off(
    day: Day, rows: Rows, words: list[str], mark: tuple[str, int], sent: signal.Signals
) -> None:
    """An upgrade that is ended where its progress says ``mark`` for that time: no file has changed,
    and `up` serves what ran.
    """
    text, count = mark
    files = ("envgen.yaml", "envgen.lock")
    before = [(day.project / name).read_bytes() for name in files]
    command = [*ENVGEN, "upgrade", "-p", day.profile, *words]
    printed = 0
    with subprocess.Popen(
        command, cwd=day.project, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            printed += text in line
            if printed == count:
                break
        time.sleep(3)
        process.send_signal(sent)
        process.stderr.read()
    is_same = [(day.project / name).read_bytes() for name in files] == before
    status = day.envgen("status").out
    told = [line.strip() for line in status.splitlines() if "upgrade" in line]
    again = day.envgen("up", day.service, timeout=3600)
    held = printed == count and is_same and again.code == 0 and answers(day)
    times = f", {count} times" * (count > 1)
    what = f"{sent.name} at {text!r}{times}: no file changed, `up` serves what ran"
    rows.add(what, held, f"{told[:1]}; {again.last}", "an answer", again.seconds)


def _to_upgrade(day: Day, rows: Rows) -> tuple[Day, str]:
    """A server of the older release, and what it is upgraded to."""
    if day.foreign or not day.options.older:
        raise NotRun("name a release that --wheels or the index has: --older 0.32.0")
    day.write_project()
    origin = yaml.safe_load((day.project / "envgen.yaml").read_text())["profiles"][day.profile]
    newer = day.options.newer or str(origin["sources"]["vllm"]["origin"]["wheel"])
    day.envgen("down")
    mine = older(day, day.options.older)
    for word in ("lock", "build"):
        done = mine.envgen(word, timeout=3600)
        title = f"envgen {word}, {day.options.older}"
        if not rows.add(title, done.code == 0, done.last, "exit 0", done.seconds):
            raise NotRun(title)
    if not start(mine, rows, day.options.older):
        raise NotRun("the older release does not serve")
    return mine, newer


@step("upgrade", "an older release upgraded beside its server, and back; left (--older)")
def upgrade(day: Day, rows: Rows) -> None:
    mine, newer = _to_upgrade(day, rows)
    with away(mine) as gone:
        again = mine.envgen("up", mine.service, "--recreate", timeout=3600)
    rows.add("a plain restart (`up --recreate`)", again.code == 0, f"{gone[0]:.0f} s without a server",
             "", again.seconds)  # fmt: skip
    _changed(rows, "upgrade, kept", mine, newer, "--yes", "--keep", "--slower", "30")
    versions = mine.envgen("exec", "-T", mine.service, "--", "python3", "-c",
                           "import flashinfer, vllm; print(vllm.__version__, flashinfer.__version__)")  # fmt: skip
    rows.add("what serves", newer.partition("==")[2] in versions.out, versions.out.strip())
    _changed(rows, "upgrade --back", mine, "--back", "--yes")
    rows.add("it answers", answers(mine), MODEL, "an answer")
    _changed(rows, "upgrade, left", mine, newer, "--yes", codes=(1,))
    rows.add("it answers", answers(mine), MODEL, "an answer")


@step("upgrade-fails", "one killed in each of its steps; one to a release of yours with a fault")
def upgrade_fails(day: Day, rows: Rows) -> None:
    mine, newer = _to_upgrade(day, rows)
    for mark in KILLS:
        _broken_off(mine, rows, [newer, "--yes", "--keep"], mark, signal.SIGKILL)
    if day.options.faulty:
        package, _, version = day.options.faulty.rpartition("==")
        tried = f"{package or 'vllm'}=={version}"
        # 1: it serves, and is worse; 5: it does not start
        _changed(rows, f"upgrade to {tried}", mine, tried, "--yes", "--keep", codes=(1, 5))
        rows.add("it answers", answers(mine), MODEL, "an answer")


@step("bisect", "between two locks: a bad FlashInfer among the packages that changed (--bad)")
def bisect(day: Day, rows: Rows) -> None:
    if day.foreign or not day.options.bad:
        raise NotRun("name a folder of wheels: --bad FOLDER, beside --wheels")
    day.write_project()
    day.envgen("down")
    mine = older(day, "", "bisect")
    good = mine.envgen("lock", timeout=3600)
    shutil.copyfile(mine.project / "envgen.lock", mine.project / "good.lock")
    place = mine.project / "envgen.local.yaml"
    own = yaml.safe_load(place.read_text())
    own["profiles"][day.profile]["build"] = {"wheelhouse": day.options.bad}
    place.write_text(yaml.safe_dump(own))
    bad = mine.envgen("lock", "--upgrade", timeout=3600)
    is_locked = good.code == 0 and bad.code == 0
    if not rows.add("both locks", is_locked, f"{good.last}; {bad.last}", "", bad.seconds):
        return
    words = ("good.lock", "envgen.lock", "--service", mine.service, "--yes")
    done = mine.envgen("bisect", *words, timeout=3600)
    lines = [line.strip() for line in done.out.splitlines() if line.strip()]
    is_found = done.code == 0 and "flashinfer-python" in lines[-1]
    rows.add("envgen bisect", is_found, "; ".join(lines)[-590:] or done.last, "", done.seconds)
    rows.data["bisect"] = {"out": done.out, "err": done.err[-6000:]}
