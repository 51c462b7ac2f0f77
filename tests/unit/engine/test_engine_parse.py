"""What an engine sends: JSON, as values, and logs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.log import Tail
from envgen.engine.values import (
    ContainerMount,
    Port,
    ProcessState,
    container_of,
    image_of,
    info_of,
    process_of,
)

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


@pytest.mark.parametrize(
    ("document", "committed"),
    [
        ({"Comment": "buildkit.dockerfile.v0", "DockerVersion": ""}, False),
        ({"Comment": "", "DockerVersion": "28.5.2"}, True),
        ({"Comment": "a message"}, True),
        ({}, False),  # an engine that leaves out what is empty
    ],
)
def test_an_image_that_docker_commit_made(document: dict[str, str], committed: bool) -> None:
    """As Docker 28 describes them."""
    assert image_of(document).committed is committed


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


# A container's log: Docker's mixed stream, cut anywhere, of which only the end is kept


def frame(channel: int, data: bytes) -> bytes:
    return bytes([channel, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


PARTS = st.lists(st.tuples(st.sampled_from([1, 2]), st.text(st.characters(codec="ascii"), max_size=50)))


@given(PARTS, st.lists(st.integers(1, 20), min_size=1))
def test_cut_anywhere_it_is_the_same(parts: list[tuple[int, str]], cuts: list[int]) -> None:
    data = b"".join(frame(channel, part.encode()) for channel, part in parts)
    tail, at, step = Tail(1 << 20), 0, 0
    while at < len(data):
        tail.feed(data[at : at + cuts[step % len(cuts)]])
        at += cuts[step % len(cuts)]
        step += 1
    assert tail.text() == "".join(part for _, part in parts)


@given(st.lists(st.binary()))
def test_any_bytes_are_a_log(pieces: list[bytes]) -> None:
    tail = Tail(100)
    for piece in pieces:
        tail.feed(piece)
    assert len(tail.text().encode()) <= 400


@pytest.mark.parametrize("data", [b"plain text, no frames\n", b"\x01\x00\x01plain"])
def test_what_is_not_a_stream_of_frames_is_the_log_of_a_terminal(data: bytes) -> None:
    tail = Tail(100)
    for byte in data:
        tail.feed(bytes([byte]))
    assert tail.text() == data.decode()


def test_a_log_keeps_the_order_of_both_streams() -> None:
    tail = Tail(100)
    tail.feed(frame(2, b"a") + frame(1, b"b") + frame(2, b"c"))
    assert tail.text() == "abc"


@pytest.mark.parametrize("framed", [True, False])
def test_of_a_long_log_the_end_is_kept_in_whole_lines(framed: bool) -> None:
    tail = Tail(1000)
    for number in range(10_000):
        line = f"line {number}\n".encode()
        tail.feed(frame(1, line) if framed else line)
    lines = tail.text().splitlines()
    assert lines == [f"line {number}" for number in range(10_000 - len(lines), 10_000)] and len(lines) > 50
    assert len(tail.text()) <= 1000
    assert tail.lines == 10_000  # counted in what was written, not in the frames: a header may hold the same byte
