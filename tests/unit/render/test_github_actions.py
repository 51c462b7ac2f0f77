"""The workflow, checked against the published schema and the command line that it calls; and annotations."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from envgen import cli
from envgen.errors import Place, Problem, UsageError, as_annotations

SCHEMA = json.loads((Path(__file__).parent / "published" / "github-workflow.json").read_text())
FILE = """\
version: 1
name: t
default_profile: prod
defaults:
  base: {image: "nvcr.io/x:1", platform: linux/arm64}
  cuda: {arch_list: 12.1a}
profiles:
  prod:
    mode: production
    services: {serve: {command: [vllm, serve, m]}, other: {command: [sleep, "1"]}}
  plain: {mode: development, gpu: none, services: {serve: {command: [vllm, serve, m]}}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "envgen.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def exported(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli.main, ["export", "github-actions", *words])
    assert done.exit_code == 0, done.exception
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    jsonschema.Draft7Validator(SCHEMA).validate(found)
    return found


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step and "pip install" not in step["run"]]


def test_what_is_refused_is_not_published() -> None:
    jobs = exported("--image", "ghcr.io/me/vllm", "--install", "envgen @ git+https://e.example/x@v1")["jobs"]
    assert commands(jobs["check"]) == ["envgen render --check", "envgen lock --check"]
    build, predict, push = commands(jobs["build"])
    assert "--push" not in build and predict == "envgen predict serve --profile prod"
    assert push == 'docker push "$IMAGE:$GITHUB_SHA"'
    assert jobs["build"]["permissions"] == {"contents": "read", "packages": "write"}
    assert jobs["build"]["runs-on"] == "ubuntu-24.04-arm" and jobs["build"]["env"] == {"IMAGE": "ghcr.io/me/vllm"}


def test_what_no_release_can_be_asked_about_goes_straight_to_the_registry() -> None:
    found = exported("-p", "plain", "--image", "r.example:5000/vllm")
    job = found["jobs"]["build"]
    assert commands(found["jobs"]["check"]) == ["envgen render --check"]  # there is no envgen.lock
    assert [line.endswith(" --push") for line in commands(job)] == [True]
    assert job["runs-on"] == "ubuntu-24.04-arm" and job["permissions"] == {"contents": "read"}
    assert found["on"]["push"] == {"branches": ["main"]}
    login = next(step for step in job["steps"] if step.get("uses", "").startswith("docker/login-action"))
    assert (
        login["with"]["registry"] == "r.example:5000" and login["with"]["password"] == "${{ secrets.REGISTRY_TOKEN }}"
    )


@pytest.mark.parametrize("profile", ["prod", "plain"])
def test_every_command_parses(profile: str) -> None:
    for job in exported("-p", profile, "--image", "ghcr.io/me/vllm")["jobs"].values():
        for line in commands(job):
            program, verb, *words = shlex.split(line)
            if program == "envgen":
                command = cli.main.get_command(click.Context(cli.main), verb)
                assert command is not None
                command.make_context(verb, words)


@pytest.mark.parametrize("image", ["ghcr.io/Me/vllm", "ghcr.io/me/vllm:1", f"ghcr.io/me/vllm@sha256:{'0' * 64}"])
def test_an_image_that_no_tag_can_follow(image: str) -> None:
    done = CliRunner().invoke(cli.main, ["export", "github-actions", "--image", image])
    assert isinstance(done.exception, UsageError) and "--image" in str(done.exception)


def test_annotations_are_github_s_alone() -> None:
    problems = [Problem("50% is\nno: number", Place("a,b:c.yaml", 3, 7, "x"), "write 1"), Problem("alone")]
    assert as_annotations(problems, {}) == ()
    assert list(as_annotations(problems, {"GITHUB_ACTIONS": "true"})) == [
        "::error file=a%2Cb%3Ac.yaml,line=3,col=7::50%25 is%0Ano: number%0Ahint: write 1",
        "::error::alone",
    ]


def test_a_drifted_file_is_annotated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CliRunner().invoke(cli.main, ["render"]).exit_code == 0
    with (folder / "Dockerfile").open("a") as file:
        file.write("# mine\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    lines = CliRunner().invoke(cli.main, ["render", "--check"]).stderr.splitlines()
    shown = "::error file=Dockerfile::is not what the project file renders to%0Ahint: envgen render"
    assert [line for line in lines if line.startswith("::")] == [shown]
