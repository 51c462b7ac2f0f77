"""How a container ended: judged from Docker's record and the log, as real containers have left them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.engine.values import SERVER, Container, container_of
from envgen.errors import EngineError
from envgen.explain.read import cause_of
from envgen.lock.model import Pinned, ProfileLock, PythonLock
from envgen.serve import ended
from envgen.serve.ended import circumstances, last_end

RECORD: dict[str, Any] = {
    "Id": "c" * 64, "Name": "/lab-cpu-serve-1", "RestartCount": 0,
    "Config": {"Cmd": [SERVER, "vllm", "serve"], "Labels": {"com.docker.compose.service": "serve"}},
    "State": {
        "Status": "exited", "ExitCode": 0, "OOMKilled": False, "StartedAt": "2026-11-25T23:42:27.073719447Z",
        "FinishedAt": "2026-11-25T23:44:40.760281043Z",
    },
}  # fmt: skip
ASKED = "envgen: Docker asks the server to stop (SIGTERM)\n"
# vLLM 0.30.0 for CPUs, after `kill -9` of its engine.
KILLED = """\
(APIServer pid=12) WARNING 11-25 23:44:38 [core_client.py:791] [shutdown] MPClient: engine core exited unexpectedly
(APIServer pid=12) ERROR 11-25 23:44:38 [async_llm.py:843] Traceback (most recent call last):
(APIServer pid=12) ERROR 11-25 23:44:38 [async_llm.py:843]     raise self._format_exception(outputs) from None
(APIServer pid=12) ERROR 11-25 23:44:38 [async_llm.py:843] vllm.v1.engine.exceptions.EngineDeadError: EngineCore \
encountered an issue. See stack trace (above) for the root cause.
envgen: the server ended with 0, and Docker had not asked it to stop: exit code 75
"""
RAISED = """\
(EngineCore pid=70) ERROR 11-25 23:44:37 [core.py:1]  Traceback (most recent call last):
(EngineCore pid=70) ERROR 11-25 23:44:37 [core.py:1]   File "x.py", line 1, in f
(EngineCore pid=70) ERROR 11-25 23:44:37 [core.py:1] RuntimeError: a kernel of mine failed
"""


class Logs:
    """An engine that has a log."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: dict[str, Any] = {}

    def logs(self, _container: str, **how: Any) -> str:
        self.asked = how
        return self.text

    def info(self) -> None:
        raise EngineError("it is gone")


def container(memory: int = 0, server: bool = True, **state: Any) -> Container:
    restarts = state.pop("restarts", 0)
    words = {} if server else {"Cmd": ["sleep", "infinity"]}
    host = {"HostConfig": {"Memory": memory}, "RestartCount": restarts}
    document = RECORD | host | {"Config": RECORD["Config"] | words}
    return container_of(document | {"State": RECORD["State"] | state})


@pytest.mark.parametrize(
    ("one", "log", "failed"),
    [
        (container(ExitCode=75), "", True),
        (container(ExitCode=0), ASKED, False),
        (container(ExitCode=0), "", False),  # only one that was asked ends with 0
        (container(ExitCode=143), ASKED, False),
        (container(ExitCode=143), "envgen: starting the server\n", True),  # killed inside
        (container(ExitCode=143), "x\n" * 5000, True),  # the same, after a long time
        (container(ExitCode=143), "envgen: installing flashinfer\n", False),  # it had not begun
        (container(ExitCode=137), "", True),  # docker kill
        (container(ExitCode=137), ASKED, False),  # docker stop, after its patience
        (container(ExitCode=137, OOMKilled=True), ASKED, True),
        (container(ExitCode=1), "", True),
        (container(ExitCode=128, Error="port is already allocated"), ASKED, True),
        (container(Status="restarting", ExitCode=75), "", True),
        *[(container(server=False, ExitCode=code), "", False) for code in (0, 130, 137, 143)],
        (container(server=False, ExitCode=1), "", True),
        (container(server=False, ExitCode=137, OOMKilled=True), "", True),
    ],
    ids=lambda value: f"{value.exit_code} {value.state}" if isinstance(value, Container) else None,
)  # fmt: skip
def test_what_ended_by_itself(one: Container, log: str, failed: bool) -> None:
    end = last_end(Logs(log), one)  # type: ignore[arg-type]
    assert end is not None and end.failed is failed and end.asked is not failed


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (container(ExitCode=75), "serve ended by itself at 2026-11-25T23:44:40Z, with exit code 0"),
        (container(ExitCode=9), "serve ended by itself at 2026-11-25T23:44:40Z, with exit code 9"),
        (container(ExitCode=137), "serve was killed at 2026-11-25T23:44:40Z (SIGKILL, not for its memory limit)"),
        (container(ExitCode=137, OOMKilled=True), "serve was killed at 2026-11-25T23:44:40Z, because memory ran out"),
        (container(ExitCode=0), "serve was stopped at 2026-11-25T23:44:40Z"),
        (container(Status="running", StartedAt="2026-11-25T23:50:00Z", restarts=2),
         "serve was restarted 2 times by Docker, last at 2026-11-25T23:50:00Z"),
    ],
)  # fmt: skip
def test_in_words(one: Container, text: str) -> None:
    end = last_end(Logs(""), one)  # type: ignore[arg-type]
    assert str(end) == text and end is not None and end.data()["text"] == text


def test_what_has_not_ended() -> None:
    for one in (
        container(Status="running"),
        container(Status="created", FinishedAt="0001-01-01T00:00:00Z"),
        container(Status="paused"),
        replace(container(ExitCode=75), labels={"com.docker.compose.oneoff": "True"}),
    ):
        assert last_end(Logs(KILLED), one) is None  # type: ignore[arg-type]


def test_the_cause_of_a_dead_engine_is_what_it_died_of() -> None:
    killed = last_end(Logs(KILLED), container(ExitCode=75))  # type: ignore[arg-type]
    raised = last_end(Logs(RAISED + KILLED), container(ExitCode=75))  # type: ignore[arg-type]
    assert killed is not None and raised is not None and killed.rule == raised.rule == "engine_dead"
    assert killed.why.endswith("the server ended with it: no exception before it: a process of the engine was killed")
    assert raised.evidence == "EngineCore pid=70: RuntimeError: a kernel of mine failed"
    known = last_end(Logs("CUDA out of memory. Tried\n" + KILLED), container(ExitCode=75))  # type: ignore[arg-type]
    assert known is not None and known.rule not in ("", "engine_dead")  # any other rule is nearer to the cause


def test_of_a_restarted_one_the_log_before_its_start_counts() -> None:
    engine = Logs(KILLED)
    end = last_end(engine, container(Status="running", restarts=1))  # type: ignore[arg-type]
    assert end is not None and not end.failed and end.rule == "engine_dead"
    assert engine.asked["since"] == "" and engine.asked["until"].startswith("1795650147.")
    engine.text = f"{KILLED}envgen: starting the server\nValueError: no\n"
    end = last_end(engine, container(Status="running", restarts=1))  # type: ignore[arg-type]
    assert end is not None and end.rule != "engine_dead"  # that was the run before
    last_end(engine, container(ExitCode=75))  # type: ignore[arg-type]
    assert engine.asked["until"] == "" and engine.asked["since"].startswith("1795650147.")


def test_of_an_unknown_cause_the_deciding_lines_are_kept() -> None:
    end = last_end(Logs(RAISED), container(ExitCode=75))  # type: ignore[arg-type]
    assert end is not None and end.why == "first exception: EngineCore pid=70: RuntimeError: a kernel of mine failed"
    assert end.clues[0] == "first exception of EngineCore pid=70: RuntimeError: a kernel of mine failed"
    assert end.clues[-1].startswith("search: https://github.com/") and "clues" not in end.data()


# What is known beside the log


@pytest.mark.parametrize(
    ("memory", "said"),
    [(1 << 30, "the container may use 1.00 GiB"), (0, "the container has no limit of its own, so the machine's")],
)
def test_the_limit_that_was_hit_is_named(memory: int, said: str) -> None:
    cause = cause_of(["loading"], circumstances(container(memory, ExitCode=137, OOMKilled=True)), service=True)
    assert cause is not None and cause.rule == "server_memory"
    assert cause.cause.startswith(f"memory ran out: {said}")
    assert ("raise the memory limit of the container" in cause.cure) == bool(memory)
    assert "compil" not in cause.cause + cause.cure and "max_jobs" not in cause.cure


def test_a_container_that_runs_has_no_exit_code() -> None:
    running = container(Status="running")
    assert circumstances(running).exit_code is None and not circumstances(running).failed
    assert circumstances(None).failed


def test_the_installed_version_is_the_locked_one() -> None:
    pins = (Pinned("nvidia-cutlass-dsl", "4.5.0", ()), Pinned("nvidia-cudnn-cu13", "9.19.0.56", ()))
    lock = ProfileLock(None, {}, {"linux/arm64": PythonLock("x", "3.12", {"all": pins})})
    about = circumstances(container(ExitCode=137), lock=lock)
    lines = ["AttributeError: module 'cutlass.cute.arch' has no attribute 'fmin'"]
    cause = cause_of(lines, about, service=True)
    assert cause is not None and "is missing in it (installed: 4.5.0)" in cause.cause
    cause = cause_of(["Kernel: cudnn_generated_fort_native_sm120_x"], about, service=True)
    assert cause is not None and "the installed cuDNN (9.19.0.56) reads" in cause.cause


def test_a_container_that_was_started_again_does_not_die_of_its_run_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended, "known_of", lambda _, one: circumstances(one))
    log = f"{RAISED}envgen: starting the server\nINFO nothing special\n"
    for one, cause in (container(ExitCode=137), False), (container(Status="restarting", ExitCode=1), True):
        deployment: Any = SimpleNamespace(engine=Logs(log))
        found, lines = ended.cause_in(deployment, ended.StartFailure("it ended", one))
        assert ("a kernel of mine failed" in f"{found}{lines}") is cause
