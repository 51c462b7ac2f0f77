"""`envgen lock --check` from argv to exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.__main__ import main
from envgen.lock import model
from envgen.lock.ask import apt_asks, python_asks
from envgen.lock.model import AptLock, GitLock, ImageLock, Lock, PythonLock
from envgen.profile.load import load_project
from envgen.profile.model import Origin

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


def test_every_check_compares_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After an upgrade of envgen that asks something else, the lock has no answer to it."""
    (tmp_path / "envgen.yaml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    profile = load_project(file=tmp_path / "envgen.yaml", local=False).project.profiles["prod"]
    image = ImageLock("example.org/base:1", "sha256:" + "a" * 64)
    git = GitLock("https://h/fi.git", "v1", "b" * 40, "tag")
    python = PythonLock(python_asks(profile, image.digest), "3.12", {})
    apt = AptLock(apt_asks(profile, image.digest), (), ())
    lock = Lock(
        images={image.name: image},
        git={"https://h/fi.git v1": git},
        python={"prod": {"linux/arm64": python}},
        apt={"prod": {"linux/arm64": apt}},
    )
    model.save(tmp_path / "envgen.lock", lock)
    assert main(["lock", "--check"]) == 0, capsys.readouterr()
    monkeypatch.setattr(Origin, "git_ref", property(lambda _origin: "refs/tags/v1"))
    assert main(["lock", "--check"]) == 1
    assert "refs/tags/v1" in capsys.readouterr().out
