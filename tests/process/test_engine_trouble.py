"""What answers like no engine, or like one in trouble, on a real socket: one sentence, in bounded time and memory."""

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
from dataclasses import dataclass
from pathlib import Path

import pytest

from envgen.engine.client import connect
from envgen.errors import EngineError, ExitCode

VERSION = b'{"Version": "28.5.2", "ApiVersion": "1.51"}'
GREETING = f"HTTP/1.1 200 OK\r\nContent-Length: {len(VERSION)}\r\n\r\n".encode() + VERSION
VERBS = (("doctor",), ("cache", "list"))
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
TIME = 300  # seconds; on an idle machine each takes less than 10, and with no limit it takes for ever

Serve = Callable[[socket.socket], None]


@dataclass(frozen=True)
class Trouble:
    """What a server sends: a head, then a piece for ever; nothing: it is silent, or closes.

    ``greets``: it answers the greeting as an engine does, and only then is in trouble.
    """

    said: str
    head: bytes = b""
    piece: bytes = b""
    greets: bool = False
    closes: bool = False

    def __call__(self, client: socket.socket) -> None:
        asked = client.recv(1 << 16)
        while self.greets and b"GET /version " in asked:
            client.sendall(GREETING)
            asked = client.recv(1 << 16)
        client.sendall(self.head)
        while self.piece:
            client.sendall(self.piece)
        if not self.closes:
            time.sleep(600)


OK, LATE = b"HTTP/1.1 200 OK\r\n", "does not answer in time"
CHUNKS = (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65536 + b"\r\n")
LIES = json.dumps([{"Id": 7, "State": 7}, "x", None]).encode()  # well-formed, and of another form
TROUBLES = {
    "never": Trouble(LATE),
    "endless headers": Trouble("cannot reach the Docker Engine", OK, b"X-Same: again\r\n" * 1000),
    "endless chunks": Trouble("more than 16 MiB", *CHUNKS),
    "silent after the greeting": Trouble(LATE, greets=True),  # an engine that is stopped (SIGSTOP) in the middle
    "floods after the greeting": Trouble("more than 16 MiB", *CHUNKS, greets=True),
    "gone after the greeting": Trouble("cannot reach the Docker Engine", greets=True, closes=True),
    "lies after the greeting": Trouble(
        "does not have the form", OK + b"Content-Length: %d\r\n\r\n" % len(LIES) + LIES, greets=True, closes=True
    ),
}


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


@pytest.mark.parametrize("trouble", TROUBLES)
def test_every_verb_ends(trouble: str, tmp_path: Path, usual: int) -> None:
    with server(TROUBLES[trouble], tmp_path / "s") as host:
        for words, code, output, memory in run_all(host, tmp_path):
            # doctor reports it as a finding among others.
            assert code == (1 if words == ("doctor",) else 3), (words, code, output)
            assert TROUBLES[trouble].said in output and "Traceback" not in output, (words, output)
            assert memory < usual + MEMORY, (words, f"{memory >> 20} MiB against {usual >> 20} MiB")


# --- not an engine ----------------------------------------------------------------------------------------------------


def http(document: object, status: str = "200 OK") -> bytes:
    body = json.dumps(document).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def refusal(host: str) -> EngineError:
    with pytest.raises(EngineError) as caught:
        connect({"DOCKER_HOST": host, "PATH": os.environ["PATH"]})
    assert caught.value.exit_code == ExitCode.ENGINE and len(caught.value.problems) == 1
    return caught.value


def test_no_socket(tmp_path: Path) -> None:
    error = refusal(f"unix://{tmp_path}/no.sock")
    assert "the Docker Engine is not running: no socket at" in str(error) and "systemctl start" in str(error)


def test_a_stopped_engine_leaves_its_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "dead.sock"))
    assert "is stopped" in str(refusal(f"unix://{tmp_path}/dead.sock"))


def test_no_permission(tmp_path: Path) -> None:
    """As another user than root, who may do everything."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s.sock"))
        sock.listen()
        (tmp_path / "s.sock").chmod(0o600)
        for folder in (tmp_path, *tmp_path.parents):
            if folder.stat().st_uid == os.getuid() and folder.stat().st_mode & 0o005 != 0o005 and folder != Path("/"):
                folder.chmod(0o755)
        code = (
            "import os, envgen.engine.client as d, envgen.engine.sdk\nif os.getuid() == 0: os.setuid(65534)\n"
            f"try: d.connect({{'DOCKER_HOST': 'unix://{tmp_path}/s.sock'}})\nexcept d.EngineError as e: print(e)"
        )
        if os.getuid() != 0:
            (tmp_path / "s.sock").chmod(0)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "no permission to use the Docker Engine" in done.stdout and "group docker" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n", "cannot reach the Docker Engine"),
        (b"", "cannot reach the Docker Engine"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", "cannot reach the Docker Engine"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n<>", "not JSON"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "not JSON"),
        (http([]), "is not a Docker Engine"),
        (http({"message": "on fire"}, "500 Internal Server Error"), "on fire"),
    ],
)
def test_something_else_than_an_engine(tmp_path: Path, answer: bytes, sentence: str) -> None:
    with server(Trouble("", answer, closes=True), tmp_path / "s") as host:
        assert sentence in str(refusal(host))


def test_an_engine_that_names_no_version_of_its_api(tmp_path: Path) -> None:
    def serve(client: socket.socket) -> None:
        greeting = b"GET /version " in client.recv(1 << 16)
        client.sendall(http({"Version": "28.5.2", "ApiVersion": "1.51"} if greeting else []))

    with server(serve, tmp_path / "s") as host:
        assert connect({"DOCKER_HOST": host}).containers() == ()


def test_a_tcp_endpoint_where_nobody_listens(free_port: int) -> None:
    where = f"tcp://127.0.0.1:{free_port}"
    assert f"cannot reach the Docker Engine at {where}" in str(refusal(where))


def test_an_ssh_that_hangs_is_asked_once_and_ends_with_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "envgen.yaml").write_text(PROJECT)
    (tmp_path / "ssh").write_text(
        f"#!/bin/sh\necho $$ >>{tmp_path}/pids\nsleep 1000 &\necho $! >>{tmp_path}/pids\nwait\n"
    )
    (tmp_path / "ssh").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "DOCKER_HOST": "ssh://far"}
    argv = [sys.executable, "-m", "envgen", "doctor"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=TIME, check=False)
    assert done.returncode in (1, 3) and "ssh has not connected to far within 15 s" in done.stdout + done.stderr
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2  # one ssh, and its child
    left = [place for pid in pids if (place := Path(f"/proc/{pid}/cmdline")).exists() and place.read_bytes()]
    assert left == []  # a zombie of init's has no words
