"""A checkout that is gone when a container starts again, where only Compose can see it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.engine.compose import Compose
from envgen.engine.values import ExecResult
from envgen.errors import EnvgenError
from envgen.profile.load import load_project
from envgen.profile.model import Profile
from envgen.serve import preflight
from envgen.serve.start import Start, compose_up

FILE = """\
version: 1
name: lab
default_profile: dev
profiles:
  dev:
    mode: development
    base: {image: base:1}
    cuda: {arch_list: 12.1a}
    gpu: none
    sources:
      lib: {origin: {checkout: ../src/lib}, package: lib, distribution: lib, mount: /code/lib}
    services:
      web: {command: [web], mounts: {models: {path: /models, host: models, read_only: true}}}
"""
# What Docker 28.5 with runc 1.1 wrote for `docker compose up` and `docker compose start`.
RESTART = (
    "Error response from daemon: Cannot restart container c3118ffc939c: failed to create task for container: failed to "
    "create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during "
    'container init: error mounting "FOLDER" to rootfs at "/code/lib": stat FOLDER: no such file or directory'
)
START = 'Error response from daemon: invalid mount config for type "bind": bind source path does not exist: FOLDER/.git'
LINES = {"restart": RESTART, "up": START}


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    (tmp_path / "p").mkdir()
    (tmp_path / "p/envgen.yaml").write_text(FILE)
    return load_project(file=tmp_path / "p/envgen.yaml", environ={}).project.profiles["dev"]


class Stub:
    """An engine on this machine."""

    def info(self) -> Any:
        return SimpleNamespace(local=True)

    def containers(self, *_: object, **__: object) -> tuple[()]:
        return ()

    def steps(self, _image: str) -> list[str]:
        return []


ENGINE: Any = Stub()


def on(profile: Profile, root: Path, service: str = "web", **values: Any) -> LiveService:
    return LiveService(Deployment(profile, root).with_cached(engine=ENGINE, **values), service)


@pytest.mark.parametrize("verb", LINES)
def test_what_compose_says_is_one_sentence_of_ours(tmp_path: Path, profile: Profile, verb: str) -> None:
    line, root = LINES[verb].replace("FOLDER", str(tmp_path / "src/lib")), tmp_path / "p"
    refused = preflight.changed_meanwhile(on(profile, root), ["Container lab-dev-web-1  Starting", line])
    assert refused is not None and refused.exit_code == 6
    (problem,) = refused.problems
    assert problem.message == f"web was not started: sources.lib: folder {tmp_path / 'src/lib'} does not exist"
    assert problem.hint == (
        "bring it back, or write `sources: {lib: {origin: {checkout: /path/to/lib}}}` below profiles.dev in "
        "envgen.local.yaml; then: envgen up web --profile dev"
    )


@pytest.mark.parametrize("gone", ["/elsewhere/lib", "TMP/src/lib/.git"])
def test_what_only_the_old_container_has(tmp_path: Path, profile: Profile, gone: str) -> None:
    (tmp_path / "src/lib").mkdir(parents=True)
    gone = gone.replace("TMP", str(tmp_path))
    line = RESTART.replace("FOLDER", gone)
    refused = preflight.changed_meanwhile(on(profile, tmp_path / "p"), [line])
    assert refused is not None
    (problem,) = refused.problems
    assert problem.message == f"web was not started: its container was made with {gone}, which is no longer there"
    assert problem.hint == "to make it with what the profile names: envgen up web --profile dev"


def test_a_file_that_the_image_lacks_is_another_matter(tmp_path: Path, profile: Profile) -> None:
    line = 'exec: "vllm": executable file not found in $PATH'
    assert preflight.changed_meanwhile(on(profile, tmp_path), [line]) is None


def test_up_uses_it(tmp_path: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    line = START.replace("FOLDER", str(tmp_path / "src/lib"))

    def stream(_self: Compose, *_: str, on_line: Any, timeout: float) -> ExecResult:
        on_line(line)
        return ExecResult(1, b"", b"")

    monkeypatch.setattr(Compose, "stream", stream)
    compose = Compose(SimpleNamespace(host="unix:///x"), (), tmp_path / "p/compose", "p")  # type: ignore[arg-type]
    start = Start(on(profile, tmp_path / "p", compose=compose), cast(Any, None), lambda _line: None)
    with pytest.raises(EnvgenError) as raised:
        compose_up(start)
    assert f"sources.lib: folder {tmp_path}/src/lib does not exist" in str(raised.value)
