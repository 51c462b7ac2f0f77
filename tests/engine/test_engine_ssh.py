"""An engine over SSH: a real sshd on loopback in front of the real engine, with keys and configuration of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from local import free_port, listens, until
from projects import BASE, Project, docker

from envgen.engine.client import Engine, connect
from envgen.engine.endpoint import find_endpoint, forward
from envgen.errors import EngineError, ExitCode

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

USER = pwd.getpwuid(os.getuid()).pw_name
CONFIG = """
Host spark
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
Host stranger
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/user
  UserKnownHostsFile {folder}/nobody_is_known
  GlobalKnownHostsFile /dev/null
Host locked
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/other
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
"""


@dataclass(frozen=True)
class Spark:
    """A machine that is reached by the names ``spark``, ``stranger`` and ``locked``; its engine's socket."""

    folder: Path
    socket: str
    pid: int

    def env(self, host: str = "spark", path: str = "") -> dict[str, str]:
        """What a user would set; the folder's `ssh` reads only the folder's configuration."""
        return {**os.environ, "DOCKER_HOST": f"ssh://{host}{path or self.socket}",
                "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}  # fmt: skip

    def sessions(self) -> list[str]:
        """Processes of sshd that serve somebody."""
        done = subprocess.run(["pgrep", "-P", str(self.pid)], capture_output=True, text=True, check=False)
        return done.stdout.split()


@pytest.fixture(scope="module")
def spark(engine: Engine) -> Iterator[Spark]:
    """sshd on a free port. Its folder is short: a socket's path has 107 bytes."""
    program = shutil.which("sshd") or "/usr/sbin/sshd"
    if not Path(program).exists():
        pytest.fail("these tests need sshd: install Debian's openssh-server", pytrace=False)
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd locks itself up before a login
    folder = Path(f"/tmp/envgentest-ssh-{os.getpid()}")
    folder.mkdir(mode=0o700)
    for name in ("host", "user", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    port = free_port()
    (folder / "authorized").write_text((folder / "user.pub").read_text())
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        f"PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\n"
    )
    (folder / "config").write_text(CONFIG.format(port=port, user=USER, folder=folder))
    wrapper = folder / "bin" / "ssh"  # stands in for ~/.ssh/config, which is the tester's own
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    wrapper.chmod(0o755)
    words = [program, "-D", "-e", "-f", str(folder / "sshd_config")]
    with (folder / "log").open("w") as log, subprocess.Popen(words, stderr=log) as sshd:
        until(lambda: listens(port), "sshd does not listen")
        yield Spark(folder, find_endpoint().host.removeprefix("unix://"), sshd.pid)
        sshd.terminate()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def far(spark: Spark) -> Iterator[Engine]:
    """The engine over ssh, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", spark.env()["PATH"])
        yield connect(spark.env())


def test_it_is_the_same_engine(far: Engine, engine: Engine) -> None:
    assert far.info().name == engine.info().name and far.info().endpoint.startswith("ssh://spark")
    assert far.image(BASE) == engine.image(BASE)
    assert far.image("envgen-no-such-image:1") is None


def test_a_port_of_that_machine_is_reached_through_ssh(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", spark.env()["PATH"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        remote = server.getsockname()[1]
        before = len(spark.sessions())
        port = forward("ssh://spark", f"127.0.0.1:{remote}").port
        assert port != remote and len(spark.sessions()) == before + 1
        with socket.create_connection(("127.0.0.1", port), 20) as client:
            client.sendall(b"hello")
            received = b""
            while not received:  # the first connection only looked whether ssh listens
                with server.accept()[0] as accepted:
                    received = accepted.recv(5)
        assert received == b"hello"
        assert forward("ssh://spark", f"127.0.0.1:{remote}").port == port


def refusal(spark: Spark, host: str, path: str = "") -> EngineError:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", spark.env()["PATH"])
        with pytest.raises(EngineError) as caught:
            connect(spark.env(host, path))
    assert caught.value.exit_code == ExitCode.ENGINE and len(caught.value.problems) == 1
    return caught.value


def test_a_host_whose_key_is_unknown_is_refused(spark: Spark) -> None:
    error = str(refusal(spark, "stranger"))
    assert "ssh cannot connect to stranger" in error and "Host key verification failed" in error
    assert not (spark.folder / "nobody_is_known").exists()


def test_what_ssh_or_the_machine_refuses(spark: Spark) -> None:
    assert "Permission denied" in str(refusal(spark, "locked"))
    assert "ssh cannot connect to no-such-host.invalid" in str(refusal(spark, "no-such-host.invalid"))
    error = str(refusal(spark, "spark", "/no/such.sock"))
    assert "ssh reaches spark, but the Docker Engine's socket /no/such.sock there does not answer" in error


PROJECT = """
profiles:
  dev:
    mode: development
    services:
      web: {command: [python3, -m, http.server, "8000"], ports: ["PORT:8000"], restart: "no"}
"""


def test_every_verb_in_a_context(spark: Spark, make_project: Callable[..., Project]) -> None:
    env = spark.env()
    docker("context", "create", "envgentest-spark", "--docker", f"host={env['DOCKER_HOST']}")
    env |= {"DOCKER_CONTEXT": "envgentest-spark", "DOCKER_HOST": ""}
    made = make_project("envgentestssh", PROJECT.replace("PORT", f"127.0.0.1:{free_port()}"))
    try:
        made.envgen("render")
        made.envgen("build", env=env)
        assert docker("image", "inspect", "-f", "{{.Id}}", "envgentestssh:dev")
        made.envgen("up", "web", env=env)
        assert "running" in made.envgen("ps", env=env).out
        assert made.envgen("exec", "web", "--", "echo", "hello", env=env).out == "hello\n"
        made.envgen("logs", "web", env=env)
        report = made.envgen("doctor", "--json", env=env).json
        assert [f for f in report["findings"] if f["severity"] == "error"] == []
        made.envgen("restart", "web", env=env)
        assert made.envgen("cache", "list", env=env, code=None).code != 3
        made.envgen("down", env=env)
        assert docker("ps", "-aq", "--filter", "label=com.docker.compose.project=envgentestssh-dev") == ""
    finally:
        docker("context", "rm", "envgentest-spark")


def test_one_connection_that_ends_with_its_process(spark: Spark, tmp_path: Path) -> None:
    """However it ends: Python's exit and SIGKILL alike."""
    code = (
        "import sys, time\nfrom envgen.engine.client import connect\nengine = connect()\n"
        "for _ in range(3): engine.containers()\nprint('ready', flush=True)\ntime.sleep(float(sys.argv[1]))"
    )
    before = len(spark.sessions())
    for seconds, ending in (("0.5", None), ("60", signal.SIGKILL), ("60", signal.SIGTERM)):
        with subprocess.Popen([sys.executable, "-c", code, seconds], env=spark.env(), stdout=subprocess.PIPE) as child:
            assert child.stdout and child.stdout.readline() == b"ready\n"
            assert len(spark.sessions()) == before + 1
            if ending:
                child.send_signal(ending)
        until(lambda: len(spark.sessions()) == before, f"ssh outlived a process that ended by {ending}")


def test_a_connection_that_breaks_is_one_sentence(spark: Spark) -> None:
    code = "import sys\nfrom envgen.engine.client import connect\nengine = connect()\nprint('ready', flush=True)\n" \
           "sys.stdin.readline()\nfrom envgen.errors import EngineError\n" \
           "try: engine.containers()\nexcept EngineError as error: print(error)"  # fmt: skip
    before = spark.sessions()
    with subprocess.Popen([sys.executable, "-c", code], env=spark.env(), stdout=subprocess.PIPE, stdin=subprocess.PIPE,
                          text=True) as child:  # fmt: skip
        assert child.stdout and child.stdout.readline() == "ready\n"
        for session in set(spark.sessions()) - set(before):
            os.kill(int(session), signal.SIGKILL)
        time.sleep(0.5)
        printed = child.communicate("\n", timeout=60)[0]
    assert "the ssh connection to spark ended" in printed
