"""The engine's JSON as values."""

from __future__ import annotations

from typing import Any

import pytest

from envgen.engine.values import ContainerMount, Port, ProcessState, container_of, image_of, info_of, process_of

CONTAINER = {
    "Id": "abc", "Name": "/demo-dev-1", "Image": "sha256:1", "RestartCount": 2,
    "State": {"Status": "exited", "ExitCode": 137, "OOMKilled": True, "StartedAt": "2026-01-01T00:00:00Z",
              "Health": {"Status": "unhealthy"}, "Error": ""},
    "Config": {"Labels": {"com.docker.compose.service": "dev", "x": "y"}, "Env": ["A=1", "B=x=y", "C"]},
    "Mounts": [
        {"Type": "bind", "Source": "/src", "Destination": "/dst", "RW": False},
        {"Type": "volume", "Name": "vol", "Source": "/data/volumes/vol/_data", "Destination": "/v", "RW": True},
        {"Type": "tmpfs", "Destination": "/t"},
    ],
    "NetworkSettings": {"Ports": {
        "8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "8000"}, {"HostIp": "::", "HostPort": "8000"}],
        "9000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "9001"}], "7000/tcp": None,
    }},
}  # fmt: skip


def test_a_container() -> None:
    one = container_of(CONTAINER)
    assert (one.name, one.service, one.state, one.health, one.exit_code) == (
        "demo-dev-1", "dev", "exited", "unhealthy", 137,
    )  # fmt: skip
    assert one.oom_killed and one.restarts == 2 and not one.running
    assert one.env == {"A": "1", "B": "x=y", "C": ""}
    assert one.mounts == (
        ContainerMount("/src", "/dst", "bind", True),
        ContainerMount("vol", "/v", "volume"),
        ContainerMount("", "/t", "tmpfs"),
    )
    assert [str(port) for port in one.ports] == ["8000->8000/tcp", "127.0.0.1:9001->9000/tcp"]
    assert one.ports[1] == Port(9001, 9000, "127.0.0.1")


def test_the_user_of_a_container_and_a_rootless_engine() -> None:
    assert container_of({"Config": {"User": "1000:100"}}).user == "1000:100"
    assert container_of({"Config": {"User": None}}).user == ""
    assert info_of({"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]}, {}, "unix:///x").rootless
    plain = info_of({"SecurityOptions": None, "Driver": "overlay2"}, {}, "unix:///x")
    assert not plain.rootless and plain.driver == "overlay2"


def test_a_process_as_docker_top_shows_it() -> None:
    assert process_of(["4711", "4700", "Ssl", "2048", "vllm serve model"]) == ProcessState(
        4711, 4700, "Ssl", 2 << 20, "vllm serve model"
    )
    assert process_of(["70", "6", "Z+", "0", "[VLLM::EngineCor] <defunct>"]).zombie


def test_what_is_missing_or_null_is_empty() -> None:
    one = container_of({"State": None, "Config": None, "NetworkSettings": None})
    assert (one.id, one.health, one.ports, one.mounts, dict(one.env)) == ("", "", (), (), {})
    assert image_of({"Config": None, "RepoTags": None}).labels == {}
    assert container_of({"State": {"Health": {"Status": "none"}}}).health == ""


def test_an_engine_with_cdi() -> None:
    info = info_of(
        {"ServerVersion": "28.5.2", "Architecture": "aarch64", "NCPU": 20, "MemTotal": 5,
         "Runtimes": {"runc": {}, "nvidia": {}},
         "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}, {"Source": "x", "ID": "y"}]},
        {"ApiVersion": "1.51"}, "unix:///x",
    )  # fmt: skip
    assert (info.version, info.api_version) == ("28.5.2", "1.51")
    assert (info.runtimes, info.cdi_devices, info.cpus, info.arch) == (
        ("nvidia", "runc"), ("nvidia.com/gpu=all",), 20, "arm64",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("host", "gpu"),
    [
        ({}, False),
        ({"DeviceRequests": [{"Driver": "nvidia", "Count": -1, "Capabilities": [["gpu"]]}]}, True),
        ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]}, True),
        ({"Runtime": "nvidia"}, True),
        ({"Runtime": "runc", "Devices": [{"PathOnHost": "/dev/infiniband"}]}, False),
        ({"Devices": [{"PathOnHost": "/dev/nvidia0"}]}, True),
    ],
)
def test_a_container_with_a_gpu(host: dict[str, Any], gpu: bool) -> None:
    assert container_of({"HostConfig": host}).gpu is gpu
