"""What is said about services that the network reaches."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.profile.exposure import asks_for_key, exposed, is_local, on_loopback, open_ports
from envgen.profile.load import load_project, select
from envgen.profile.model import Profile


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


def test_a_key_is_not_missed(tmp_path: Path) -> None:
    keyed = profile(tmp_path, "['8000:8000']", more="    secrets: [VLLM_API_KEY]\n")
    assert exposed(keyed, "s") == "s: port 8000 is reachable from the network, past ufw"
    flag = profile(tmp_path, "['8000:8000']", command="sh, -c, 'vllm serve m --api-key \"$KEY\"'")
    assert asks_for_key(flag, flag.services["s"])


def test_several_ports(tmp_path: Path) -> None:
    found = profile(tmp_path, "['8000:8000', '127.0.0.1:8001:8000', '8002:9']")
    assert "ports 8000, 8002 are reachable" in exposed(found, "s")


def test_addresses() -> None:
    assert [is_local(address) for address in ("", "0.0.0.0", "::", "10.0.0.1", "127.0.0.1", "::1")] == [
        False, False, False, False, True, True,
    ]  # fmt: skip
