"""Decisions: pure functions from a profile to what is printed."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests_render_make import encoding, mounted, profile, source

from envgen.lock.model import Pinned, ProfileLock, PythonLock
from envgen.patches.series import Patch, Series
from envgen.profile.model import Apt, Base, Build, Cache, Cuda, GpuMode, Mode, Network, Origin, Pip, Profile
from envgen.profile.service import Health, ModelRef, Service
from envgen.profile.values import ByteSize, ContainerPath, CudaArchList, HostPath, ImageRef, MaxJobs, Pin
from envgen.render.compose import compose_files
from envgen.render.environment import (
    WRITTEN,
    cache_volume,
    compose_environment,
    cuda_env,
    memory_floor,
    overlay_volume,
)
from envgen.render.outputs import dockerfile, render_profile, scripts, used
from envgen.render.plan import ImagePlan, RunStep


def _words(step: RunStep | None) -> tuple[str, ...]:
    assert step
    return step.words


def replaced(found: Profile, **changes: Any) -> Profile:
    return dataclasses.replace(found, **changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["ca-certificates"]),
        ({"sources": {"vllm": source()}}, ["ca-certificates", "git", "ccache"]),
        ({"sources": {"vllm": source()}, "build": Build(ccache=False)}, ["ca-certificates", "git"]),
        ({"sources": {"vllm": mounted()}}, ["ca-certificates", "git", "ccache"]),
        ({"sources": {"vllm": source(origin=Origin(wheel=Pin("vllm", "1.0")))}}, ["ca-certificates"]),
        ({"apt": Apt(build=("gcc", "ca-certificates=1"))}, ["gcc", "ca-certificates=1"]),
    ],
)
def test_build_packages_are_those_that_the_steps_need(changes: dict[str, Any], expected: list[str]) -> None:
    assert list(_words(ImagePlan(profile(**changes)).apt_build)) == expected


def test_python_from_apt_comes_before_all_that_runs_it() -> None:
    """A base image without Python: the first step brings it, and it has no package to keep."""
    base = Base(ImageRef.parse("example.org/cuda:1"), apt=("python3", "python3-pip"))
    found = ImagePlan(profile(tiktoken=encoding(), base=base, apt=Apt(build=("gcc",))))
    assert _words(found.apt_build) == ("ca-certificates", "python3", "python3-pip", "gcc")
    assert "protect" not in dockerfile(found) and "PIP_CONSTRAINT" not in dockerfile(found)
    mine = replace(found.profile, pip=Pip(protect=("torch",)))
    assert "protect record torch --off" in dockerfile(ImagePlan(mine))
    assert "protect verify" in dockerfile(ImagePlan(profile(tiktoken=encoding())))


def test_a_company_s_ca_is_in_a_build_that_has_one_and_changes_no_digest() -> None:
    """Nobody else reads of it; the vocabulary is then fetched by a program that knows the CA."""
    found = profile(tiktoken=encoding(), apt=Apt(runtime=("curl",)))
    plain, text = render_profile(found), dockerfile(ImagePlan(found))
    assert "with-network" not in text.replace("with-index", "") and "ca_certificates" not in text
    assert re.search(r"^ADD --checksum=sha256:[0-9a-f]{64} --chmod=0644 https://\S+ /\S+$", text, re.M)
    theirs = replace(found, network=Network(HostPath("~/ca.pem")))
    behind, text = render_profile(theirs), dockerfile(ImagePlan(theirs))
    assert plain.digest == behind.digest and plain.inputs == behind.inputs
    assert "\nADD " not in text and "/run/envgen/lib/with-network python3 /run/envgen/fetch file" in text
    runs = re.findall(r"^RUN .*(?:\n    .*)*", text, re.M)
    # The image is the same for all: its containers get the variables.
    assert "CERT_FILE" not in text and compose_files(theirs)[theirs.compose_file].count("SSL_CERT_FILE: ") == 1
    assert "CERT_FILE" not in compose_files(found)[found.compose_file]
    assert all("id=ca_certificates" in run for run in runs if "apt-install" in run or "with-index" in run)


def test_steps_without_work_are_left_out() -> None:
    text = dockerfile(ImagePlan(profile()))
    assert "pip-install" not in text
    assert "encodings" not in text
    assert {path for path in used(text, scripts()) if path.startswith("docker/build/")} == {
        "docker/build/apt-install",
        "docker/build/bootstrap",
        "docker/build/protect",
    }


def test_a_locked_step_is_uv_s_own_and_a_preferred_package_comes_last() -> None:
    """Where the base image brings packages that must stay, pip-install keeps them."""
    asked = Pip(deps=("llama-benchy", "b12x"), prefer=("b12x",))
    deps = tuple(Pinned(name, "1.0", ("a" * 64,)) for name in ("b12x", "llama-benchy"))
    sets = {"uv": (Pinned("uv", "0.9.0", ("a" * 64,)),), "deps": deps}
    lock = ProfileLock(None, {}, {"linux/arm64": PythonLock("", "3.12", sets)})
    found = profile(pip=asked)
    kept = ImagePlan(found, lock).installs[0].commands
    assert kept[0][3].endswith("pip-install") and len(kept) == 1
    base = dataclasses.replace(found.base, apt=("python3",))
    first, again = ImagePlan(replaced(found, base=base), lock).installs[0].commands
    assert first[2:5] == ("uv", "pip", "install") and "--require-hashes" in first
    assert again == (*first, "--reinstall-package", "b12x")


def test_a_profile_without_variables_has_no_empty_instruction() -> None:
    text = dockerfile(ImagePlan(profile(gpu=GpuMode.NONE, cuda=Cuda(arch_list=CudaArchList(())))))
    assert not re.search(r"(?m)^[A-Z]+ *$", text)


def test_a_server_in_production_is_a_user_that_only_reads_weights() -> None:
    """What `up` finds on this machine is the default of plain Compose: no files of root at home."""
    model, health = ModelRef("org/model"), Health("/health")
    caches = {"huggingface": Cache(ContainerPath("/root/.cache/huggingface"), HostPath("~/.cache/huggingface"))}
    served = Service(command=("serve",), model=model, health=health)
    for mode, read_only in ((Mode.PRODUCTION, True), (Mode.DEVELOPMENT, None)):
        found = profile(mode=mode, caches=caches, services={"serve": served})
        document = yaml.safe_load(compose_files(found)[found.compose_file])
        service = document["services"]["serve"]
        (weights,) = service["volumes"]
        assert weights.get("read_only") is read_only
        assert service.get("cap_drop") == (["ALL"] if read_only else None)
        assert ("user" in service) is bool(read_only)
        assert ("${ENVGEN_HF_OFFLINE:-1}" in service["environment"].values()) is bool(read_only)


def test_every_program_that_a_step_mounts_is_there() -> None:
    origins = {"vllm": Origin(git="https://example.org/v.git", ref="v1"), "x": Origin(wheel=Pin("x", "1"))}
    sources = {name: source(name, origin=origin, patches=name) for name, origin in origins.items()}
    series = Series("patches/vllm", (patch("a", "csrc/a.cu"), patch("b", "vllm/b.py")))
    found = profile(sources=sources, tiktoken=encoding(), pip=Pip(deps=("x",)))
    text = dockerfile(ImagePlan(found, patches={"vllm": series}))
    mounted = set(re.findall(r"from=(?:scripts|index),source=(/\S+?),", text))
    assert {"/build/apply-patches", "/build/fetch-git"} <= mounted
    assert text.count("COPY --chmod=0755 docker/ /\n") == 1
    for path in mounted:
        assert used(f"--mount=from=scripts,source={path},target=", scripts()), path


def test_every_program_says_where_it_comes_from_and_can_be_run() -> None:
    for path, text in scripts().items():
        assert text.startswith("#!"), path
        assert WRITTEN in text.splitlines()[1], path  # else a later render takes it for the user's


def patch(name: str, *touches: str) -> Patch:
    return Patch(name, f"patches/vllm/{name}", b"", touches)


def test_the_overlay_is_named_by_what_it_depends_on() -> None:
    one = profile(mode=Mode.DEVELOPMENT, sources={"vllm": mounted()})
    assert overlay_volume(one) == overlay_volume(replaced(one, description="other"))
    assert overlay_volume(one) == overlay_volume(replaced(one, sources={"vllm": mounted(path="/elsewhere")}))
    others = [
        replaced(one, base=dataclasses.replace(one.base, python="python3.13")),
        replaced(one, base=SimpleNamespace(image="example.org/base:2", python="python3")),
        replaced(one, sources={"vllm": mounted(), "flashinfer": mounted("flashinfer")}),
    ]
    assert len({overlay_volume(found) for found in [one, *others]}) == 4
    assert cache_volume(one, "torch") == "demo-prod-cache-torch"


def test_the_environment_of_up_has_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    found = profile(
        sources={"vllm": mounted()},
        caches={
            "huggingface": Cache(ContainerPath("/hf"), HostPath("~/hf")),
            "torch": Cache(ContainerPath("/torch")),
        },
        network=Network(ca_certificates=HostPath("/etc/ca.pem")),
        build=Build(wheelhouse=HostPath("wheels")),
    )
    assert compose_environment(found, tmp_path) == {
        "ENVGEN_SOURCES__VLLM__ORIGIN__CHECKOUT": str(tmp_path.parent / "vllm"),
        "ENVGEN_CACHES__HUGGINGFACE__HOST": "/home/someone/hf",
        "ENVGEN_NETWORK__CA_CERTIFICATES": "/etc/ca.pem",
        "ENVGEN_BUILD__WHEELHOUSE": str(tmp_path / "wheels"),
    }
    given = dataclasses.replace(found, build=Build(max_jobs=MaxJobs(6)))
    assert compose_environment(given, tmp_path)["ENVGEN_BUILD__MAX_JOBS"] == "6"


@pytest.mark.parametrize(("archs", "threads"), [("12.1a", "1"), ("12.0a 12.1a", "2"), ("8.0 8.6 8.9 9.0a 12.1a", "4")])
def test_nvcc_has_a_thread_for_each_arch(archs: str, threads: str) -> None:
    """vLLM divides its jobs by the number, so that more of them than archs only make the build slower."""
    found = profile(cuda=Cuda(CudaArchList.parse(archs)))
    env = {pair.name: pair.value for pair in cuda_env(found)}
    assert (env["NVCC_THREADS"], env["FLASHINFER_NVCC_THREADS"]) == (threads, threads)


@pytest.mark.parametrize(
    ("share", "floor"),
    [("0.90", "auto:0.10"), (0.7, "auto:0.30"), ("1.0", "auto"), ("0", "auto"), ("1.5", "auto"), ("x", "auto")],
)
def test_the_guard_keeps_what_a_server_leaves_to_others(share: Any, floor: str) -> None:
    server = dataclasses.replace(Service(command=("vllm",)), args={"gpu-memory-utilization": share})
    unified = profile(gpu=GpuMode.REQUIRED, services={"serve": server, "other": Service(command=("x",))})
    assert memory_floor(unified, "serve") == floor and memory_floor(unified, "other") == memory_floor(unified) == "auto"
    assert memory_floor(replaced(unified, gpu=GpuMode.NONE), "serve") == ""
    sized = replaced(unified, memory=dataclasses.replace(unified.memory, floor=ByteSize.parse("2GiB")))
    assert memory_floor(sized, "serve") == str(2 << 30)
