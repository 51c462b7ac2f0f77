"""Before a start: taken ports, services that the network reaches, memory, folders of caches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.engine import host
from envgen.engine.values import ContainerRow
from envgen.errors import RefusedError
from envgen.explain.read import cause_of
from envgen.profile.exposure import asks_for_key, exposed, is_local, on_loopback, open_ports
from envgen.profile.load import load_project, select
from envgen.profile.model import Profile
from envgen.profile.service import Service
from envgen.profile.values import PortMapping
from envgen.serve import preflight
from envgen.serve.memory import in_page_cache, too_little
from envgen.serve.prepare import make_folder

# As Docker 28 and 29, Docker 20 to 27, and Compose in front of them word it.
LINES = (
    "Error response from daemon: failed to set up container networking: driver failed programming external "
    "connectivity on endpoint lab-dev-web-1 (0a1b): failed to bind host port 127.0.0.1:18001/tcp: address already in "
    "use",
    "Error response from daemon: driver failed programming external connectivity on endpoint lab-dev-web-1 (0a1b): "
    "Bind for 127.0.0.1:18001 failed: port is already allocated",
    "failed to bind host port for 127.0.0.1:18001:172.18.0.2:8000/tcp: address already in use",
)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An engine and a profile whose `web` publishes 18001; 18001 and 18002 are in use."""
    taken = {("127.0.0.1", 18001), ("127.0.0.1", 18002)}
    monkeypatch.setattr(host, "is_taken", lambda port, address: (address, port) in taken)
    service = Service(
        command=("web",), ports=tuple(PortMapping.parse(text) for text in ("9000:9", "127.0.0.1:18001:8000", "18003:1"))
    )
    engine = SimpleNamespace(info=lambda: SimpleNamespace(local=True), listed=lambda: ())
    return SimpleNamespace(
        engine=engine,
        profile=SimpleNamespace(services={"web": service}, compose=None, compose_name="lab-dev"),
        service=service,
    )


def on(found: Any) -> LiveService:
    return LiveService(Deployment(found.profile, Path()).with_cached(engine=found.engine), "web")


OTHER = "another program (`sudo ss -ltnp sport = :18001` shows it)"
HINT = "stop it, or take others: --set \"services.web.ports=['9001:9', '127.0.0.1:18002:8000', '18004:1']\""


def test_the_check_offers_another_port_on_the_same_address(found: Any) -> None:
    (problem,) = preflight.ports(on(found), (), preflight.holders(on(found), ()))
    assert (problem.message, problem.hint) == (f"port 18001 is taken by {OTHER}", HINT)


def test_its_own_container_is_not_in_the_way(found: Any) -> None:
    """Another envgen has just made it: this one waits, and then takes its place."""
    labels = {"com.docker.compose.project": "lab-dev", "com.docker.compose.service": "web"}
    own = ContainerRow("1", "lab-dev-web-1", labels, frozenset({18001}))
    assert [*preflight.ports(on(found), (), preflight.holders(on(found), [own]))] == []
    (problem,) = preflight.ports(on(found), (), preflight.holders(on(found), [replace(own, labels={})]))
    assert problem.message == "port 18001 is taken by container lab-dev-web-1"


@pytest.mark.parametrize("line", LINES)
def test_a_port_that_is_taken_meanwhile_is_the_cause(line: str) -> None:
    cause = cause_of(["Container x Created", line], service=True)
    assert cause is not None and cause.rule == "port"


# Services that the network reaches


def profile(tmp_path: Path, ports: str, *, more: str = "", command: str = "vllm, serve, m") -> Profile:
    file = tmp_path / "envgen.yaml"
    file.write_text(
        "version: 1\nname: t\nprofiles:\n  p:\n    mode: development\n    base: {image: debian:12}\n"
        f"    cuda: {{arch_list: 12.1a}}\n{more}"
        f"    services: {{s: {{command: [{command}], ports: {ports}}}}}\n"
    )
    return select(load_project(file=file).project, "p")


@pytest.mark.parametrize("ports", ["[]", "['127.0.0.1:8000:8000']", "['127.0.0.2:9:8000']"])
def test_a_local_service_is_not_mentioned(tmp_path: Path, ports: str) -> None:
    found = profile(tmp_path, ports)
    assert open_ports(found.services["s"]) == () and exposed(found, "s") == ""


@pytest.mark.parametrize("ports", ["['8000:8000']", "['0.0.0.0:8000:8000']", "['192.168.1.4:8000:8000']"])
def test_an_open_one_is(tmp_path: Path, ports: str) -> None:
    found = profile(tmp_path, ports)
    assert exposed(found, "s") == (
        "s: port 8000 is reachable from the network, past ufw, and the server asks for no API key"
    )
    assert on_loopback(found.services["s"]) == "127.0.0.1:8000:8000"
    several = profile(tmp_path, "['8000:8000', '127.0.0.1:8001:8000', '8002:9']")
    assert "ports 8000, 8002 are reachable" in exposed(several, "s")


def test_a_key_is_not_missed(tmp_path: Path) -> None:
    keyed = profile(tmp_path, "['8000:8000']", more="    secrets: [VLLM_API_KEY]\n")
    assert exposed(keyed, "s") == "s: port 8000 is reachable from the network, past ufw"
    flag = profile(tmp_path, "['8000:8000']", command="sh, -c, 'vllm serve m --api-key \"$KEY\"'")
    assert asks_for_key(flag, flag.services["s"])


def test_addresses_of_this_machine_alone() -> None:
    assert [is_local(address) for address in ("", "0.0.0.0", "::", "10.0.0.1", "127.0.0.1", "::1")] == [
        False, False, False, False, True, True,
    ]  # fmt: skip


# Cache folders, made before Docker makes them as root


def test_a_missing_folder_is_made_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path / "a/b")
    make_folder(tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()
    assert capsys.readouterr().err == f"  created the folder {tmp_path}/a/b\n"


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(RefusedError, match=r"the cache folder .*/a/b can't be created: Not a directory"):
        make_folder(tmp_path / "a/b")
    with pytest.raises(RefusedError, match=r"the cache folder .*/a can't be created: File exists"):
        make_folder(tmp_path / "a")


# Is there enough memory? From recorded /proc files


GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text(
        "MemTotal: 125829120 kB\nMemFree: 20971520 kB\nMemAvailable: 104857600 kB\nCached: 90000000 kB\n"
    )
    return tmp_path


def test_too_little(machine: Path) -> None:
    (problem,) = too_little(101 * GIB, root=machine)
    assert problem.message == "it needs 101.0 GiB of memory, and 100.0 GiB are available"
    assert "--sort=-rss" in problem.hint and "needs_memory" in problem.hint


def test_enough_but_in_the_page_cache(machine: Path) -> None:
    assert too_little(84 * GIB, root=machine) == [] == too_little(100 * GIB, root=machine)
    (note,) = in_page_cache(84 * GIB, unified=True, root=machine)
    assert "only 20.0 GiB are unused" in note and "drop_caches" in note
    assert in_page_cache(84 * GIB, unified=False, root=machine) == []
    assert in_page_cache(19 * GIB, unified=True, root=machine) == []


def test_a_machine_that_does_not_tell(tmp_path: Path) -> None:
    assert "is unknown" in in_page_cache(1, unified=True, root=tmp_path)[0]
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("nothing\n")
    assert "is unknown" in in_page_cache(1, unified=True, root=tmp_path)[0]
