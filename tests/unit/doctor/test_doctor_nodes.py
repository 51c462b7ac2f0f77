"""What is compared between machines, on answers that were made up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.doctor.model import Finding, Remedy, Severity
from envgen.doctor.nodes import NodeFacts, about, between
from envgen.engine.values import Container, ContainerMount, Image
from envgen.profile.model import GpuMode, Machine
from envgen.profile.service import Cluster, Service
from envgen.profile.values import ByteSize

SERVICE = Service(command=("vllm", "serve", "/models/m"))
CLUSTER = Cluster(nodes=("one", "two"))
PROFILE: Any = SimpleNamespace(env={}, shm_size=None, ipc="private", gpu=GpuMode.ALL, mounted_sources={})
CARD = {"address": "10.0.0.1", "mtu": 9000, "up": True, "mbit": "200000"}
IMAGE = Image("sha256:id", {}, "", 0, "arm64", (), {"PATH": "/bin"}, layers=("sha256:a",))
FACTS: dict[str, Any] = {
    "interfaces": {"eth1": CARD}, "rdma": {}, "memory_free": 1 << 36, "memlock": -1, "disk_free": 1 << 40,
    "driver": "580.95.05", "kernel": "6.17.0-1032-nvidia", "handover": 0, "gpus": 1, "taken": [],
    "model": {"folder": "/m", "files": {"a": [1, "x"]}},
}  # fmt: skip


def rdma(address: str = "10.0.0.1", network: str = "10.0.0.0") -> dict[str, Any]:
    return {"state": "4: ACTIVE", "rate": "200 Gb/sec", "gids": [[3, address, network]]}


RAILS = {"a": rdma(), "b": rdma("10.0.1.1", "10.0.1.0")}


def node(name: str = "one", rank: int = 0, *devices: str, **changes: Any) -> NodeFacts:
    """A machine that fits, but for these facts."""
    machine = Machine(address="10.0.0.1", interface="eth1", rdma=devices)
    return NodeFacts(name, machine, rank, version="29.0", arch="arm64", image=IMAGE, facts={**FACTS, **changes})


def told(one: NodeFacts, service: Service = SERVICE, profile: Any = PROFILE) -> list[Finding]:
    """The findings about one machine that are not OK."""
    return [found for found in about(one, profile, service, CLUSTER) if found.severity is not Severity.OK]


def differing(one: NodeFacts, two: NodeFacts) -> list[tuple[Severity, str]]:
    found = between([one, two], SERVICE)
    bad = [finding for finding in found if finding.severity is not Severity.OK]
    return [(finding.severity, finding.title.removeprefix("one+two: ")) for finding in bad]


def card(**changes: Any) -> dict[str, Any]:
    return {"interfaces": {"eth1": {**CARD, **changes}}}


NEEDS = replace(SERVICE, needs_memory=ByteSize.parse("64GiB"))
TP4 = replace(SERVICE, args={"tensor-parallel-size": "4"})
KHO = {"kernel": "7.0.0-1019-nvidia", "handover": 10171187200}
# Facts of one machine with the RDMA device `a` (or none), the service, and what is told.
ALONE: list[tuple[tuple[str, ...], dict[str, Any], Service, list[str]]] = [
    ((), {}, SERVICE, []),
    ((), {"interfaces": {}}, SERVICE, ["network interface eth1 does not exist"]),
    ((), card(address=""), SERVICE, ["eth1 has the address (none), not 10.0.0.1"]),
    ((), card(up=False), SERVICE, ["eth1 is down"]),
    ((), {"disk_free": 3 << 20}, SERVICE, ["3MiB are free on Docker's disk"]),
    ((), {"taken": [29501]}, SERVICE, ["port 29501 is taken (cluster.port)"]),
    ((), {"model": {"folder": "/m", "files": {}}}, SERVICE, ["the model is not there"]),
    ((), {"memory_free": 0}, NEEDS, ["0B of memory are free, and needs_memory is 64GiB"]),
    ((), {}, TP4, ["2 ranks are to run here, each with a GPU; there are 1"]),
    ((), {"gpus": 2}, TP4, []),
    ((), {"gpus": 0}, TP4, []),  # the driver does not tell
    ((), {"rdma": RAILS}, SERVICE, ["a, b can do RDMA, and `rdma` names no device: NCCL uses TCP"]),
    ((), {"memlock": 8 << 20, **KHO}, SERVICE, []),  # nothing is pinned without RDMA
    (("a",), {"rdma": RAILS}, SERVICE, []),
    (("a",), {"rdma": RAILS, "memlock": 8 << 20}, SERVICE,
     ["a container may lock 8MiB of memory there, and RDMA locks all that it sends"]),
    (("a",), {"rdma": RAILS, **KHO}, SERVICE, [  # as two Sparks had it after an update
        "Kexec HandOver of kernel 7.0.0-1019-nvidia holds 9.5GiB that RDMA can't pin: NCCL ends with ENOMEM"]),
    (("a", "b", "c"), {"rdma": {"a": {**rdma(), "state": "1: DOWN"}, "b": {**rdma(), "gids": []}}}, SERVICE,
     ["a is 1: DOWN", "b has no IPv4 address for RoCE v2", "RDMA device c does not exist"]),
    ((), {"interfaces": None}, SERVICE, ["its answer cannot be read: AttributeError"]),
    ((), {"interfaces": {"eth1": 3}}, SERVICE, ["its answer cannot be read: TypeError"]),
    ((), {"model": {"files": 7}}, SERVICE, ["its answer cannot be read: TypeError"]),
]  # fmt: skip


@pytest.mark.parametrize(("devices", "changes", "service", "messages"), ALONE)
def test_what_one_machine_lacks(
    devices: tuple[str, ...], changes: dict[str, Any], service: Service, messages: list[str]
) -> None:
    assert [
        found.title.removeprefix("one: ") for found in told(node("one", 0, *devices, **changes), service)
    ] == messages


def test_what_the_engine_says_of_one_machine() -> None:
    """Folders that are not there, other containers with the GPU, and its own part of the service."""
    one = node("two", 1)
    one.absent = [ContainerMount("/src/vllm", "/workspace/vllm")]
    assert [found.title for found in told(one)] == [
        "two: /src/vllm, which is mounted at /workspace/vllm, does not exist"
    ]
    one = node(memory_free=0)
    one.runs = True  # with its ports and its memory
    assert told(one, NEEDS) == []
    one = node()
    one.gpus = (Container("notebook", "notebook", "", "running", "", 0, "", {}, {}, (), (), "", gpu=True),)
    (found,) = told(one)
    message = "one: other containers have the GPU, and may hold its memory: notebook"
    cure = Remedy("docker --context default stop notebook")
    assert (found.severity, found.title, found.remedy) == (Severity.WARNING, message, cure)
    one.gpus += (replace(one.gpus[0], name="other-serve-1", labels={"dev.envgen.cluster": "head"}),)
    (found,) = told(one)
    assert (found.severity, found.title) == (Severity.ERROR, f"{message}, other-serve-1")  # it certainly holds memory
    (found,) = told(replace(node("one", 0), refused=" type 8: operation not permitted"))
    assert (
        found.title == "one: Docker may not set the service's limits there (setrlimit type 8: operation not permitted)"
    )


ERROR, WARNING = Severity.ERROR, Severity.WARNING
BETWEEN: list[tuple[NodeFacts, NodeFacts, list[tuple[Severity, str]]]] = [
    (node(), node("two", 1), []),
    (node(), node("two", 1, kernel="7.0.0"), [(ERROR, "the kernel differs: one: 6.17.0-1032-nvidia; two: 7.0.0")]),
    (node(), node("two", 1, driver="575.1"), [(ERROR, "the GPU's driver differs: one: 580.95.05; two: 575.1")]),
    (node(), node("two", 1, **card(mtu=1500)), [(ERROR, "the interface's MTU differs: one: 9000; two: 1500")]),
    (node(), node("two", 1, model={"files": {"a": [1, "y"]}}), [(ERROR, "the model differs in a")]),
    (node(), node("two", 1, model={"files": {"a": [1, "x"], "b": [0, ""]}}), [(ERROR, "the model differs in b")]),
    (node(), replace(node("two", 1), image=replace(IMAGE, layers=("sha256:b",))),
     [(ERROR, "the image differs")]),
    (node("one", 0, "a", "b", rdma=RAILS), node("two", 1, "a", "b", rdma=RAILS), []),
    (node("one", 0, "a", "b", rdma=RAILS), node("two", 1, "b", "a", rdma=RAILS),
     [(ERROR, "the network of RDMA device 1 differs: one: 10.0.0.0; two: 10.0.1.0"),
      (ERROR, "the network of RDMA device 2 differs: one: 10.0.1.0; two: 10.0.0.0")]),
    (node("one", 0, "a", "b", rdma=RAILS), node("two", 1, "a", rdma=RAILS),
     [(ERROR, "the number of RDMA devices differs: one: 2; two: 1")]),
]  # fmt: skip


@pytest.mark.parametrize(("one", "two", "expected"), BETWEEN)
def test_what_differs_is_named(one: NodeFacts, two: NodeFacts, expected: list[tuple[Severity, str]]) -> None:
    assert differing(one, two) == expected


@pytest.mark.parametrize(
    ("host", "command"),
    [
        ("ssh://me@spark-2:2222", "rsync -a --checksum --mkpath -e 'ssh -p 2222' '/data/my hf/' me@spark-2:/raid/hf/"),
        ("ssh://spark-2", "rsync -a --checksum --mkpath '/data/my hf/' spark-2:/raid/hf/"),
        ("unix:///run/docker.sock", ""),  # no way to type it: the finding names the page
    ],
)
def test_the_commands_that_copy_the_weights_and_the_image(host: str, command: str) -> None:
    head, other = node(), node("two", 1)
    head.model, other.model, other.head = "/data/my hf", "/raid/hf", head
    other.engine = SimpleNamespace(endpoint=SimpleNamespace(host=host))  # type: ignore[assignment]
    assert other.copy_of_model() == command
    other.image_name, other.machine = "mxfp4:prod", replace(head.machine, context="spark-2")
    assert other.copy_of_image() == "docker save mxfp4:prod | docker --context spark-2 load"
