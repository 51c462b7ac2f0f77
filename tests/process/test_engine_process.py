"""The subprocess door, with real programs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from local import until

from envgen import files
from envgen.engine import host, process
from envgen.errors import EngineError, ExitCode, ProcessError

pytestmark = pytest.mark.engine


def alive(pid: int) -> bool:
    """True for a process that runs; a zombie that nobody has collected yet is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def ends(pid: int) -> None:
    until(lambda: not alive(pid))


def test_output_input_and_environment() -> None:
    done = process.run(["sh", "-c", 'cat; echo "$X" >&2'], stdin=b"in", env={"X": "y"})
    assert (done.stdout, done.stderr, done.code) == (b"in", b"y\n", 0)


def test_a_failure_tells_program_code_and_the_end_of_stderr() -> None:
    with pytest.raises(ProcessError) as caught:
        process.run(["sh", "-c", "seq 100 >&2; exit 9"])
    assert caught.value.code == 9 and caught.value.exit_code == ExitCode.ENGINE
    assert "ended with 9" in str(caught.value) and "100" in str(caught.value) and "\n5\n" not in str(caught.value)
    assert process.run(["sh", "-c", "exit 9"], check=False).code == 9


LOCKS = """
import sys, time
from pathlib import Path
from envgen import files
with files.locked(Path(sys.argv[1]), within=Path(sys.argv[1]).parent, on_wait=lambda: None):
    print("has it", flush=True)
    time.sleep(1000)
"""


def test_who_waits_for_a_lock_is_told_before(tmp_path: Path) -> None:
    class Waiting(Exception):
        pass

    def refuse() -> None:
        raise Waiting

    lock = tmp_path / "a.lock"
    (tmp_path / "locks.py").write_text(LOCKS)
    with subprocess.Popen([sys.executable, str(tmp_path / "locks.py"), str(lock)], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout and child.stdout.readline()
            with pytest.raises(Waiting), files.locked(lock, within=tmp_path, on_wait=refuse):
                pass
        finally:
            child.kill()
    with files.locked(lock, within=tmp_path, on_wait=refuse):
        pass  # the lock of a killed process ends with it


def test_no_shell_ever_sees_an_argument(tmp_path: Path) -> None:
    evil = f"$(touch {tmp_path}/x); `id`"
    assert process.run(["printf", "%s", evil]).stdout.decode() == evil
    assert not list(tmp_path.iterdir())


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(EngineError, match="'envgen-no-such-program' is not installed"):
        process.run(["envgen-no-such-program"])
    with pytest.raises(EngineError, match="cannot run /etc/passwd"):
        process.run(["/etc/passwd"])


@pytest.mark.parametrize("polite", ["", "trap '' INT TERM; "])
def test_a_time_out_ends_the_whole_group(tmp_path: Path, polite: str) -> None:
    script = f"{polite}sleep 1000 & echo $! >{tmp_path}/pid; echo hello >&2; wait"
    with pytest.raises(process.ProcessTimeout, match=r"did not end within 0\.5 s"):
        process.run(["sh", "-c", script], timeout=0.5)
    ends(int((tmp_path / "pid").read_text()))


def test_lines_come_as_they_are_written(tmp_path: Path) -> None:
    """The program goes on only when its first line was seen."""
    seen: list[str] = []

    def on_line(line: str) -> None:
        seen.append(line)
        (tmp_path / "go").touch()

    script = f"echo a; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo b >&2; printf 'c\\r\\nno newline'; exit 3"
    done = process.run(["sh", "-c", script], check=False, on_line=on_line)
    assert done.code == 3 and done.stderr == b"b\n" and seen[0] == "a"
    assert sorted(seen[1:]) == ["b", "c", "no newline"]


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    sizes: list[int] = []
    done = process.run(["head", "-c", "5000000", "/dev/zero"], on_line=lambda line: sizes.append(len(line)))
    assert len(done.stdout) == 64 << 10 and sum(sizes) == 5_000_000 and max(sizes) < 1_200_000


INTERRUPTED = """
import sys
from envgen import files
from envgen.engine import process
try:
    process.run(['sh', '-c', {script!r}])
except KeyboardInterrupt:
    sys.exit(130)
"""
CHILD = "trap 'echo polite >{folder}/said; exit 1' INT; echo $$ >{folder}/pid; while :; do sleep 0.1; done"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_envgen_leaves_nothing_running(tmp_path: Path, signum: int) -> None:
    code = INTERRUPTED.format(script=CHILD.format(folder=tmp_path))
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    pid = tmp_path / "pid"
    until(lambda: pid.exists() and pid.read_text())
    os.kill(child.pid, signum)
    assert child.wait(timeout=20) == 130
    ends(int(pid.read_text()))
    assert (tmp_path / "said").read_text() == "polite\n"


def test_a_killed_program_leaves_the_terminal_as_it_was() -> None:
    terminal, side = os.openpty()
    before = termios.tcgetattr(side)
    code = f"from envgen.engine import process; process.interactive({['sh', '-c', 'stty raw -echo; kill -9 $$']}, {{}})"
    subprocess.run([sys.executable, "-c", code], stdin=side, check=True)
    assert termios.tcgetattr(side) == before
    os.close(terminal)
    os.close(side)


def test_input_and_output_of_any_size_pass_each_other() -> None:
    data = bytes(range(256)) * 8000
    done = process.run(["tee", "/dev/stderr"], stdin=data, limit=10 << 20)
    assert (done.code, done.stdout, done.stderr) == (0, data, data)
    assert process.run(["true"], stdin=data, limit=1).code == 0  # reads none of it


def test_lines_come_whole_from_each_stream() -> None:
    seen: list[str] = []
    script = "printf a; sleep 0.2; printf 'x\\r\\n' >&2; sleep 0.2; printf 'b\\nc'; sleep 0.2; printf y >&2"
    process.run(["sh", "-c", script], limit=100, on_line=lambda line: seen.append(line))
    assert sorted(seen) == ["ab", "c", "x", "y"]


def test_too_much_ends_it(tmp_path: Path) -> None:
    with pytest.raises(process.OutputTooLong):
        process.run(["sh", "-c", f"echo $$ >{tmp_path}/pid; yes"], timeout=20, limit=1 << 20)
    ends(int((tmp_path / "pid").read_text()))


def test_a_program_that_watches_its_input_sees_the_end_of_envgen(tmp_path: Path) -> None:
    code = (
        "from envgen.engine import process\n"
        f"process.run(['sh', '-c', 'read line; echo $line >{tmp_path}/a; read more; echo >{tmp_path}/b'],"
        " stdin=b'hello\\n', hold=True)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        until((tmp_path / "a").exists)
        assert not (tmp_path / "b").exists()
        parent.kill()
    until((tmp_path / "b").exists)


def test_a_program_on_our_own_terminal_gives_its_code() -> None:
    assert process.interactive(["sh", "-c", "exit 5"], {}) == 5
    with pytest.raises(EngineError):
        process.interactive(["envgen-no-such-program"], {})


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_port_is_taken_while_something_listens(family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, 0))
        server.listen()
        port = server.getsockname()[1]
        assert host.is_taken(port, address) and (family is socket.AF_INET6 or host.is_taken(port))
        with socket.create_connection((address, port)) as client, server.accept()[0]:
            assert client
    assert not host.is_taken(port, address), "an ended connection takes nothing"
    assert not host.is_taken(port, "192.0.2.1"), "no address of this machine: Docker says so"
