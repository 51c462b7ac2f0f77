"""A start on several machines of which one goes away."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.app import cluster
from envgen.app.cluster import Group
from envgen.deployment import Deployment
from envgen.errors import EngineError

GONE = "ssh: connect to host spark-2 port 22: Connection timed out"


class Compose:
    """What was asked of one machine; one that is ``off`` answers nothing."""

    def __init__(self, off: bool) -> None:
        self.off, self.asked = off, list[str]()

    def run(self, *words: str, timeout: float) -> None:
        self.asked.append(" ".join(words))
        if self.off:
            raise EngineError(GONE)


class Launcher:
    """Starts a rank, unless its machine is off."""

    def __init__(self, compose: Compose) -> None:
        self.compose = compose

    def start(self, **_: Any) -> Any:
        if self.compose.off:
            raise EngineError(GONE)
        return SimpleNamespace(container=None, already=False)


@pytest.mark.parametrize("off", ["spark-1", "spark-2"])
def test_a_machine_that_is_switched_off_between_check_and_start(off: str, monkeypatch: pytest.MonkeyPatch) -> None:
    services = {"serve": SimpleNamespace(ready=None)}
    profile: Any = SimpleNamespace(name="prod", chosen="--profile prod", compose_name="p-prod", services=services)
    ranks = tuple(
        Deployment(profile, Path(), node).knowing(engine=None, compose=Compose(node == off))
        for node in ("spark-1", "spark-2")
    )
    monkeypatch.setattr(Group, "_launcher", lambda _self, here, _watch: Launcher(here.compose))
    monkeypatch.setattr(cluster, "Watch", lambda *_: SimpleNamespace(over=SimpleNamespace(set=lambda: None), add=added))
    seen = list[str]()

    def added(here: Deployment, *_: Any) -> None:
        seen.append(here.node)

    with pytest.raises(EngineError) as raised:
        Group(ranks, "serve").start(wait_for_it=True, timeout=None)
    first, left = raised.value.problems
    assert first.message == f"{off}: {GONE}"
    assert left.message.startswith(f"{off} could not be cleaned up ({GONE}); when it answers again: envgen down")
    assert "docker ps -aq --filter label=com.docker.compose.project=p-prod | xargs -r docker rm -f" in left.message
    assert [one.compose.asked for one in ranks] == [["--profile * rm --stop --force serve"]] * 2  # type: ignore[attr-defined]
    assert seen == ([] if off == "spark-2" else ["spark-2"])  # the worker comes first
