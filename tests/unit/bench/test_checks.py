"""The verdicts: limits of latency, what a log shows, what a load left behind."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from click.testing import CliRunner

from envgen.app import measure
from envgen.app.session import Session
from envgen.bench import checks
from envgen.bench.client import BenchTarget
from envgen.bench.compare import MatrixCell
from envgen.bench.facts import RunningService, Vitals, parse_gpu_memory
from envgen.bench.tools import CellResult, Matrix
from envgen.bench.trace import RanBackend
from envgen.cli.measure import smoke
from envgen.deployment import Deployment
from envgen.errors import ServiceError, UsageError
from envgen.profile.service import Ready


def cell(failed: int = 0, **figures: tuple[float, ...]) -> CellResult:
    asked = MatrixCell(32, 64)
    samples = [{**asked.sample, name: one} for name, values in figures.items() for one in values]
    return CellResult(asked, tuple(samples), 1.0, failed, "HTTP 500" if failed else "")


def verdicts(criteria: list[checks.Criterion]) -> dict[str, str]:
    return {one.name: one.verdict for one in criteria}


def ready(expect: dict[str, str], forbid: dict[str, str]) -> Ready:
    return Ready(expect=expect, forbid=forbid)


LOG = "Using TRITON_ATTN backend\nGraph capturing finished in 3 secs, took 0.5 GiB\n"


@pytest.mark.parametrize(
    ("log", "flags", "gpu", "verdict"),
    [
        (LOG, [], True, "passed"), (LOG, ["--enforce-eager"], True, None), (LOG, [], False, None),
        ("Using TRITON_ATTN backend", [], True, "failed"),
    ],
)  # fmt: skip
def test_graphs_are_proven_by_the_log(log: str, flags: list[str], gpu: bool, verdict: str | None) -> None:
    found = verdicts(
        checks.log_shows(ready({"attention": "TRITON_ATTN"}, {"fallback": "falling back"}), log, flags, gpu=gpu)
    )
    assert found.get("log shows captured CUDA graphs") == verdict
    assert found["log shows attention"] == found["log is free of what ready.forbid names"] == "passed"


def test_a_log_of_which_nothing_is_known_or_that_is_wrong() -> None:
    assert verdicts(checks.log_shows(None, LOG, [], gpu=False)) == {"backends in the log": "not checked"}
    lacking, forbidden = checks.log_shows(ready({"a": "FLASHINFER"}, {"triton": "TRITON"}), LOG, [], gpu=False)
    assert (lacking.verdict, lacking.seen) == ("failed", "no such line")
    assert (forbidden.verdict, forbidden.name) == ("failed", "log is free of triton") and "TRITON" in forbidden.seen


def vitals(**changes: Any) -> Vitals:
    return Vitals(**{"memory": 1, "gpu_memory": None, "zombies": (), "restarts": 0, "started_at": "t"} | changes)


def test_what_a_load_left_behind() -> None:
    after = vitals(memory=6_000_000_000, zombies=("sh (7)",))
    found = checks.load(cell(failed=2), vitals(), after, 200)
    assert set(verdicts(found).values()) == {"failed"} and found[0].seen == "2 of 200 failed: HTTP 500"
    assert checks.load(cell(), vitals(), vitals(restarts=1), 200)[1].seen == "the server was restarted meanwhile"
    assert set(verdicts(checks.load(cell(), vitals(), vitals(memory=9), 200)).values()) == {"passed"}


def test_a_run_that_fails_has_one_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(_trial: measure.Measurement, run: Any) -> NoReturn:
        run.sample({"ttft_ms": 1})
        raise ServiceError("the tool failed", hint="try another")

    monkeypatch.setattr(measure, "find", lambda url, **_: BenchTarget(url, "m"))
    monkeypatch.chdir(tmp_path)
    asked = measure.MeasureOptions(Session(), None, "http://h", None, None, 1)
    with pytest.raises(ServiceError) as caught:
        measure.measure(asked, "bench", {}, work)
    assert re.fullmatch(r"the tool failed\n  the results so far are in .*\n +hint: try another", str(caught.value))


def test_the_tool_for_another_server_runs_in_the_profiles_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "find_tool", lambda tool: tool)
    deployment = SimpleNamespace(profile=SimpleNamespace(image_name="lab:prod"), engine=None)
    asked = SimpleNamespace(session=SimpleNamespace(deployment=lambda: deployment))
    trial = measure.Measurement(cast(measure.MeasureOptions, asked), None, BenchTarget("http://h", "m"), {})
    assert (trial.tool(Matrix(), "/m").url, trial.tool(Matrix(), "/m").where) == ("http://h", "image lab:prod")
    with pytest.raises(UsageError, match="its model's folder"):
        trial.tool(Matrix())


def test_the_key_of_the_profiles_servers_needs_no_option() -> None:
    """As `up` asks them."""
    profile = cast(Any, SimpleNamespace(secrets=("VLLM_API_KEY",)))
    deployment = Deployment(profile, Path(), dotenv={"VLLM_API_KEY": "its own", "OTHER": "named"})
    for variable, key in ((None, "its own"), ("OTHER", "named")):
        asked = measure.MeasureOptions(Session(), None, None, None, variable, 1)
        assert measure._key(asked, RunningService(deployment, "serve", cast(Any, None))) == key


def test_strict_and_not() -> None:
    one = checks.Criterion("a", checks.UNKNOWN, "", "")
    assert (checks.outcome([one])[0], checks.outcome([one], strict=True)[0]) == ("passed", "failed")


@pytest.mark.parametrize(("text", "size"), [("512\n1024\n", 1536 << 20), ("[N/A]\n", None), ("", None)])
def test_gpu_memory(text: str, size: int | None) -> None:
    assert parse_gpu_memory(text) == size


def full(monkeypatch: pytest.MonkeyPatch, *words: str, part: str = "--full", ran: str = "Marlin") -> checks.Outcome:
    """What `smoke --full` makes of a server that passes, but for what it is not asked."""
    made: list[checks.Outcome] = []
    ready_ = ready({"kernel": "TRITON_ATTN"}, {})
    described = SimpleNamespace(ready=ready_)
    service = SimpleNamespace(vitals=vitals, log=lambda: LOG, described=described, container=None)
    trial = SimpleNamespace(service=service, target=None, flags=(), environment={"gpu": "a"})

    def report(_asked: Any, kind: str, parameters: Any, work: Any) -> int:
        assert (kind, parameters["full"]) == ("smoke", part == "--full")
        made.append(work(trial, None))
        return 0

    def run_tool(_trial: Any, _run: Any, plan: Matrix) -> tuple[str, list[CellResult]]:
        return "benchy", [cell(ttft_ms=(90.0,), decode_tps=(40.0,)) for _ in plan.concurrency]

    rows = [{"name": "in a batch against alone", "verdict": "close", "seen": "99 %"}]
    monkeypatch.setattr(smoke, "report", report)
    monkeypatch.setattr(smoke, "run_tool", run_tool)
    monkeypatch.setattr(smoke, "proof", lambda *_: [RanBackend("Marlin", ran == "Marlin", f"MoE ran: {ran}")])
    monkeypatch.setattr("envgen.app.answers.ask", lambda *_, **__: ("close", {"rows": rows}))
    monkeypatch.setattr(checks, "smoke", lambda *_: [checks.criterion("first answers", True, "a", "b")])
    done = CliRunner().invoke(smoke.command, ["serve", part, *words], standalone_mode=False)
    assert done.exception is None, done.exception
    return made[0]


def test_a_server_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict, summary = full(monkeypatch)
    parts = [one["part"] for one in summary["criteria"]]
    assert verdict == "passed" and list(dict.fromkeys(parts)) == ["smoke", "load", "answers", "log"]
    assert summary["tool"] == "benchy" and len(summary["cells"]) == 1
    other = full(monkeypatch, ran="CUTLASS")[1]["criteria"][-1]
    assert (other["verdict"], other["seen"], other["wanted"]) == ("failed", "MoE ran: CUTLASS", "a kernel of Marlin")


def test_a_load_alone_lasts_as_long_as_it_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is 70 seconds after the one before; a failure in any round counts."""
    clock, rounds = itertools.count(0.0, 70.0), iter([0, 3, 0])
    monkeypatch.setattr("envgen.cli.measure.smoke.time.monotonic", lambda: next(clock))
    monkeypatch.setattr(
        sys.modules[__name__], "cell", lambda **_: CellResult(MatrixCell(32, 64), (), 1.0, next(rounds), "dead")
    )
    verdict, summary = full(monkeypatch, "3", part="--stress")
    rows = {row["name"]: row for row in summary["criteria"] if row["part"] == "load"}
    assert {row["part"] for row in summary["criteria"]} == {"smoke", "load"} and len(summary["cells"]) == 2
    assert verdict == "failed" and rows["requests"]["seen"] == "3 of 600 failed: dead"


@pytest.mark.parametrize("words", [["--full", "--url", "http://h"], ["--stress", "1", "--url", "http://h"]])
def test_what_a_quick_check_or_another_server_does_not_have(words: list[str]) -> None:
    with pytest.raises(UsageError):
        CliRunner().invoke(smoke.command, words, standalone_mode=False, catch_exceptions=False)
