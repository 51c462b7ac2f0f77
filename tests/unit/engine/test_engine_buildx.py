"""The command line of a build."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.buildx import BuildRequest, BuildResult, BuildStep, Options, _csv, argv_of, proxy_arguments


def request(**more: object) -> BuildRequest:
    return BuildRequest(Path("/p/.envgen/Dockerfile"), Path("/p"), **more)  # type: ignore[arg-type]


def test_everything_in_its_place() -> None:
    words = request(
        tags=("demo:dev",), args={"X": "1"}, pass_args=("HTTPS_PROXY",), target="final",
        secrets={"jobs": "3", "ca_certificates": Path("/etc/ca.pem")},
        contexts={"wheelhouse": Path("/wheels")}, platform="linux/arm64", options=Options(no_cache=True, pull=True),
    ).words()  # fmt: skip
    assert words == [
        "--load", "--provenance=false", "--file=/p/.envgen/Dockerfile", "--tag=demo:dev",
        "--build-arg=X=1", "--build-arg=HTTPS_PROXY",
        "--secret=id=jobs,env=ENVGEN_BUILD_SECRET_JOBS", "--secret=id=ca_certificates,src=/etc/ca.pem",
        "--build-context=wheelhouse=/wheels", "--target=final", "--platform=linux/arm64", "--no-cache", "--pull", "/p",
    ]  # fmt: skip


@given(st.text())
def test_a_secret_is_never_an_argument(value: str) -> None:
    made = request(secrets={"token": value})
    assert made.words() == request(secrets={"token": "another"}).words()
    assert made.environment() == {"ENVGEN_BUILD_SECRET_TOKEN": value}


@given(st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), min_size=1))
def test_any_path_survives_the_commas(path: str) -> None:
    record = _csv("id=ca", f"src={path}")
    assert (
        next(csv.reader([record] if "\n" not in record else record.splitlines(keepends=True)))
        == [
            "id=ca",
            f"src={path}",
        ]
        or "\n" in path
    )


def test_the_engine_s_own_builder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "cli-plugins" / "docker-buildx"
    plugin.parent.mkdir()
    plugin.touch(0o755)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    argv = argv_of(request())
    assert argv[:4] == [str(plugin), "--builder", "default", "build"]
    assert argv_of(request(options=Options(builder="farm")))[:4] == [str(plugin), "--builder", "farm", "build"]


def test_only_proxies_that_are_set_are_passed_and_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"HTTPS_PROXY": "http://user:secret@proxy", "no_proxy": "localhost", "HTTP_PROXY": ""}
    monkeypatch.setattr(os, "environ", env)
    assert proxy_arguments() == ("HTTPS_PROXY", "no_proxy")


def test_a_failed_result_shows_the_step_or_buildx_s_own_words() -> None:
    step = BuildStep("[2/2] RUN make", error="exit code: 2")
    step.lines.extend(["a", "b"])
    assert BuildResult(1, "", 1.0, (step,), step, "ERROR: x").last_lines == ["a", "b"]
    assert BuildResult(1, "", 1.0, (), None, "ERROR: x\ny").last_lines == ["ERROR: x", "y"]
