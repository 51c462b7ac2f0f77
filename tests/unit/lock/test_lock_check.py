"""`envgen lock --check` from argv to exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from envgen.__main__ import main
from envgen.engine.client import Engine
from envgen.errors import EngineError
from envgen.lock import ask, model
from envgen.lock.ask import FetchedRepository, python_asks
from envgen.lock.model import GitLock, ImageLock, Lock, Pinned, PythonLock
from envgen.profile.load import load_project

PROJECT = """\
version: 1
name: demo
profiles:
  prod:
    mode: production
    base: {image: "example.org/base:1"}
    cuda: {arch_list: 12.1a}
    sources:
      fi:
        origin: {git: "https://h/fi.git", ref: v1}
        package: flashinfer
        distribution: flashinfer-python
        mount: /w/fi
"""


DIGEST = "sha256:" + "a" * 64
SETS = {"uv": (Pinned("uv", "0.8.0", ("c" * 64,)),)}


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a lock of everything, without an engine."""

    def no_engine() -> Engine:
        raise EngineError("none")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("envgen.lock.resolve.connect", no_engine)
    (tmp_path / "envgen.yaml").write_text(PROJECT)
    profile = load_project(file=tmp_path / "envgen.yaml", local=False).project.profiles["prod"]
    image = ImageLock("example.org/base:1", DIGEST, {"linux/arm64": DIGEST})
    python = {"prod": {"linux/arm64": PythonLock(python_asks(profile, DIGEST), "3.12", SETS)}}
    git = {"https://h/fi.git v1": GitLock("https://h/fi.git", "v1", "b" * 40, "tag")}
    model.save(tmp_path / "envgen.lock", Lock({image.name: image}, git, python))
    return tmp_path


@pytest.mark.usefixtures("offline")
def test_every_check_compares_afresh(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """After an upgrade of envgen that asks something else, the lock has no answer to it."""
    assert main(["lock", "--check"]) == 0, capsys.readouterr()
    monkeypatch.setattr(ask, "FetchedRepository", lambda name, git, _ref: FetchedRepository(name, git, "refs/tags/v1"))
    assert main(["lock", "--check"]) == 1
    assert "refs/tags/v1" in capsys.readouterr().out


def test_without_the_hub_all_else_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hub refuses the connection: commits are written, the model is named, and no build depends on it."""
    service = "    services: {serve: {command: [vllm, serve, a/m], model: {repo: a/m}}}\n"
    cache = "    caches: {huggingface: {path: /root/.cache/huggingface, host: ~/.cache/huggingface}}\n"
    (tmp_path / "envgen.yaml").write_text(
        PROJECT + cache + service + "defaults: {services: {serve: {model: {repo: b/m}}}}\n"
    )
    monkeypatch.chdir(tmp_path)

    def no_engine() -> Engine:
        raise EngineError("Docker is stopped")

    def no_hub(*_asked: object, **_how: object) -> requests.Response:
        raise requests.ConnectionError("Connection refused")

    profile = load_project(file=tmp_path / "envgen.yaml", local=False).project.profiles["prod"]
    image = ImageLock("example.org/base:1", DIGEST, {"linux/arm64": DIGEST})
    python = PythonLock(python_asks(profile, image.digest), "3.12", SETS)
    there = Lock(images={image.name: image}, python={"prod": {"linux/arm64": python}})
    model.save(tmp_path / "envgen.lock", there)
    monkeypatch.setattr("envgen.lock.resolve.connect", no_engine)
    monkeypatch.setattr("requests.get", no_hub)
    monkeypatch.setattr("envgen.lock.resolve.resolve_git", lambda url, ref: GitLock(url, ref, "b" * 40, "tag"))
    assert main(["lock"]) == 7
    printed = capsys.readouterr().err
    assert "wrote envgen.lock" in printed and "envgen.yaml:" in printed and "not pinned: " in printed
    column = service.index("a/m}}") + 1  # of the profile that names it, not of the defaults that it replaces
    line = (PROJECT + cache + service).count("\n")
    assert f"envgen.yaml:{line}:{column}: the model a/m at main: cannot reach the hub" in printed
    found = model.load(tmp_path)
    assert found is not None and found.git["https://h/fi.git v1"].commit == "b" * 40 and not found.models
    assert main(["lock", "--check"]) == 1
    assert "main of the model a/m is not in the lock" in capsys.readouterr().out
    assert ask.stale(profile, ask.locked(profile, found)) == []
