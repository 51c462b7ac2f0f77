"""On which engines the services of a profile are."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from envgen.app.cluster.machines import all_machines, head_of, nodes_of
from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.errors import EngineError, UsageError
from envgen.profile.load import load_project
from envgen.profile.model import Profile

FILE = """\
version: 1
name: lab
profiles:
  prod:
    mode: production
    base: {image: base:1}
    cuda: {arch_list: "12.1a"}
    gpu: none
    services:
      web: {command: [web]}
      serve:
        command: [vllm, serve, m]
        args: {tensor-parallel-size: 2}
        cluster: {nodes: [one, two]}
"""
NODES = """\
    nodes:
      one: {context: default, address: 10.0.0.1, interface: eth1}
      two: {context: two, address: 10.0.0.2, interface: eth1}
"""


@pytest.fixture(autouse=True)
def no_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)


def profile(folder: Path, text: str) -> Profile:
    (folder / "envgen.yaml").write_text(text)
    return load_project(file=folder / "envgen.yaml", environ={}).project.profiles["prod"]


def test_where_services_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = profile(tmp_path, FILE + NODES)
    assert nodes_of(found, ("serve",)) == ["one", "two"]
    assert nodes_of(found, ("web",)) == [""]
    assert nodes_of(found) == ["one", "two"]  # the first machine is this one
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:2375")
    assert nodes_of(profile(tmp_path, FILE + NODES.replace("default", "one"))) == ["one", "two", ""]


def test_machines_that_no_file_describes_keep_no_other_service_from_being_seen(tmp_path: Path) -> None:
    found = profile(tmp_path, FILE)
    assert nodes_of(found) == [""]
    with pytest.raises(UsageError, match="no address for one, two"):
        nodes_of(found, ("serve",))


REMOTE = NODES.replace("default", "one").replace("interface: eth1", "interface: eth1, caches: {hf: /raid/hf}", 1)
CACHE = "    caches: {hf: {path: /hf, host: ~/hf}}\n"


def test_what_is_asked_about_a_service_is_asked_of_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = profile(tmp_path, FILE + REMOTE + CACHE), list[str]()

    def connect(environ: dict[str, str] | None) -> None:
        asked.append((environ or {}).get("DOCKER_CONTEXT", "here"))
        if len(asked) > 2:
            raise EngineError("no route to host", hint="ssh one")

    monkeypatch.setattr("envgen.deployment.host.connect", connect)
    head, worker = all_machines(Deployment(found, tmp_path), "serve")
    assert (head.node, worker.node) == ("one", "two")
    assert head.engine is head.engine  # looked up once
    _ = head_of(Deployment(found, tmp_path), "web").engine
    assert asked == ["one", "here"]
    with pytest.raises(EngineError, match="one: no route to host"):
        _ = all_machines(Deployment(found, tmp_path), "serve")[0].engine
    # Each machine has its own folders.
    folders = [
        str(one.profile.caches["hf"].host) for one in (head, worker, head_of(Deployment(found, tmp_path), "web"))
    ]
    assert folders == ["/raid/hf", "~/hf", "~/hf"]


def test_a_connection_is_shared_with_what_is_on_the_same_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `doctor` does, whose profile may get the variant of what runs after it has connected."""
    monkeypatch.setattr("envgen.deployment.host.connect", lambda _environ: object())
    here = Deployment(profile(tmp_path, FILE + REMOTE + CACHE), tmp_path)
    assert here.on("") is here
    assert replace(here).sharing(here).engine is not here.engine  # nothing was connected yet
    assert replace(here).sharing(here).engine is here.engine
    assert here.on("one").sharing(here).engine is not here.engine


def test_what_is_asked_about_a_profile_is_asked_where_all_its_services_are(tmp_path: Path) -> None:
    shared = FILE.replace("      web: {command: [web]}\n", "")

    def asked(text: str) -> list[str]:
        return [one.node for one in all_machines(Deployment(profile(tmp_path, text), tmp_path))]

    assert asked(shared + REMOTE + CACHE) == ["one", "two"]
    assert asked(FILE + REMOTE + CACHE) == [""]  # `web` is here alone
    assert asked(FILE + NODES) == ["one"]  # which is this machine


@pytest.mark.parametrize(
    ("node", "engine", "address"),
    [
        ("two", "unix:///run/user/1000/forwarded.sock", "10.0.0.2"),  # the socket says nothing of its machine
        ("two", "tcp://192.0.2.7:2375", "192.0.2.7"),
        ("two", "ssh://me@spark-2", "spark-2"),
        ("one", "", "127.0.0.1"),
        ("", "", "127.0.0.1"),
    ],
)
def test_the_address_of_a_machines_ports(tmp_path: Path, node: str, engine: str, address: str) -> None:
    context = tmp_path / "contexts/meta" / hashlib.sha256(b"two").hexdigest()
    context.mkdir(parents=True)
    described = {"Name": "two", "Endpoints": {"docker": {"Host": engine}}}
    (context / "meta.json").write_text(json.dumps(described))
    deployment = Deployment(profile(tmp_path, FILE + NODES), tmp_path).on(node)
    assert deployment.address == address
    service = deployment.profile.services["serve"]
    serving = replace(service, network="host", args={**service.args, "host": "0.0.0.0", "port": "8000"})
    if not engine.startswith("ssh"):
        changed = replace(deployment.profile, services={"serve": serving})
        live = LiveService(replace(deployment, profile=changed), "serve")
        assert live.reachable_url() == live.url == f"http://{address}:8000"
