"""A proxy in front of a real engine keeps back one answer, or all from one on: each command ends, and says so."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine_proxy import Proxy
from local import free_port
from projects import Project

pytestmark = [pytest.mark.engine, pytest.mark.nightly]
TIME = 180  # seconds; each needs less than 60, and without a question beside them for ever
VERBS = ("status", "ps", "doctor", "logs web", "prune --dry-run")
# The second: `status`; the third: of packages that `upgrade` resolves in an image.
SENTENCES = ("does not answer in time", "engine      no answer within", "no Docker Engine answers")
STOPPED = (
    *("up web", "restart web", "stop web", "down", "run web true", "exec web true", "logs web", "ps", "status"),
    *("build --no-cache", "doctor", "smoke web", "upgrade", "prune --yes", "cache list", "cache why page"),
    *("cache clear page --yes", "cache warm page"),
)
FILE = """
profiles:
  dev:
    mode: development
    gpu: none
    caches: {flashinfer: {path: /root/.cache/flashinfer}}
    services: {web: {command: [python3, -m, http.server, "8000"], ports: ["127.0.0.1:PORT:8000"]}}
"""


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project]) -> Project:
    made = make_project("envgentestsilent", FILE.replace("PORT", str(free_port())))
    for verb in ("lock", "build", "up web"):
        made.envgen(*verb.split())
    return made


@pytest.mark.parametrize("verb", VERBS)
def test_an_answer_that_never_comes_is_an_error_or_not_needed(project: Project, tmp_path: Path, verb: str) -> None:
    def run(at: int) -> tuple[int, str, list[str]]:
        engine = Proxy(tmp_path / f"s{at}", at)
        done = project.envgen(*verb.split(), code=None, env={"DOCKER_HOST": engine.host})
        engine.cut()
        return done.code, done.out, engine.asked

    code, usual, asked = run(-1)
    assert code == 0 and asked
    with ThreadPoolExecutor(8) as at_once:
        for at, (code, shown, _) in enumerate(at_once.map(run, range(len(asked)))):
            assert code != 70, (asked[at], shown)
            # A question that is asked again, or whose answer was not needed, changes nothing.
            same = len(shown.splitlines()) == len(usual.splitlines())
            assert code in (1, 3, 4) or same, (asked[at], code, shown, usual)


def test_an_engine_that_stops_ends_each_command(project: Project, tmp_path: Path) -> None:
    """Before the first request, the first of one of Docker's programs, and the first that would change something."""
    asked = dict[str, list[str]]()
    for verb in STOPPED:
        project.envgen("up", "web", "--recreate")
        engine = Proxy(tmp_path / "usual")
        project.envgen(*verb.split(), code=None, env={"DOCKER_HOST": engine.host})
        engine.cut()
        (tmp_path / "usual").unlink()
        asked[verb] = engine.asked

    def run(verb: str, at: int) -> tuple[str, str, int, str]:
        engine = Proxy(tmp_path / f"{STOPPED.index(verb)}.{at}", at, stops=True)
        with project.start(*verb.split(), env={"DOCKER_HOST": engine.host}) as child:
            shown = "".join(child.communicate(timeout=TIME))
        engine.cut()
        return verb, "".join(engine.asked[at : at + 1]), child.returncode, shown

    moments = list[tuple[str, int]]()
    for verb, requests in asked.items():
        kinds = [(one.split()[0], one.split()[1] in ("POST", "DELETE")) for one in requests]
        moments += [(verb, at) for at in sorted({kinds.index(kind) for kind in kinds})]
    with ThreadPoolExecutor(8) as at_once:
        ends = list(at_once.map(lambda moment: run(*moment), moments))
    assert len(ends) > 2 * len(STOPPED)
    for verb, request, code, shown in ends:
        reached = bool(request)  # what `prune` removes, it removes once
        assert not reached or any(sentence in shown for sentence in SENTENCES), (verb, request, shown)
        assert not reached or code in (3, {"doctor": 1, "upgrade": 7}.get(verb)), (verb, request, code, shown)
