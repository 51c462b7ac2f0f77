"""Services for Kubernetes; its own objects are checked against its own schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests_render_make import profile as made

from envgen.cli.setup.export import _named
from envgen.errors import RefusedError, UsageError
from envgen.profile.load import load_project, select
from envgen.profile.model import Profile
from envgen.profile.service import Service
from envgen.render import exports

IMAGE = "registry.example/vllm@sha256:" + "0" * 64
COMMIT = "0123456789abcdef0123456789abcdef01234567"
RELEASE = "1.33"


def valid(found: list[dict[str, Any]]) -> None:
    """Raises where Kubernetes would refuse an object."""
    group, *others = found
    template = group["spec"]["leaderWorkerTemplate"]
    for which in ("leaderTemplate", "workerTemplate"):
        if which in template:
            pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template[which]}
            kubernetes_validate.validate(pod, RELEASE, strict=True)
    for other in others:
        kubernetes_validate.validate(other, RELEASE, strict=True)


SERVICE: dict[str, Any] = {
    "command": ["vllm", "serve", "acme/tiny"],
    "args": {"tensor-parallel-size": 2, "port": 8000},
    "model": {"repo": "acme/tiny"},
    "ports": ["8000:8000"],
    "health": {"http": "/health", "interval": "10s", "start_period": "30m"},
    "needs_memory": "64GiB",
    "env": {"PLAIN": "1e3", "DOLLAR": "$(HOME) $x"},
    "cluster": {"nodes": ["one", "two"]},
}


def profile(folder: Path, **service: Any) -> Profile:
    described: dict[str, Any] = {
        "mode": "production",
        "base": {"image": "nvcr.io/nvidia/pytorch:25.12-py3"},
        "cuda": {"arch_list": "12.1a"},
        "secrets": ["HF_TOKEN"],
        "shm_size": "16GiB",
        "caches": {"huggingface": {"path": "/root/.cache/huggingface"}, "triton": {"path": "/root/.triton"}},
        "services": {"serve": {**SERVICE, **service}},
    }
    path = folder / "envgen.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "name": "demo_x", "profiles": {"prod": described}}))
    return select(load_project(file=path, local=False).project, None)


def exported(*wanted: Any) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(exports.kubernetes(*wanted)))


def containers(found: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    template = found[0]["spec"]["leaderWorkerTemplate"]
    leader, worker = (template[which]["spec"]["containers"][0] for which in ("leaderTemplate", "workerTemplate"))
    return leader, worker


def test_a_service_of_two_machines(tmp_path: Path) -> None:
    found = exported(profile(tmp_path), "serve", IMAGE, COMMIT)
    valid(found)
    leader, worker = containers(found)
    assert leader["image"] == IMAGE
    assert leader["args"][:3] == ["vllm", "serve", "acme/tiny"]
    assert leader["args"][leader["args"].index("--revision") + 1] == COMMIT
    assert leader["args"][-4:] == ["--node-rank", "$(LWS_WORKER_INDEX)", "--master-addr", "$(LWS_LEADER_ADDRESS)"]
    assert worker["args"] == [*leader["args"], "--headless"]
    assert "readinessProbe" in leader and "readinessProbe" not in worker
    assert leader["startupProbe"]["failureThreshold"] == 180
    assert leader["resources"] == {
        "requests": {"memory": str(64 << 30)}, "limits": {"nvidia.com/gpu": 1},
    }  # fmt: skip
    env = {one["name"]: one for one in leader["env"]}
    assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {
        "name": "demo-x-secrets", "key": "HF_TOKEN", "optional": True,
    }  # fmt: skip
    assert env["DOLLAR"]["value"] == "$$(HOME) $$x"  # which Kubernetes makes $(HOME) $x again
    assert env["HF_HUB_OFFLINE"]["value"] == "1"
    volumes = {
        one["name"]: one for one in found[0]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["volumes"]
    }
    assert volumes["cache-huggingface"]["persistentVolumeClaim"] == {"claimName": "demo-x-huggingface"}
    assert volumes["cache-triton"]["emptyDir"] == {}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": str(16 << 30)}
    template = found[0]["spec"]["leaderWorkerTemplate"]
    selected = found[1]["spec"]["selector"].items()
    assert selected <= template["leaderTemplate"]["metadata"]["labels"].items()
    assert not selected <= template["workerTemplate"]["metadata"]["labels"].items()


def test_a_service_of_one_machine(tmp_path: Path) -> None:
    found = exported(profile(tmp_path, cluster=None, health=None, ports=[]), "serve", IMAGE)
    valid(found)
    template = found[0]["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 1 and "leaderTemplate" not in template
    assert "--nnodes" not in template["workerTemplate"]["spec"]["containers"][0]["args"]
    assert len(found) == 1


def test_the_text_is_always_the_same(tmp_path: Path) -> None:
    text = exports.kubernetes(profile(tmp_path), "serve", IMAGE, COMMIT)
    assert text == exports.kubernetes(profile(tmp_path), "serve", IMAGE, COMMIT)
    assert 'value: "1e3"' in text  # a number to Kubernetes, where it stands bare


def test_what_only_one_machine_has_is_refused_all_at_once(tmp_path: Path) -> None:
    one = profile(tmp_path, mounts={"data": "./data:/data"}, user="host")
    with pytest.raises(RefusedError) as refused:
        exported(one, "serve", IMAGE)
    assert refused.value.problems[0].message == (
        "serve cannot be exported, it needs of this machine: mounts, user: host (write numbers: 1000:1000)"
    )


@pytest.mark.parametrize(
    ("args", "cluster", "gpus"),
    [
        ({}, None, 1),
        ({"tensor-parallel-size": 2}, None, 2),
        ({"tensor-parallel-size": 2, "pipeline-parallel-size": 2}, None, 4),
        ({"tensor-parallel-size": 2}, {"nodes": ["one", "two"]}, 1),
        ({"tensor_parallel_size": 4}, {"nodes": ["one", "two"]}, 2),
        ({"tensor-parallel-size": "auto"}, None, 1),
    ],
)
def test_a_pod_asks_for_the_gpus_of_its_ranks(
    tmp_path: Path, args: dict[str, Any], cluster: dict[str, Any] | None, gpus: int
) -> None:
    found = exported(profile(tmp_path, args={**args, "port": 8000}, cluster=cluster), "serve", IMAGE)
    valid(found)
    template = found[0]["spec"]["leaderWorkerTemplate"]
    for one in (template[key] for key in ("leaderTemplate", "workerTemplate") if key in template):
        assert one["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": gpus}


def test_the_service_that_is_meant_is_the_one_of_every_command() -> None:
    service = Service(("x",))
    assert _named(made(services={"a": service, "dev": service}), None) == "dev"
    assert _named(made(services={"a": service, "b": service}), None) == "a"
    assert _named(made(services={"a": service, "dev": service}), "a") == "a"
    with pytest.raises(UsageError, match="has no services"):
        _named(made(services={}), None)
