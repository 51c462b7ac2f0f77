"""Cache folders are made before Docker makes them as root."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.deployment import Deployment
from envgen.errors import RefusedError
from envgen.profile.load import load_project
from envgen.serve.prepare import make_folder, prepare


def test_a_missing_folder_is_made_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path / "a/b")
    make_folder(tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()
    assert capsys.readouterr().err == f"  created the folder {tmp_path}/a/b\n"


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(RefusedError, match=r"the cache folder .*/a/b can't be created: Not a directory"):
        make_folder(tmp_path / "a/b")
    with pytest.raises(RefusedError, match=r"the cache folder .*/a can't be created: File exists"):
        make_folder(tmp_path / "a")


PROJECT = """\
version: 1
name: lab
default_profile: prod
profiles:
  prod:
    mode: production
    base: {image: base:1}
    cuda: {arch_list: 12.1a}
    caches: {hub: {path: /hub, host: hub}}
    services: {web: {command: [web], user: USER}}
"""


@pytest.mark.parametrize(
    ("user", "remapped", "noted"), [("root", True, True), ("root", False, False), ("host", True, False)]
)
def test_root_under_userns_remap_is_refused_before_it_fails(
    tmp_path: Path, user: str, remapped: bool, noted: bool, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("SUDO_UID", "1000")
    monkeypatch.setenv("SUDO_GID", "1000")
    (tmp_path / "envgen.yaml").write_text(PROJECT.replace("USER", user))
    profile = load_project(file=tmp_path / "envgen.yaml", environ={}).project.profiles["prod"]
    info = SimpleNamespace(local=True, remapped=remapped, rootless=False)
    engine: Any = SimpleNamespace(info=lambda: info, image=lambda _name: None)
    prepare(Deployment(profile, tmp_path).with_cached(engine=engine), "web")
    assert (tmp_path / "hub").is_dir()
    printed = capsys.readouterr().err
    assert (f"  {tmp_path}/hub unless it has `services.web.user: host`" in printed) is noted
