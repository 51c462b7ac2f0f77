"""Rendered files before Docker's own checkers, and what bake reads beside what envgen asks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from projects import BASE
from rendering import docker

from envgen.app.build import job_of, request_of
from envgen.engine.buildx import Options
from envgen.engine.endpoint import plugin_argv
from envgen.profile.load import load_project
from envgen.render.compose import PROXY
from envgen.render.environment import CA_VARIABLE, JOBS_VARIABLE, WHEELHOUSE_VARIABLE, compose_environment
from envgen.render.locking import lock_of
from envgen.render.outputs import render_project, write
from envgen.serve import preflight

pytestmark = pytest.mark.engine

TOP = Path(__file__).resolve().parents[2]
PROJECTS = [TOP, *sorted(path.parent for path in (TOP / "tests/golden/projects").glob("*/envgen.yaml"))]
PROJECTS += sorted(path.parent for path in (TOP / "examples").glob("*/envgen.yaml"))


@pytest.mark.parametrize("folder", PROJECTS, ids=lambda path: path.name)
def test_docker_finds_nothing_to_complain_about(folder: Path, tmp_path: Path) -> None:
    project = load_project(file=folder / "envgen.yaml", local=False).project
    files = render_project(project)
    write(tmp_path, files)
    for path in files:
        if path.startswith("Dockerfile"):
            # A base that is not here can't be looked up; the checker reads the rest anyway.
            text = files[path].decode()
            (tmp_path / path).write_text(
                re.sub(r"^FROM ((registry\.example|nvcr\.io)/\S+|debian:\S+)", f"FROM {BASE}", text, flags=re.MULTILINE)
            )
            done = docker("buildx", "build", "--check", "-f", str(tmp_path / path), str(tmp_path), check=False)
            assert "no warnings found" in done.stdout + done.stderr, done.stdout + done.stderr
        elif path.startswith("compose/"):
            # What a machine of a cluster adds goes with the file of its profile.
            profile = tmp_path / "compose" / f"{Path(path).name.partition('.')[0]}.yaml"
            chosen = [word for file in dict.fromkeys((profile, tmp_path / path)) for word in ("-f", str(file))]
            done = docker("compose", *chosen, "--profile", "*", "config", "-q")
            assert done.stderr == ""


@pytest.mark.parametrize("folder", PROJECTS, ids=lambda path: path.name)
def test_bake_builds_what_envgen_builds(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's own reading of the exported file beside the request of `envgen build`, with and without proxies."""
    monkeypatch.setattr(preflight, "files", lambda *_: ())  # their folders are not here
    project = load_project(file=folder / "envgen.yaml", local=False).project
    exported = subprocess.run(
        [sys.executable, "-m", "envgen", "export", "bake", "-f", str(folder / "envgen.yaml")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (tmp_path / "docker-bake.json").write_text(exported.stdout)
    for proxies in ({}, {"HTTPS_PROXY": "http://p:1", "no_proxy": "a,b"}):
        for name in PROXY:
            monkeypatch.delenv(name, raising=False)
        for name, value in proxies.items():
            monkeypatch.setenv(name, value)
        paths: dict[str, str] = {}
        for profile in project.profiles.values():
            paths |= compose_environment(profile, folder)
        paths = {name: paths[name] for name in (CA_VARIABLE, WHEELHOUSE_VARIABLE) if name in paths}
        done = subprocess.run(
            [*plugin_argv("buildx"), "bake", "--print", "-f", "docker-bake.json", *project.profiles],
            cwd=tmp_path, env={**os.environ, **paths}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        for name, profile in project.profiles.items():
            request = request_of(job_of(profile, folder, lock_of(profile, folder)), Options())
            baked = json.loads(done.stdout)["target"][name]
            passed = {name: proxies[name] for name in request.pass_args}
            assert baked.get("args", {}) == {**request.args, **passed}
            assert baked.get("contexts", {}) == {name: str(path) for name, path in request.contexts.items()}
            assert baked["tags"] == list(request.tags) and baked["dockerfile"] == profile.dockerfile
            assert baked.get("platforms", []) == ([request.platform] if request.platform else [])
            files = {key: str(value) for key, value in request.secrets.items() if isinstance(value, Path)}
            assert {one["id"]: one["src"] for one in baked["secret"] if "src" in one} == files
            assert [one for one in baked["secret"] if "env" in one] == [{"id": "jobs", "env": JOBS_VARIABLE}]
            assert baked["output"] == [{"type": "docker"}]
            assert baked["attest"] == [{"type": "provenance", "disabled": True}]
            assert not {"labels", "target"} & set(baked) and not request.target
