"""`envgen bisect`: one package of ten breaks the start, one changes an answer, one halves the speed."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest
from projects import Project
from toy_index import CHANGES, RELEASES, toy_project, write_index

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

NAME = "envgentestbisect"
SPEEDS = "import itertools\nspeeds = itertools.cycle((60.0, 90.0))\ndef __getattr__(name):\n    return next(speeds)\n"
NOISY = ("toyspeed", "3.0", list[str](), SPEEDS)
# Another build of the same release, as indexes beside PyPI have them: it must not come for 1.0.
LOCAL = ("toystart", "1.0+local", list[str](), "raise RuntimeError('this build does not start')\n")
OTHERS = {"noisy": NOISY, "local": LOCAL}
CULPRITS = {"start": "toystart", "answers": "toyanswer", "decode < -5%": "toyspeed"}


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Its lock is good; BAD locks are beside it, in which a culprit and all that is harmless are newer."""
    top = tmp_path_factory.mktemp("index")
    with toy_project(make_project, NAME, top) as made:
        file, lock = made.root / "envgen.yaml", made.root / "envgen.lock"
        file.write_text(file.read_text().replace("toyserver==1.0", "toyserver==3.0"))
        write_index(top, [one for one in RELEASES if one[1] != "2.0"])
        made.envgen("lock")
        good = lock.read_bytes()
        harmless = [one for one in RELEASES if one[1] != "2.0" or "fill" in one[0]]
        for culprit in (*CULPRITS.values(), *OTHERS):
            newer = OTHERS.get(culprit) or next(one for one in RELEASES if one[:2] == (culprit, "2.0"))
            write_index(top, [*harmless, newer])
            made.envgen("lock", "--upgrade", "pip")
            lock.rename(made.root / f"{culprit}.lock")
            lock.write_bytes(good)
        write_index(top, [*RELEASES, *OTHERS.values()])
        made.envgen("up", "serve", "--yes")
        yield made


@pytest.mark.parametrize("test", CULPRITS)
def test_one_of_ten(project: Project, test: str) -> None:
    culprit, lock = CULPRITS[test], (project.root / "envgen.lock").read_bytes()
    words = ("bisect", "envgen.lock", f"{culprit}.lock", "--test", test, "--yes", "--json")
    found = project.envgen(*words).json
    changelog = CHANGES if culprit == "toyspeed" else ""
    assert found["changes"] == [{"name": culprit, "good": "1.0", "bad": "2.0", "changelog": changelog}]
    assert found["tried"] <= 6
    assert (project.root / "envgen.lock").read_bytes() == lock
    assert project.envgen("up", "serve", "--json").json["already_running"]


def test_another_build_of_the_same_release(project: Project) -> None:
    found = project.envgen("bisect", "envgen.lock", "local.lock", "--yes", "--json").json
    assert [(one["name"], one["bad"]) for one in found["changes"]] == [("toystart", "1.0+local")]


def test_what_is_within_noise(project: Project) -> None:
    """BAD is slower, but the two measurements of it differ by more."""
    same = project.envgen("bisect", "envgen.lock", "noisy.lock", "--test", "decode < -5%", "--yes", code=6)
    assert "do not differ in `decode < -5%`, beyond its noise" in same.err
    assert project.envgen("up", "serve", "--json").json["already_running"]


def test_a_side_that_fails_although_it_is_called_good(project: Project) -> None:
    failed = project.envgen("bisect", "toystart.lock", "toyspeed.lock", "--yes", code=6)
    assert "GOOD fails in `start`, too" in failed.err
    assert project.envgen("up", "serve", "--json").json["already_running"]


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_a_command_a_break_and_what_moves_together(project: Project, by: int) -> None:
    """A step that was done is not done again, and `up` starts what ran before."""
    fails = "! docker exec envgentestbisect-prod-serve-1 pip show toyfillf | grep -q 'Version: 2'"
    words = ("bisect", "envgen.lock", "toyspeed.lock", "--yes", "--json", "--", "sh", "-c", fails)
    child = project.start(*words)
    assert child.stderr
    while "bad: " not in child.stderr.readline():
        assert child.poll() is None
    child.send_signal(by)
    child.communicate()
    project.envgen("up", "serve")
    done = project.envgen(*words)
    assert "bad: 7 of 7" in done.err and "up serve" not in done.err.partition("bad: 7 of 7")[0]
    assert [one["name"] for one in done.json["changes"]] == ["toyfille", "toyfillf"]


@pytest.mark.parametrize("side", ["envgen.lock", "HEAD", "toy==3.0"])
def test_a_lock_a_revision_and_a_release(project: Project, side: str) -> None:
    for words in (["init", "-q"], ["add", "envgen.yaml", "envgen.lock"], ["commit", "-qm", "one", "--allow-empty"]):
        who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        subprocess.run(["git", *who, *words], cwd=project.root, check=True)
    same = project.envgen("bisect", side, side, "--yes", code=6)
    assert "both sides lock the same" in same.err
