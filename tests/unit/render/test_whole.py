"""The memory of whole projects: it answers for the same inputs only."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.__main__ import main
from envgen.render.whole import Whole

FILE = """
version: 1
name: whole
default_profile: prod
profiles:
  prod:
    mode: production
    base: {image: example.org/base:1}
    cuda: {arch_list: 12.1a}
    services: {serve: {command: [bash]}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "project"
    root.mkdir()
    (root / "envgen.yaml").write_text(FILE)
    monkeypatch.chdir(root)
    return root


def known(root: Path) -> bool:
    return Whole(root / "envgen.yaml").files() is not None


def test_a_finished_render_is_remembered_and_writes_the_same(project: Path) -> None:
    assert not known(project)
    assert main(["render"]) == 0
    assert known(project)
    first = (project / "Dockerfile").read_bytes()
    (project / "Dockerfile").unlink()
    assert main(["render"]) == 0
    assert (project / "Dockerfile").read_bytes() == first


@pytest.mark.parametrize("path", ["envgen.yaml", "envgen.lock", "patches/vllm/series", "patches/vllm/new.patch"])
def test_any_other_input_is_another_key(project: Path, path: str) -> None:
    assert main(["render"]) == 0
    changed = project / path
    changed.parent.mkdir(parents=True, exist_ok=True)
    changed.write_text((changed.read_text() if changed.exists() else "") + "\n# another byte\n")
    assert not known(project)


def test_drift_is_still_seen(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render"]) == 0
    (project / "Dockerfile").write_text("FROM scratch\n")
    assert main(["render", "--check"]) == 1
    assert "-FROM scratch" in capsys.readouterr().out


def test_a_broken_file_is_never_answered_from_memory(project: Path) -> None:
    assert main(["render"]) == 0
    (project / "envgen.yaml").write_text(FILE + "bogus: 1\n")
    assert main(["render"]) == 2


def test_a_damaged_record_is_none(project: Path) -> None:
    assert main(["render"]) == 0
    record = Whole(project / "envgen.yaml").path
    record.write_bytes(record.read_bytes().replace(b"FROM", b"EVIL"))
    assert not known(project)


def test_local_encoding_files_are_not_remembered(project: Path) -> None:
    encoding = "    tiktoken: {encodings: {o: {url: https://example.org/o, sha256: %s, file: o.bin}}}\n" % ("a" * 64)
    (project / "o.bin").write_text("x")
    (project / "envgen.yaml").write_text(FILE + encoding)
    assert main(["render"]) == 0
    assert not known(project)
