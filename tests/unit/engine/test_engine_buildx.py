"""The command line of a build."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.buildx import BuildRequest, BuildResult, BuildStep, _csv, argv_of


def request(**more: object) -> BuildRequest:
    return BuildRequest(Path("/p/.envgen/Dockerfile"), Path("/p"), **more)  # type: ignore[arg-type]


def test_everything_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "environ", {"HTTPS_PROXY": "http://user:secret@proxy", "no_proxy": "localhost", "ALL_PROXY": ""}
    )
    words = request(
        tags=("demo:dev",), args={"X": "1"}, target="final",
        secrets={"jobs": "3", "ca_certificates": Path("/etc/ca.pem")},
        contexts={"wheelhouse": Path("/wheels")}, platform="linux/arm64", no_cache=True,
    ).words()  # fmt: skip
    assert words == [
        "--load", "--provenance=false", "--file=/p/.envgen/Dockerfile", "--tag=demo:dev",
        "--build-arg=X=1", "--build-arg=HTTPS_PROXY", "--build-arg=no_proxy",
        "--secret=id=jobs,env=ENVGEN_BUILD_SECRET_JOBS", "--secret=id=ca_certificates,src=/etc/ca.pem",
        "--build-context=wheelhouse=/wheels", "--target=final", "--platform=linux/arm64", "--no-cache", "/p",
    ]  # fmt: skip


@given(st.text())
def test_a_secret_is_never_an_argument(value: str) -> None:
    made = request(secrets={"token": value})
    assert made.words() == request(secrets={"token": "another"}).words()
    assert made.environment() == {"ENVGEN_BUILD_SECRET_TOKEN": value}


@given(st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), min_size=1))
def test_any_path_survives_the_commas(path: str) -> None:
    record = _csv("id=ca", f"src={path}")
    assert next(csv.reader(io.StringIO(record, newline=""))) == ["id=ca", f"src={path}"]


def test_the_engine_s_own_builder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "cli-plugins" / "docker-buildx"
    plugin.parent.mkdir()
    plugin.touch(0o755)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert argv_of("build", "/p") == [str(plugin), "--builder", "default", "build", "/p"]


def test_a_failed_result_shows_the_step_or_buildx_s_own_words() -> None:
    step = BuildStep("[2/2] RUN make", "exit code: 2", ["a", "b"])
    assert BuildResult(1, 1.0, step, "ERROR: x").last_lines == ["a", "b"]
    assert BuildResult(1, 1.0, None, "ERROR: x\ny").last_lines == ["ERROR: x", "y"]
