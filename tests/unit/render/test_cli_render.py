"""`envgen render` from argv to exit code."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from envgen.__main__ import main
from envgen.profile.load import load_project
from envgen.profile.service import Service
from envgen.render.environment import compose_environment
from envgen.render.outputs import scripts

PROJECT = """\
version: 1
name: demo
default_profile: prod
profiles:
  prod:
    mode: production
    base: {image: "example.org/base:1"}
    cuda: {arch_list: 12.1a}
    gpu: none
    services: {serve: {command: [vllm, serve]}}
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "envgen.yaml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_write_then_check(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render"]) == 0
    assert "wrote compose/prod.yaml" in capsys.readouterr().err
    written = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())
    assert [path for path in written if path not in scripts()] == [
        ".dockerignore",
        "Dockerfile",
        "compose/prod.yaml",
        "envgen.yaml",
    ]
    programs = [path for path in written if path.startswith("docker/")]
    assert "docker/runtime/bin/entrypoint" in programs and set(programs) <= set(scripts())
    assert not [path for path in programs if not (root / path).stat().st_mode & 0o100]
    assert main(["render"]) == 0
    assert f"{len(programs) + 3} files are up to date" in capsys.readouterr().err
    assert main(["render", "--check"]) == 0
    assert capsys.readouterr().out == ""


def test_a_project_file_beside_another_writes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = root / "second.yaml"
    second.write_text(PROJECT)
    for words in (["render"], ["render", "--check"], ["lock"]):
        assert main([*words, "-f", "second.yaml"]) == 6
        assert "move it to a folder of its own" in capsys.readouterr().err
    assert not (root / "Dockerfile").exists()
    (root / "envgen.yaml").unlink()
    assert main(["render", "-f", "second.yaml"]) == 0


def test_drift_is_a_diff_on_stdout_and_exit_1(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["render"])
    file = root / "Dockerfile"
    file.write_text(file.read_text().replace("FROM scratch AS scripts", "FROM elsewhere AS scripts"))
    capsys.readouterr()
    assert main(["render", "--check"]) == 1
    out = capsys.readouterr()
    assert "-FROM elsewhere AS scripts\n+FROM scratch AS scripts\n" in out.out
    assert "run `envgen render`" in out.err
    assert "FROM elsewhere" in (root / "Dockerfile").read_text()


def test_check_renders_afresh(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """After an upgrade of envgen that renders differently, the committed files have drifted."""
    main(["render"])
    assert main(["render", "--check"]) == 0
    monkeypatch.setattr(Service, "argv", property(lambda _service: ("another", "program")))
    assert main(["render", "--check"]) == 1
    assert "another" in capsys.readouterr().out


def test_machine_layers_do_not_reach_committed_files(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["render"])
    monkeypatch.setenv("ENVGEN_BUILD__MAX_JOBS", "7")
    (root / "envgen.local.yaml").write_text("defaults: {cuda: {arch_list: 9.0a}}\n")
    assert main(["render", "--check"]) == 0
    assert capsys.readouterr().out == ""


def test_cores_and_free_memory_change_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the files nor in what Compose puts into them: a second `up` would replace a running server."""
    profile = load_project(file=root / "envgen.yaml").project.profiles["prod"]
    main(["render"])
    before = compose_environment(profile, root)
    assert 'MAX_JOBS: "${ENVGEN_BUILD__MAX_JOBS:-128}"' in (root / "compose/prod.yaml").read_text()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert main(["render", "--check"]) == 0
    assert compose_environment(profile, root) == before
    assert "ENVGEN_BUILD__MAX_JOBS" not in before


def test_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["render", "--json"])
    written = json.loads(capsys.readouterr().out)["written"]
    assert [path for path in written if path not in scripts()] == [".dockerignore", "Dockerfile", "compose/prod.yaml"]
    main(["render", "--json", "--check"])
    assert json.loads(capsys.readouterr().out)["drift"] == ""


HAND_WRITTEN = {"Dockerfile": "FROM debian\n", ".dockerignore": "node_modules\n", "compose/prod.yaml": "services: {}\n"}


def test_hand_written_files_are_not_overwritten(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "compose").mkdir()
    for path, text in HAND_WRITTEN.items():
        (root / path).write_text(text)
    before = sorted(root.rglob("*"))
    assert main(["render"]) == 6
    assert ".dockerignore, Dockerfile, compose/prod.yaml" in capsys.readouterr().err
    assert sorted(root.rglob("*")) == before
    assert {path: (root / path).read_text() for path in HAND_WRITTEN} == HAND_WRITTEN
    assert main(["render", "--check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["foreign"] == sorted(HAND_WRITTEN)


@pytest.mark.parametrize("words", [[], ["--check"]])
def test_a_link_out_of_the_project_is_no_rendered_file(
    root: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render"]) == 0
    (root / "Dockerfile").rename(root.parent / "elsewhere")
    (root / "Dockerfile").symlink_to(root.parent / "elsewhere")
    assert main(["render", *words]) == 6
    assert "Dockerfile: a link leads it out of" in capsys.readouterr().err


def test_values_for_one_command_reach_no_committed_file(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "--set", "build.max_jobs=3"]) == 2
    assert "--set has no effect on committed files" in capsys.readouterr().err
    assert not (root / "Dockerfile").exists()


def test_an_edited_file_is_written_anew_and_one_of_no_profile_goes(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (root / "envgen.yaml").read_text()
    other = text + "  other: {extends: prod, dockerfile: Dockerfile.other}\n"
    (root / "envgen.yaml").write_text(other)
    assert main(["render"]) == 0
    (root / "compose" / "mine.yaml").write_text("services: {}\n")  # not ours: it has no header
    with (root / "compose/prod.yaml").open("a") as file:
        file.write("# mine\n")
    (root / "envgen.yaml").write_text(text)
    capsys.readouterr()
    assert main(["render", "--check"]) == 1
    assert "+++ b/compose/prod.yaml" in capsys.readouterr().out
    assert main(["render"]) == 0
    printed = capsys.readouterr().err
    assert "wrote compose/prod.yaml" in printed
    assert main(["render", "--check"]) == 0
