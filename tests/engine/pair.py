"""Two machines or more: real engines in network namespaces of their own, reached by ssh, joined by a cable."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import forked
import pytest
import yaml
from local import until
from projects import BASE, docker

from envgen.engine.client import Engine
from envgen.engine.endpoint import config_dir
from envgen.profile.load import load_project
from envgen.render.outputs import render_profile

ROOT = Path(__file__).resolve().parents[2]
CARD = "enp1s0f0np0"
IMAGE = "envgentest-pair:cpu"
# Other numbers where two runs share a computer.
_NUMBERS = os.environ.get("ENVGEN_TEST_NODES", "211,212,213,214").split(",")
FOUR = {f"spark-{place}": int(number) for place, number in enumerate(_NUMBERS, 1)}
NUMBERS = {name: FOUR[name] for name in ("spark-1", "spark-2")}
ADDRESS = {name: f"192.168.177.{number}" for name, number in NUMBERS.items()}
# Stands in for vLLM, which needs minutes to start here: the ranks meet at the head's port, then the head answers like
# vLLM's server. Files in a machine's model folder make trouble there: `broken` (a worker ends at once, as one whose
# weights cannot be read), `leaves` (it ends with 0), `elsewhere` (it wants another port of the head), `hangs`, `nan`.
SERVER = """\
#!/usr/bin/python3
import http.server, json, os, socket, sys, threading, time
def told(name):
    return sys.argv[sys.argv.index(name) + 1]
def has(name):
    return os.path.exists(sys.argv[2] + "/" + name)
count = int(told("--nnodes"))
worker, head = "--headless" in sys.argv, (told("--master-addr"), int(told("--master-port")))
if worker and has("broken"):
    sys.exit("huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name'")
print(f"world_size={count}", *sys.argv[3:], flush=True)
if worker:
    while True:
        try:
            peer = socket.create_connection(head)
            break
        except ConnectionRefusedError:
            time.sleep(0.2)
    while not has("leaves"):
        time.sleep(0.2)
    sys.exit(0)
meeting = socket.create_server(head)
peers = [meeting.accept() for _ in range(count - 1)]
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, document, streams=False):
        data = json.dumps(document).encode()
        data = b"data: " + data + b"\\n\\ndata: [DONE]\\n\\n" if streams else data
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if streams else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.reply({"data": [{"id": "tiny"}]})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reply({"choices": [{"text": " Paris", "logprobs": {"token_logprobs": [-1.5]}}]}, asked.get("stream"))
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""
# A Python and its libraries: a copy of the whole base would take a minute a machine. What Perl, apt and compilers need,
# and what no program of these tests imports, is left out.
_OTHERS = (
    "perl|apt|[a-z]*san|gprofng|isl|bfd|opcodes|gnutls|db-|unistring|p11|krb5|k5|gss|sepol|semanage|ldap|gcrypt|cc1|mp"
)
SMALL = (
    "cd /; tar -c --exclude='*.a' --exclude=ensurepip --exclude=lib2to3 --exclude=idlelib"
    " bin lib lib64 usr/lib64 usr/bin/python3 usr/bin/python3.1[0-9] usr/bin/env usr/bin/cat usr/bin/df"
    " usr/bin/find usr/bin/sort usr/bin/sha256sum usr/bin/tar usr/bin/cp usr/bin/rm usr/bin/mkdir usr/bin/ln"
    " usr/bin/sleep usr/bin/dash usr/bin/sh usr/bin/lscpu usr/lib/python3.1[0-9] etc/ld.so.cache etc/passwd"
    ' $(find -L usr/lib/*-linux-gnu -maxdepth 1 -name "*.so*" -type f -size -8M'
    f" | grep -vE '/lib({_OTHERS})')"
)


@dataclass(frozen=True)
class Pair:
    """Machines and a project on another, which reaches them by the contexts ``spark-1``, ``spark-2`` and so on."""

    folder: Path
    env: dict[str, str]
    numbers: dict[str, int]
    sockets: dict[str, str] = field(default_factory=dict)  # of the engines, as this computer sees them

    def machine(self, name: str) -> dict[str, Any]:
        return {
            "context": name, "address": f"192.168.177.{self.numbers[name]}", "interface": CARD,
            "caches": {"models": str(self.folder / "models" / name)},
        }  # fmt: skip

    def write(self, **changes: dict[str, Any]) -> None:
        """The local file; ``spark_2={"interface": "eth7"}`` changes a key of a machine."""
        nodes = {name: {**self.machine(name), **changes.get(name.replace("-", "_"), {})} for name in self.numbers}
        (self.folder / "envgen.local.yaml").write_text(yaml.safe_dump({"defaults": {"nodes": nodes}}))

    def envgen(self, *words: str, code: int | None = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        done = forked.run(words, cwd or self.folder, self.env)
        assert code in (None, done.returncode), done.stdout + done.stderr
        return done

    def running(self) -> list[str]:
        """The machines where the service runs."""
        rows = json.loads(self.envgen("ps", "--json").stdout)
        return [row["node"] for row in rows if row["state"] == "running"]

    def check(self, code: int) -> list[dict[str, Any]]:
        """`envgen nodes check --json`: its findings."""
        found: list[dict[str, Any]] = json.loads(self.envgen("nodes", "check", "--json", code=code).stdout)["findings"]
        return found

    def pids(self, node: str) -> list[int]:
        """The processes in the network of a machine."""
        argv = ["ip", "netns", "pids", f"envgen-node{self.numbers[node]}"]
        return [int(pid) for pid in subprocess.run(argv, capture_output=True, check=True).stdout.split()]

    def inside(self, node: str, *words: str) -> None:
        """Run a program in the network of a machine."""
        subprocess.run(["ip", "netns", "exec", f"envgen-node{self.numbers[node]}", *words], check=True)

    def docker(self, node: str, *words: str) -> str:
        return subprocess.run(
            ["docker", "--context", node, *words], env=self.env, capture_output=True, text=True, check=True
        ).stdout


def failed(found: list[dict[str, Any]]) -> list[str]:
    return [one["title"] for one in found if one["severity"] == "error"]


def small_image(source: str, name: str, target: Path, server: str = "", project: Path | None = None, *env: str) -> None:
    """Save an image with the Python of ``source`` to ``target``, as if it were built for profile `cpu` of ``project``.

    ``server``: its program `vllm`; ``env``: variables.
    """
    digest = ""
    if project is not None:
        profile = load_project(file=project / "envgen.yaml", environ={}).project.profiles["cpu"]
        digest = render_profile(profile, root=project).digest
    with target.open("wb") as file:
        subprocess.run(["docker", "run", "--rm", "--entrypoint", "sh", source, "-c", SMALL], stdout=file, check=True)
    with tarfile.open(target, "a") as archive:
        runner = (ROOT / "docker/runtime/libexec/server").read_bytes()  # before each server's command
        for path, program in (("usr/local/bin/vllm", server.encode()), ("opt/envgen/libexec/server", runner)):
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(program), 0o755
            archive.addfile(member, io.BytesIO(program))
    changes = [" ".join(("ENV PATH=/usr/local/bin:/usr/bin:/bin", *env)), f"LABEL dev.envgen.render={digest}"]
    docker("import", *(f"--change={one}" for one in changes), str(target), name)
    docker("save", "-o", str(target), name)
    docker("rmi", name)


def end_leftover(number: int) -> None:
    """End what a run that was broken off has left in the network of this number: it would answer in our place."""
    name = f"envgen-node{number}"
    found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    for pid in map(int, found.stdout.split()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


@contextmanager
def machines_up(folder: Path, numbers: dict[str, int], image: Path) -> Iterator[Pair]:
    """Bring up an engine for each of ``numbers``, with ``image`` loaded; all is gone afterwards, ``folder`` too."""
    config = folder / "docker"
    (config / "cli-plugins").mkdir(parents=True)
    for program in (config_dir(os.environ) / "cli-plugins").iterdir():
        (config / "cli-plugins" / program.name).symlink_to(program.resolve())
    env = {key: value for key, value in os.environ.items() if key not in ("DOCKER_HOST", "DOCKER_CONTEXT")}
    env |= {"DOCKER_CONFIG": str(config), "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    made = Pair(folder, env, numbers)
    try:
        hosts = []
        for name, number in numbers.items():
            place = folder / name
            up = [str(ROOT / "scripts/engine"), "--dir", str(place), "--netns", str(number)]
            end_leftover(number)
            if name == "spark-2":  # another image store: ids differ there, contents don't
                (place / "ssh").mkdir(parents=True)
                (place / ".envgen-engine").touch()
                (place / "daemon.json").write_text('{"features": {"containerd-snapshotter": true}}')
            subprocess.run([*up, "up"], check=True, capture_output=True)
            address = f"10.66.0.{number}"
            printed = subprocess.run([*up[:3], "env"], check=True, capture_output=True, text=True).stdout
            made.sockets[name] = re.findall(r"DOCKER_HOST='?(unix://[^'\n]+)", printed)[0]
            hosts.append(
                f"Host {address}\n  IdentityFile {place}/ssh/user\n  UserKnownHostsFile {place}/ssh/known_hosts\n"
            )
            subprocess.run(
                ["docker", "context", "create", name, "--docker", f"host=ssh://root@{address}"],
                env=env, check=True, capture_output=True,
            )  # fmt: skip
        (folder / "ssh_config").write_text("".join(hosts))
        wrapper = folder / "bin" / "ssh"  # stands in for ~/.ssh/config, which is the tester's own
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
        wrapper.chmod(0o755)
        for name in numbers:
            made.docker(name, "load", "-q", "-i", str(image))
        yield made
    finally:
        for name in numbers:
            subprocess.run([str(ROOT / "scripts/engine"), "--dir", str(folder / name), "down", "--purge"], check=False)
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def four(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Four machines and a project that runs a server on all; its image is on each."""
    folder = tmp_path_factory.mktemp("four")
    project(folder, *FOUR)
    small_image(BASE, IMAGE, folder / "small.tar", SERVER, folder)
    with machines_up(Path(f"/tmp/envgentest-four-{os.getpid()}"), FOUR, folder / "small.tar") as made:
        project(made.folder, *FOUR)
        yield made


@pytest.fixture(scope="session")
def machines(four: Pair) -> Pair:
    """Two of them, and another project that runs its server on both. What a profile is built of is the same."""
    folder = four.folder / "pair"
    folder.mkdir()
    project(folder, *NUMBERS)
    return replace(four, folder=folder, numbers=NUMBERS)


PROJECT = """\
version: 1
name: envgentest-{name}
profiles:
  cpu:
    mode: production
    image: {image}
    base: {{image: "{base}"}}
    cuda: {{arch_list: 12.1a}}
    gpu: none
    caches: {{models: {{path: /models, host: ./models}}}}
    services:
      serve:
        command: [vllm, serve, /models/tiny]
        args: {{served-model-name: tiny, tensor-parallel-size: {count}}}
        ports: ["8000:8000"]
        cluster: {{nodes: [{nodes}]}}
        ready:
          model: tiny
          port: 8000
          timeout: 60s
          expect: {{head: --node-rank 0, ranks: world_size={count}}}
"""


def project(folder: Path, *names: str) -> None:
    """A project that runs the server on the machines of ``names``."""
    name, nodes = "pair" if len(names) == 2 else "four", ", ".join(names)
    text = PROJECT.format(name=name, image=IMAGE, base=BASE, count=len(names), nodes=nodes)
    (folder / "envgen.yaml").write_text(text)


@dataclass
class Staying:
    """`envgen up serve --stay`, and what it has written so far."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def text(self) -> str:
        return "".join(self.lines)

    def sees(self, words: str, seconds: float = 180) -> None:
        """Wait until it writes this."""
        until(lambda: words in self.text() or self.process.poll() is not None, self.text, seconds)
        assert words in self.text(), self.text()

    def ends(self) -> str:
        assert self.process.wait(300) == 5, self.text()
        self.reader.join(60)
        return self.text()

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        self.lines.extend(self.process.stderr)


@contextmanager
def staying(pair: Pair) -> Iterator[Staying]:
    argv = [sys.executable, "-m", "envgen", "up", "serve", "--stay"]
    with subprocess.Popen(argv, cwd=pair.folder, env=pair.env, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Staying(process)
        finally:
            process.kill()
