"""What the log of a healthy server admits: told after `up`, in `status` and by `doctor`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor_facts import CONTAINER

from envgen.cli.run.starting import print_started, started_document
from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.engine.values import COMPOSE_ONE_OFF, Container
from envgen.explain import rules
from envgen.profile.model import Base, Mode, Profile
from envgen.profile.service import Service
from envgen.profile.values import ImageRef
from envgen.serve.notices import OVER, notices, of_all
from envgen.serve.start import StartResult

LOG = """\
(EngineCore pid=88) WARNING 08-31 20:10:44 [kv_cache.py:151] Using KV cache scaling factor 1.0 for fp8_e4m3. If
(APIServer pid=1) WARNING 06-26 15:11:37 [envs.py:1830] Unknown vLLM environment variable detected: VLLM_USE_V1
(EngineCore pid=88) INFO 08-31 20:12:44 [shm_broadcast.py:681] No available shared memory broadcast block found in 60 s
(APIServer pid=1) INFO 08-31 20:14:09 [launcher.py:37] Application startup complete.
"""
RUNNING = replace(CONTAINER, state="running", started_at="2026-01-02T03:04:05.5Z")


class Engine:
    """Has one log; ``asked`` is how it was read."""

    def __init__(self, log: str = LOG) -> None:
        self.log = log
        self.asked: dict[str, Any] = {}

    def logs(self, _container: str, **how: Any) -> str:
        self.asked = how
        return self.log


def names(container: Container, log: str = LOG) -> set[str]:
    return {one.rule for one in notices(Engine(log), container)}  # type: ignore[arg-type]


def test_what_a_healthy_server_admits() -> None:
    engine = Engine()
    found = {one.rule: one for one in notices(engine, RUNNING)}  # type: ignore[arg-type]
    assert set(found) == {"kv_scales", "unknown_variable"}  # what it has survived is not among them
    assert found["unknown_variable"].cause.endswith(": VLLM_USE_V1")
    assert engine.asked["since"] == "1767323045.500000000" and engine.asked["until"].startswith("1767324845.5")


def test_only_of_what_runs() -> None:
    assert names(replace(RUNNING, state="exited")) == set()
    assert names(replace(RUNNING, started_at="")) == set()
    assert of_all(Engine(), [replace(RUNNING, labels={COMPOSE_ONE_OFF: "True"})]) == {}  # type: ignore[arg-type]
    assert names(RUNNING, "INFO all is well\n") == set()


def test_a_failure_that_was_caught_is_no_notice() -> None:
    assert names(RUNNING, LOG + "torch.AcceleratorError: CUDA error: device-side assert triggered\n") == {
        "kv_scales", "unknown_variable",
    }  # fmt: skip


def test_each_notice_has_a_fix_or_is_harmless() -> None:
    known = {rule.rule: rule.cure for rule in rules() if rule.notice}
    assert set(OVER) <= known.keys()
    assert {"kv_scales", "fallback", "kernels_missing", "unknown_variable", "other_template"} <= known.keys()
    assert all(cure.startswith("harmless") or len(cure) > 60 for cure in known.values())


def test_up_tells_them(capsys: pytest.CaptureFixture[str]) -> None:
    services = {"serve": Service(("serve",))}
    profile = Profile("lab", "prod", Mode.PRODUCTION, Base(ImageRef.parse("none:1")), services=services)
    started = StartResult(RUNNING, 1.0, "", False, notices=notices(Engine(), RUNNING))  # type: ignore[arg-type]
    live = LiveService(Deployment(profile, Path()), "serve")
    print_started(live, started)
    said = capsys.readouterr().out
    assert "  note: the FP8 KV cache has no scaling factors of its own" in said and "harmless for most models" in said
    assert "Unknown vLLM environment variable detected: VLLM_USE_V1" in said
    document = started_document(live, started, waited=True)
    assert [one["rule"] for one in document["notices"]] == ["unknown_variable", "kv_scales"]
