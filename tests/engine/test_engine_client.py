"""The engine over its socket: real containers. What is not an engine: tests/process/test_engine_trouble.py."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from local import until
from projects import BASE, docker

from envgen.engine.client import Engine
from envgen.engine.host import THROWAWAY
from envgen.engine.values import ContainerMount
from envgen.errors import EngineError

pytestmark = pytest.mark.engine

NAME = "envgentest-client"


@pytest.fixture(scope="module")
def box(engine: Engine) -> Iterator[str]:
    """A running container."""
    docker("rm", "-f", NAME, check=False)
    yield docker("run", "-d", "--name", NAME, "--label", "x=y", "-e", "FROM_IMAGE=1", BASE, "sleep", "1000")
    docker("rm", "-f", NAME)


def test_invalid_names_are_refused_or_name_nothing(engine: Engine) -> None:
    for name in ("", "../../x"):
        assert engine.image(name) is None and engine.container(name) is None
    for name in ("UPPER CASE", "a\nb", "a?b=c", "a#b"):
        try:  # it depends on the engine's image store which
            assert engine.image(name) is None
        except EngineError as error:
            assert "invalid reference format" in str(error)


def test_exec(engine: Engine, box: str) -> None:
    done = engine.exec(
        box, ["sh", "-c", 'cat; pwd; echo "$A" >&2; id -u; exit 3'],
        stdin=b"hello\n", env={"A": "b c\n$d"}, user="1", workdir="/tmp",
    )  # fmt: skip
    assert (done.code, done.stdout, done.stderr) == (3, b"hello\n/tmp\n1\n", b"b c\n$d\n")


def test_exec_of_what_is_not_there(engine: Engine, box: str) -> None:
    done = engine.exec(box, ["envgen-no-such-program"])
    assert done.code in (126, 127) and b"not found" in done.stdout + done.stderr
    with pytest.raises(EngineError, match="No such container"):
        engine.exec("envgen-no-such-container", ["true"])


@pytest.mark.parametrize(
    ("script", "limit", "why"), [("sleep 777", 1, "did not end within 1 s"), ("yes", 60, "wrote more than 10 MiB")]
)
def test_exec_that_takes_or_writes_too_much_is_ended_with_its_children(
    engine: Engine, box: str, script: str, limit: float, why: str
) -> None:
    with pytest.raises(EngineError, match=why):
        engine.exec(box, ["sh", "-c", f"sleep 777 & {script}"], timeout=limit)
    assert docker("exec", box, "sh", "-c", "grep -al '^sleep.777' /proc/[0-9]*/cmdline || true") == ""


def throwaways() -> str:
    return docker("ps", "-aq", "--filter", f"label={THROWAWAY}")


def test_run_once(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mounted")
    done = engine.run_once(
        BASE, ["sh", "-c", 'cat; cat /m/file; echo "$A" >&2; : >/m/new; exit 4'],
        stdin=b"in,", env={"A": "b"}, mounts=[ContainerMount(str(tmp_path), "/m", read_only=True)],
    )  # fmt: skip
    assert done.stdout == b"in,mounted" and done.stderr.startswith(b"b\n") and b"Read-only" in done.stderr
    assert done.code != 0 and not (tmp_path / "new").exists()
    assert throwaways() == ""


def test_run_once_has_no_network_unless_asked(engine: Engine) -> None:
    assert engine.run_once(BASE, ["sh", "-c", "ls /sys/class/net"]).stdout == b"lo\n"
    assert b"eth0" in engine.run_once(BASE, ["sh", "-c", "ls /sys/class/net"], network="bridge").stdout


def test_run_once_is_removed_whatever_happens(engine: Engine) -> None:
    with pytest.raises(EngineError, match="did not end within 1 s"):
        engine.run_once(BASE, ["sleep", "777"], timeout=1)
    with pytest.raises(EngineError, match="not found"):
        engine.run_once(BASE, ["envgen-no-such-program"])
    with pytest.raises(EngineError, match="No such image"):
        engine.run_once("envgen-no-such-image:1", ["true"])
    assert throwaways() == ""


@contextlib.contextmanager
def killed_run(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """An envgen of its own with a temporary container, killed as soon as that runs."""
    before = throwaways().split()
    code = f"from envgen.engine.client import connect\nconnect().run_once({BASE!r}, {words!r}, timeout=900)"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            until(lambda: set(docker("ps", "-q", "--filter", f"label={THROWAWAY}").split()) - set(before))
            yield process
        finally:
            process.kill()  # else a test that failed would wait for it


def test_what_a_killed_run_left_is_found_a_day_later_and_removed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {one.id for one in engine.leftovers()}
    with killed_run("sleep", "777") as process:
        process.kill()
        process.wait()
        assert {one.id for one in engine.leftovers()} == before, "somebody may wait for it"
        monkeypatch.setattr("envgen.engine.host.RUNS", 0.0)
        found = [one for one in engine.leftovers() if one.id not in before]
        assert len(found) == 1
        config = (engine.inspect(found[0].id) or {})["HostConfig"]
        assert config["Memory"] == config["MemorySwap"] == 4 << 30 and config["PidsLimit"] == 4096
        assert engine.remove_container(found[0].id) == ""
        assert engine.container(found[0].id) is None
        assert engine.remove_container(found[0].id) == "", "what is gone is not a problem"


def test_a_program_that_eats_the_memory_is_killed_alone(engine: Engine) -> None:
    done = engine.run_once(BASE, ["python3", "-c", "x = bytearray(200 << 20); print(len(x))"], memory=64 << 20)
    assert done.code == 137 and done.stdout == b""


def test_a_program_that_watches_its_input_ends_with_a_killed_envgen(box: str) -> None:
    """As the agent of the cache does."""
    code = (
        "from envgen.engine.client import connect\nfrom envgen.inside import run\n"
        "class Sleeps(run.Program):\n"
        "    def files(self):\n"
        "        return {run.module_of(self.entry): 'import time\\ndef answer(request): time.sleep(777)'}\n"
        f"execute = run.in_container(connect(), {box!r}, hold=True)\n"
        "run.ask(execute, 'python3', Sleeps('hub', watch=True), {}, timeout=900)"
    )

    def agents() -> str:
        return docker("exec", box, "sh", "-c", "grep -l 'envgen-[i]nside' /proc/[0-9]*/cmdline || true")

    with subprocess.Popen([sys.executable, "-c", code]) as process:
        until(agents)
        process.kill()
    until(lambda: not agents())


def test_logs_with_and_without_a_terminal(engine: Engine) -> None:
    for terminal in ([], ["-t"]):
        script = "for i in 1 2 3; do echo $i; echo e$i >&2; sleep 0.05; done"
        found = docker("run", "-d", *terminal, BASE, "sh", "-c", script)
        try:
            docker("wait", found)
            words = engine.logs(found, tail=4).split()
            # The engine copies the two streams by themselves: which of a pair comes first is chance.
            assert [{*words[:2]}, {*words[2:]}] == [{"2", "e2"}, {"3", "e3"}]
        finally:
            docker("rm", "-f", found)
    assert engine.logs("envgen-no-such-container") == ""
