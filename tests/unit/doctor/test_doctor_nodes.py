"""What is compared between machines, on answers that were made up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.doctor.model import Finding, Remedy, Severity
from envgen.doctor.nodes import LINK_BYTES, NodeFacts, about, between, has_address, link
from envgen.engine.values import Container, ContainerMount, Image
from envgen.profile.model import Cluster, GpuMode, Machine, Service
from envgen.profile.values import ByteSize

SERVICE = Service(command=("vllm", "serve", "/models/m"))
CLUSTER = Cluster(nodes=("one", "two"))
PROFILE: Any = SimpleNamespace(env={}, shm_size=None, ipc="private", gpu=GpuMode.ALL, mounted_sources={})


def image(layers: tuple[str, ...] = ("sha256:a",)) -> Image:
    return Image("sha256:id", {}, "", 0, "arm64", (), {"PATH": "/bin"}, layers=layers)


def facts(**changes: Any) -> dict[str, Any]:
    card = {"address": "10.0.0.1", "mtu": 9000, "up": True, "mbit": "200000"}
    return {
        "interfaces": {"eth1": card},
        "rdma": {},
        "memory_free": 1 << 36,
        "memlock": -1,
        "disk_free": 1 << 40,
        "driver": "580.95.05",
        "kernel": "6.17.0-1032-nvidia",
        "handover": 0,
        "gpus": 1,
        "taken": [],
        "checkouts": {},
        "model": {"folder": "/m", "files": {"a": [1, "x"]}},
        "versions": {"vllm": "0.32.0", "torch": "2.13.0"},
        **changes,
    }


def seen(name: str, rank: int, **changes: Any) -> NodeFacts:
    machine = Machine(address="10.0.0.1", interface="eth1")
    return NodeFacts(name, machine, rank, version="29.0", arch="arm64", image=image(), facts=facts(**changes))


def facts_of(one: NodeFacts, service: Service = SERVICE, profile: Any = None) -> list[Finding]:
    return about(one, profile or PROFILE, service, CLUSTER)


def failed(found: list[Finding]) -> list[str]:
    return [one.seen for one in found if one.severity is Severity.ERROR]


def differing(one: NodeFacts, two: NodeFacts) -> list[str]:
    return failed(between([one, two], SERVICE))


def test_machines_that_are_the_same() -> None:
    assert differing(seen("one", 0), seen("two", 1)) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"versions": {"vllm": "0.31.0", "torch": "2.13.0"}}, "vllm differs: one: 0.32.0; two: 0.31.0"),
        ({"kernel": "7.0.0-1019-nvidia"}, "the kernel differs: one: 6.17.0-1032-nvidia; two: 7.0.0-1019-nvidia"),
        ({"driver": "575.1"}, "the GPU's driver differs: one: 580.95.05; two: 575.1"),
        ({"interfaces": {"eth1": {"mtu": 1500}}}, "the interface's MTU differs: one: 9000; two: 1500"),
        ({"model": {"files": {"a": [1, "y"]}}}, "the model differs in a"),
        ({"model": {"files": {"a": [1, "x"], "b": [0, ""]}}}, "the model differs in b"),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], message: str) -> None:
    assert differing(seen("one", 0), seen("two", 1, **changes)) == [message]


def test_checkouts_are_compared_where_all_machines_have_one() -> None:
    one = seen("one", 0, checkouts={"vllm": "a", "flashinfer": "b"})
    assert differing(one, seen("two", 1, checkouts={"vllm": "x", "flashinfer": ""})) == [
        "the checkout vllm differs between one and two"
    ]


def test_a_folder_of_the_service_that_a_machine_lacks() -> None:
    one = seen("two", 1)
    one.absent = [ContainerMount("/src/vllm", "/workspace/vllm")]
    assert failed(facts_of(one)) == ["/src/vllm, which is mounted at /workspace/vllm, does not exist"]


def test_a_kernel_that_keeps_memory_from_rdma() -> None:
    """As two Sparks had it after an update; without RDMA nothing is pinned."""
    after = {"kernel": "7.0.0-1019-nvidia", "handover": 10171187200}
    port = {"state": "4: ACTIVE", "rate": "200 Gb/sec", "gids": [[3, "10.0.0.1", "10.0.0.0"]]}
    one = replace(
        seen("one", 0, rdma={"rocep1s0f0": port}, **after), machine=Machine("10.0.0.1", "eth1", rdma=("rocep1s0f0",))
    )
    assert [line for line in failed(facts_of(one)) if "Kexec HandOver" in line and "9.5GiB" in line], failed(
        facts_of(one)
    )
    assert failed(facts_of(seen("one", 0, **after))) == []


def test_images_are_compared_by_what_they_hold() -> None:
    other = seen("two", 1)
    other.image = image(("sha256:b",))
    assert differing(seen("one", 0), other) == ["the image differs between one and two"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interfaces": {}}, "network interface eth1 does not exist"),
        (
            {"interfaces": {"eth1": {"address": "", "mtu": 1, "up": True, "mbit": ""}}},
            "eth1 has the address (none), not 10.0.0.1",
        ),
        ({"interfaces": {"eth1": {"address": "10.0.0.1", "mtu": 1, "up": False, "mbit": ""}}}, "eth1 is down"),
        ({"disk_free": 3 << 20}, "3MiB are free on Docker's disk"),
        ({"taken": [29501]}, "port 29501 is taken (cluster.port)"),
        ({"model": {"folder": "/m", "files": {}}}, "the model is not there"),
    ],
)
def test_what_one_machine_lacks(changes: dict[str, Any], message: str) -> None:
    assert failed(facts_of(seen("one", 0, **changes))) == [message]


def test_a_port_that_is_blocked_is_named() -> None:
    answer = {"error": "timed out", "port": 29501}
    found = link(seen("two", 1), seen("one", 0), 29501, answer, answer)
    assert found.seen == "two -> one (10.0.0.1): TCP port 29501 cannot be reached: timed out"


def test_rdma_devices_must_be_active_and_have_an_address() -> None:
    one = seen(
        "one",
        0,
        rdma={
            "a": {"state": "1: DOWN", "rate": "", "gids": [[3, "10.0.0.1", "10.0.0.0"]]},
            "b": {"state": "4: ACTIVE", "rate": "", "gids": []},
        },
    )
    one.machine = Machine(address="10.0.0.1", interface="eth1", rdma=("a", "b", "c"))
    assert failed(facts_of(one)) == [
        "a is 1: DOWN",
        "b has no IPv4 address for RoCE v2",
        "RDMA device c does not exist",
    ]


def rdma(*gids: list[Any]) -> dict[str, Any]:
    return {"state": "4: ACTIVE", "rate": "200 Gb/sec", "gids": list(gids)}


RAILS = {"a": rdma([3, "10.0.0.1", "10.0.0.0"]), "b": rdma([3, "10.0.1.1", "10.0.1.0"])}


def rails(name: str, *devices: str, rdma: Any = RAILS, **more: Any) -> NodeFacts:
    one = seen(name, 0, rdma=rdma, **more)
    one.machine = Machine(address="10.0.0.1", interface="eth1", rdma=devices)
    return one


def test_rdma_devices_are_in_the_same_order_on_all_machines() -> None:
    assert differing(rails("one", "a", "b"), rails("two", "a", "b")) == []
    wrong = differing(rails("one", "a", "b"), rails("two", "b", "a"))
    assert wrong == [
        "the network of RDMA device 1 differs: one: 10.0.0.0; two: 10.0.1.0",
        "the network of RDMA device 2 differs: one: 10.0.1.0; two: 10.0.0.0",
    ]
    assert differing(rails("one", "a", "b"), rails("two", "a")) == [
        "the number of RDMA devices differs: one: 2; two: 1"
    ]


def test_links_that_differ_are_doubtful() -> None:
    lanes = [{"a": {**rdma([3, "10.0.0.1", "10.0.0.0"]), "pcie": f"32.0 GT/s PCIe x{width}"}} for width in (4, 2)]
    slower = {"interfaces": {"eth1": {"address": "10.0.0.1", "mtu": 9000, "up": True, "mbit": "40000"}}}
    one, two = rails("one", "a", rdma=lanes[0]), rails("two", "a", rdma=lanes[1], **slower)
    assert [one.seen for one in between([one, two], SERVICE) if one.severity] == [
        "the link's speed (Mbit/s) differs: one: 200000; two: 40000",
        "the PCIe link of RDMA device 1 differs: one: 32.0 GT/s PCIe x4; two: 32.0 GT/s PCIe x2",
    ]
    assert failed(between([one, two], SERVICE)) == []


def test_a_gid_that_is_chosen_for_all_machines_must_be_the_right_one_on_each() -> None:
    service = replace(SERVICE, env={"NCCL_IB_GID_INDEX": "3"})
    moved = {"a": rdma([4, "10.0.0.1", "10.0.0.0"])}
    assert failed(facts_of(rails("one", "a"), service)) == []
    [message] = failed(facts_of(rails("one", "a", rdma=moved), service))
    assert message == "a has no IPv4 address for RoCE v2 at GID 3 (NCCL_IB_GID_INDEX), but at 4"
    profile = SimpleNamespace(**{**vars(PROFILE), "env": {"net": {"NCCL_IB_GID_INDEX": "5"}}})
    assert len(failed(facts_of(rails("one", "a"), SERVICE, profile))) == 1


def test_what_rdma_needs_and_what_could_do_rdma() -> None:
    [message] = failed(facts_of(rails("one", "a", memlock=8 << 20)))
    assert message == "a container may lock 8MiB of memory there, and RDMA locks all that it sends"
    assert failed(facts_of(seen("one", 0, memlock=8 << 20))) == []
    [unused] = [one.seen for one in facts_of(seen("one", 0, rdma=RAILS)) if one.severity is Severity.WARNING]
    assert unused == "a, b can do RDMA, and `rdma` names no device: NCCL uses TCP"


def with_gpu(name: str, **labels: str) -> Container:
    return Container(name, name, "", "running", "", 0, "", labels, {}, (), (), "", gpu=True)


def test_other_containers_that_have_the_gpu() -> None:
    one = seen("one", 0)
    one.gpus = (with_gpu("notebook"),)
    [found] = [found for found in facts_of(one) if found.severity]
    message = "other containers have the GPU, and may hold its memory: notebook"
    cure = Remedy("docker --context default stop notebook")
    assert (found.severity, found.seen, found.remedy) == (Severity.WARNING, message, cure)
    one.gpus += (with_gpu("other-serve-1", **{"dev.envgen.cluster": "head"}),)  # it certainly holds memory
    assert failed(facts_of(one)) == [f"{message}, other-serve-1"]


@pytest.mark.parametrize(("packet", "severity"), [(9000, Severity.OK), (1500, Severity.ERROR)])
def test_packets_of_the_whole_mtu_must_pass(packet: int, severity: Severity) -> None:
    answer = {"bytes": LINK_BYTES, "peer": "10.0.0.1", "packet": packet}
    found = link(seen("one", 0), seen("two", 1), 29501, answer, answer)
    assert found.severity is severity and f"packets of {packet} bytes" in found.title


@pytest.mark.parametrize(
    "broken", [{"interfaces": None}, {"interfaces": {"eth1": 3}}, {"memory_free": "x"}, {"model": {"files": 7}}]
)
def test_an_answer_of_another_shape_is_a_failure_and_no_traceback(broken: dict[str, Any]) -> None:
    one = seen("one", 0, **broken)
    assert any("cannot be read" in message for message in failed(facts_of(one)))


@pytest.mark.parametrize("broken", [{"interfaces": None}, {"interfaces": []}, {"interfaces": {"eth1": "x"}}])
def test_no_connection_is_tried_from_a_machine_without_its_address(broken: dict[str, Any]) -> None:
    assert has_address(seen("one", 0))
    assert not has_address(seen("one", 0, **broken))


@pytest.mark.parametrize("answer", [{}, {"bytes": "x"}, {"bytes": []}, {"bytes": None}])
def test_an_answer_about_a_connection_of_another_shape(answer: dict[str, Any]) -> None:
    found = link(seen("one", 0), seen("two", 1), 29501, answer, answer)
    assert found.severity is Severity.ERROR and "cannot be read" in found.seen


def test_a_machine_that_runs_the_service_has_its_ports_and_memory() -> None:
    one = seen("one", 0, memory_free=0)
    service = replace(SERVICE, needs_memory=ByteSize.parse("4GiB"))
    assert failed(facts_of(one, service)) != []
    one.runs = True
    assert failed(facts_of(one, service)) == []


def test_each_rank_has_a_gpu_of_its_own() -> None:
    service = replace(SERVICE, args={"tensor-parallel-size": "4"})
    assert failed(facts_of(seen("one", 0), service)) == ["2 ranks are to run here, each with a GPU; there are 1"]
    assert failed(facts_of(seen("one", 0, gpus=2), service)) == []
    assert failed(facts_of(seen("one", 0, gpus=0), service)) == []  # the driver does not tell


@pytest.mark.parametrize(
    ("host", "command"),
    [
        ("ssh://me@spark-2:2222", "rsync -a --mkpath -e 'ssh -p 2222' '/data/my hf/' me@spark-2:/raid/hf/"),
        ("ssh://spark-2", "rsync -a --mkpath '/data/my hf/' spark-2:/raid/hf/"),
        ("unix:///run/docker.sock", ""),  # no way to type it: the finding names the page
    ],
)
def test_the_command_that_copies_the_weights(host: str, command: str) -> None:
    head, other = seen("one", 0), seen("two", 1)
    head.folders, other.folders, other.head = {"model": "/data/my hf"}, {"model": "/raid/hf"}, head
    other.engine = SimpleNamespace(endpoint=SimpleNamespace(host=host))  # type: ignore[assignment]
    assert other.copy_of("model") == command
    assert other.copy_of("vllm") == ""


def test_the_command_that_copies_the_image() -> None:
    head, other = seen("one", 0), seen("two", 1)
    other.head, other.image_name = head, "mxfp4:prod"
    other.machine = replace(head.machine, context="spark-2")
    assert other.copy_of_image() == "docker save mxfp4:prod | docker --context spark-2 load"
