"""The command line of a build."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.buildx import BuildRequest, _recorded, argv_of


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
        "--secret=id=jobs,env=jobs", '--secret=id=ca_certificates,"src=/etc/ca.pem"',
        "--build-context=wheelhouse=/wheels", "--target=final", "--platform=linux/arm64", "--no-cache", "/p",
    ]  # fmt: skip


@given(st.text())
def test_a_secret_is_never_an_argument(value: str) -> None:
    assert request(secrets={"token": value}).words() == request(secrets={"token": "another"}).words()


@given(st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), min_size=1))
def test_any_path_survives_the_commas(path: str) -> None:
    (record,) = (word for word in request(secrets={"ca": Path(path)}).words() if word.startswith("--secret="))
    fields = next(csv.reader(io.StringIO(record.removeprefix("--secret="), newline="")))
    assert fields == ["id=ca", f"src={Path(path)}"]


def test_the_engine_s_own_builder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "cli-plugins" / "docker-buildx"
    plugin.parent.mkdir()
    plugin.touch(0o755)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert argv_of("build", "/p") == [str(plugin), "--builder", "default", "build", "/p"]


def test_a_log_without_a_record_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgen.engine.buildx._records", lambda: None)
    assert "was on the terminal alone" in _recorded(Path(), [])[0]
