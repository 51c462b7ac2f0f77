"""What answers like an engine in trouble, on a real socket: every verb ends, in one sentence and in little memory."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from projects import BASE, Project

from envgen.engine.endpoint import find_endpoint

pytestmark = pytest.mark.engine

GREETING = b"HTTP/1.1 200 OK\r\nApi-Version: 1.51\r\nServer: Docker/28.5.2 (linux)\r\nContent-Length: 2\r\n\r\nOK"
VERBS = (("doctor",), ("ps",), ("cache", "list"), ("up", "web"))
PROJECT = """\
version: 1
name: envgentestbounds
profiles:
  dev:
    mode: development
    gpu: none
    base: {image: "debian:12"}
    cuda: {arch_list: 12.1a}
    caches: {flashinfer: {path: /root/.cache/flashinfer}}
    services: {web: {command: [sleep, "9"]}}
"""
MEMORY = 100 << 20  # bytes more than the same verb without any engine
TIME = 60  # seconds; on an idle machine each takes less than 10, and with no limit it takes for ever

Serve = Callable[[socket.socket], None]


def never(client: socket.socket) -> None:
    client.recv(1)
    time.sleep(600)


def trickle(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        client.sendall(b" ")
        time.sleep(0.2)


def trickled_headers(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        client.sendall(b"x")
        time.sleep(0.2)


def endless_headers(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        client.sendall(b"X-Same: again\r\n" * 1000)


def endless_greetings(client: socket.socket) -> None:
    while True:
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def endless_body(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        client.sendall(b" " * 65536)


def endless_chunks(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        client.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")


def greeted(client: socket.socket) -> bool:
    """Answer the greeting as an engine does; False for any other request, which is not answered."""
    if b"_ping" not in client.recv(1 << 16):
        return False
    client.sendall(GREETING)
    return True


def silent_after_the_greeting(client: socket.socket) -> None:
    """An engine that is stopped (SIGSTOP) in the middle."""
    while greeted(client):
        pass
    time.sleep(600)


def floods_after_the_greeting(client: socket.socket) -> None:
    while greeted(client):
        pass
    endless_chunks(client)


def gone_after_the_greeting(client: socket.socket) -> None:
    while greeted(client):
        pass


def lies_after_the_greeting(client: socket.socket) -> None:
    """Well-formed answers of another form."""
    body = json.dumps([{"Id": 7, "State": 7}, "x", None]).encode()
    while True:
        if not greeted(client):
            client.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


@contextlib.contextmanager
def server(serve: Serve, path: Path) -> Iterator[str]:
    """A listening unix socket; each connection is served in a thread of its own."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)

    def one(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            serve(client)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"unix://{path}"
    listener.close()


def run_all(host: str, folder: Path) -> list[tuple[tuple[str, ...], int, str, int]]:
    """All verbs at once: (words, exit code, output, peak of memory in bytes)."""
    (folder / "envgen.yaml").write_text(PROJECT)
    env = {**os.environ, "DOCKER_HOST": host}
    started = []
    for number, words in enumerate(VERBS):
        file = (folder / f"out{number}").open("w+")
        argv = [sys.executable, "-m", "envgen", *words]
        started.append((words, file, subprocess.Popen(argv, cwd=folder, env=env, stdout=file, stderr=file)))
    found, deadline = [], time.monotonic() + TIME
    for words, file, child in started:
        with file:
            while True:
                pid, status, usage = os.wait4(child.pid, os.WNOHANG)
                if pid:
                    break
                if time.monotonic() > deadline:
                    child.kill()
                time.sleep(0.05)
            child.returncode = os.waitstatus_to_exitcode(status)
            file.seek(0)
            found.append((words, child.returncode, file.read(), usage.ru_maxrss * 1024))
    return found


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> int:
    """What these verbs need where there is no engine at all."""
    folder = tmp_path_factory.mktemp("bounds")
    return max(memory for *_, memory in run_all(f"unix://{folder}/no.sock", folder))


TROUBLES: dict[Serve, str] = {
    never: "did not answer within",
    trickle: "did not answer within",
    trickled_headers: "did not answer within",
    endless_headers: "is not HTTP",
    endless_greetings: "did not answer within",
    endless_body: "more than 16 MiB",
    endless_chunks: "more than 16 MiB",
    silent_after_the_greeting: "did not answer within",
    floods_after_the_greeting: "more than 16 MiB",
    gone_after_the_greeting: "closed the connection",
    lies_after_the_greeting: "another form",
}


@pytest.mark.parametrize("serve", TROUBLES, ids=lambda serve: serve.__name__)
def test_every_verb_ends(serve: Serve, tmp_path: Path, usual: int) -> None:
    with server(serve, tmp_path / "s") as host:
        for words, code, output, memory in run_all(host, tmp_path):
            # doctor reports it as a finding among others.
            assert code == (1 if words == ("doctor",) else 3), (words, code, output)
            assert TROUBLES[serve] in output and "Traceback" not in output, (words, output)
            assert memory < usual + MEMORY, (words, f"{memory >> 20} MiB against {usual >> 20} MiB")


# --- a real engine that goes in the middle ----------------------------------------------------------------------------

SLOW = """\
profiles:
  dev:
    mode: development
    gpu: none
    base: {image: IMAGE}
    cuda: {arch_list: 12.1a}
    services:
      web:
        command: [sh, -c, "while :; do seq 1 1000; sleep 0.1; done"]
        ports: ["127.0.0.1:PORT:8000"]
        health: {command: ["false"], interval: 1s, start_period: 600s}
        ready: {timeout: TIMEOUT}
        restart: "no"
"""


class Cut:
    """The real engine behind a socket that can go away, with all connections, as that of a killed dockerd does."""

    def __init__(self, path: Path) -> None:
        self.host = f"unix://{path}"
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._socks: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, far = self._listener.accept()[0], socket.socket(socket.AF_UNIX)
                far.connect(find_endpoint().host.removeprefix("unix://"))
                self._socks += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """From now on nothing listens there, and what was connected is not."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def slow(make_project: Callable[..., Project], free_port: int) -> Callable[[str, str], Project]:
    def make(name: str, timeout: str) -> Project:
        text = SLOW.replace("IMAGE", BASE).replace("PORT", str(free_port)).replace("TIMEOUT", timeout)
        return make_project(name, text)

    return make


def test_an_engine_that_is_killed_while_up_waits(slow: Callable[[str, str], Project], tmp_path: Path) -> None:
    made, engine = slow("envgentestcut", "300s"), Cut(tmp_path / "s")
    made.envgen("build")
    argv = [sys.executable, "-m", "envgen", "up", "web"]
    with subprocess.Popen(argv, cwd=made.root, env={**os.environ, "DOCKER_HOST": engine.host}, text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:  # fmt: skip
        assert child.stderr
        while "running" not in (line := child.stderr.readline()):
            assert line, "it ended before the service ran"
        engine.cut()
        said = child.communicate(timeout=TIME)[1]
    assert child.returncode == 3, said
    assert "the Docker Engine at" in said and "internal error" not in said


def test_an_engine_that_is_killed_in_a_build(make_project: Callable[..., Project], tmp_path: Path) -> None:
    text = SLOW.replace("IMAGE", BASE).replace("PORT", "1").replace("TIMEOUT", "9s")
    made, engine = make_project("envgentestcut2", text + "    apt: {build: [hello, cowsay]}\n"), Cut(tmp_path / "s")
    argv = [sys.executable, "-m", "envgen", "build", "--no-cache", "--unlocked"]
    with subprocess.Popen(argv, cwd=made.root, env={**os.environ, "DOCKER_HOST": engine.host}, text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:  # fmt: skip
        assert child.stderr
        while "Installs packages" not in (line := child.stderr.readline()):
            assert line, "it ended with its first step"
        engine.cut()
        said = child.communicate(timeout=TIME)[1]
    assert child.returncode in (3, 4), said
    assert "internal error" not in said


def test_a_service_that_writes_10000_lines_a_second_is_given_up_in_time(slow: Callable[[str, str], Project]) -> None:
    """Each look reads what is new, not the whole log from its beginning."""
    made = slow("envgentestchatty", "12s")
    made.envgen("build")
    argv = [sys.executable, "-m", "envgen", "up", "web"]
    done = subprocess.run(argv, cwd=made.root, capture_output=True, text=True, timeout=12 + TIME, check=False)
    assert done.returncode == 5 and "not ready in time" in done.stderr, done.stderr
