"""`envgen bisect`: one package of ten breaks the start, one changes an answer, one halves the speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from local import free_port
from projects import Project, docker, interrupt, lean_base
from toy_index import RELEASES, index, write_index

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

NAME = "envgentestbisect"
BASE = f"{NAME}base:1"
TEXT = """\
profiles:
  prod:
    mode: production
    base: {image: "BASE"}
    pip: {extra_indexes: ["INDEX"], tools: [llama-benchy]}
    sources:
      toy:
        package: toyserver
        distribution: toyserver
        mount: /workspace/toy
        origin: {wheel: toyserver==3.0}
        install: {dependencies: true}
    services:
      serve:
        command: [python3, -m, toyserver]
        args: {port: 8000}
        ports: ["127.0.0.1:PORT:8000"]
        ready: {port: 8000, model: toy, prompt: one}
"""
CULPRITS = {"start": "toystart", "answers": "toyanswer", "decode < -5%": "toyspeed"}


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Its lock is good; BAD locks are beside it, in which a culprit and all that is harmless are newer."""
    lean_base(BASE)
    top = tmp_path_factory.mktemp("index")
    gateway = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
    with index(top, gateway) as address:
        text = TEXT.replace("BASE", BASE).replace("INDEX", address).replace("PORT", str(free_port()))
        made = make_project(NAME, text)
        lock = made.root / "envgen.lock"
        write_index(top, [one for one in RELEASES if one[1] != "2.0"])
        made.envgen("lock")
        good = lock.read_bytes()
        for culprit in CULPRITS.values():
            newer = [one for one in RELEASES if one[1] != "2.0" or one[0] == culprit or "fill" in one[0]]
            write_index(top, newer)
            made.envgen("lock", "--upgrade", "pip")
            lock.rename(made.root / f"{culprit}.lock")
            lock.write_bytes(good)
        write_index(top)
        made.envgen("up", "serve", "--yes")
        yield made
        docker("image", "rm", "-f", f"{NAME}:prod-bisect", f"{NAME}:prod-before", BASE, check=False)


@pytest.mark.parametrize("test", CULPRITS)
def test_one_of_ten(project: Project, test: str) -> None:
    culprit, lock = CULPRITS[test], (project.root / "envgen.lock").read_bytes()
    words = ("bisect", "envgen.lock", f"{culprit}.lock", "--test", test, "--yes", "--json")
    found = project.envgen(*words).json
    assert found["changes"] == [{"name": culprit, "good": "1.0", "bad": "2.0"}]
    assert found["tried"] <= 6
    assert (project.root / "envgen.lock").read_bytes() == lock
    assert project.envgen("up", "serve", "--json").json["already_running"]


def test_a_command_a_break_and_what_moves_together(project: Project) -> None:
    """A step that was done is not done again, and `up` starts what ran before."""
    fails = "! docker exec envgentestbisect-prod-serve-1 pip show toyfillf | grep -q 'Version: 2'"
    words = ("bisect", "envgen.lock", "toyspeed.lock", "--yes", "--json", "--", "sh", "-c", fails)
    child = project.start(*words)
    assert child.stderr
    while "bad: " not in child.stderr.readline():
        assert child.poll() is None
    interrupt(child)
    project.envgen("up", "serve")
    done = project.envgen(*words)
    assert [one["name"] for one in done.json["changes"]] == ["toyfille", "toyfillf"]
    same = project.envgen("bisect", "envgen.lock", "envgen.lock", "--yes", code=6)
    assert "both sides lock the same" in same.err
