"""A proxy in front of a real engine keeps back one answer after the other: each command ends, and says so."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from projects import Project

from envgen.engine.endpoint import find_endpoint

pytestmark = [pytest.mark.engine, pytest.mark.nightly]
VERBS = ("status", "ps", "doctor", "logs web", "prune --dry-run")
FILE = """
profiles:
  dev:
    mode: development
    gpu: none
    caches: {flashinfer: {path: /root/.cache/flashinfer}}
    services: {web: {command: [sleep, infinity]}}
"""
REQUEST = re.compile(rb"(GET|POST|DELETE|HEAD|PUT) (\S+) HTTP")


@dataclass
class Proxy:
    """Passes everything on, but the request ``at`` (from 0 on; -1: none)."""

    path: Path
    at: int
    asked: list[str] = field(default_factory=list)

    def serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.pass_on, args=(listener.accept()[0],), daemon=True).start()

    def pass_on(self, client: socket.socket) -> None:
        with socket.socket(socket.AF_UNIX) as engine, client, contextlib.suppress(OSError):
            engine.connect(find_endpoint().host.removeprefix("unix://"))
            back = threading.Thread(target=copied, args=(engine, client), daemon=True)
            back.start()
            while data := client.recv(1 << 16):
                if (request := REQUEST.match(data)) is not None:
                    self.asked.append(request[0].decode())
                    if len(self.asked) - 1 == self.at:
                        time.sleep(600)
                engine.sendall(data)
            engine.shutdown(socket.SHUT_WR)
            back.join()


def copied(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def proxy(folder: Path, at: int) -> Iterator[Proxy]:
    found = Proxy(folder / f"s{at}", at)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(found.path))
        listener.listen(64)
        threading.Thread(target=found.serve, args=(listener,), daemon=True).start()
        yield found
    found.path.unlink()


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project]) -> Project:
    made = make_project("envgentestsilent", FILE)
    made.envgen("build")
    made.envgen("up", "web")
    return made


@pytest.mark.parametrize("verb", VERBS)
def test_an_answer_that_never_comes_is_an_error_or_not_needed(project: Project, tmp_path: Path, verb: str) -> None:
    def run(at: int) -> tuple[int, str, list[str]]:
        with proxy(tmp_path, at) as engine:
            done = project.envgen(*verb.split(), code=None, env={"DOCKER_HOST": f"unix://{engine.path}"})
            return done.code, done.out, engine.asked

    code, usual, asked = run(-1)
    assert code == 0 and asked
    with ThreadPoolExecutor(8) as at_once:
        for at, (code, shown, _) in enumerate(at_once.map(run, range(len(asked)))):
            assert code != 70, (asked[at], shown)
            # A question that is asked again, or whose answer was not needed, changes nothing.
            same = len(shown.splitlines()) == len(usual.splitlines())
            assert code in (1, 3, 4) or same, (asked[at], code, shown, usual)
