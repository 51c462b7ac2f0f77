"""envgen config and envgen init; and what the shipped project holds."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from bad_project_files import HEAD

from envgen.__main__ import main
from envgen.app.session import Session
from envgen.profile.load import load_project, select
from envgen.profile.model import Profile

ROOT = Path(__file__).parents[3]


def shipped(name: str) -> Profile:
    return select(load_project(file=ROOT / "envgen.yaml", local=False).project, name)


# --- config -----------------------------------------------------------------------------------------------------------


def test_every_layer_is_named_and_what_it_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envgen.yaml").write_text(HEAD + "    env: {X: 0.70}\n    python_path: [/a, /b]\n")
    (tmp_path / "envgen.local.yaml").write_text("defaults:\n  gpu: none\nprofiles: {dev: {env: {X: 0.80}}}\n")
    monkeypatch.setenv("ENVGEN_BUILD__MAX_JOBS", "2")
    assert main(["config", "--explain", "--set", "build.ccache=false", "--set", "python_path=[/c]"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in (
        'mode = "development"  # envgen.yaml:8:11',
        'cuda.arch_list = "12.1a"  # envgen.yaml:5:21',
        'env.X = "0.80"  # envgen.local.yaml:3:27',
        'gpu = "none"  # envgen.local.yaml:2:8',
        'build.max_jobs = "2"  # ENVGEN_BUILD__MAX_JOBS',
        "build.ccache = false  # --set build.ccache",
        'python_path = ["/c"]  # --set python_path',
    ):
        assert line in lines, lines
    assert any(line.endswith("# default") for line in lines)


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "envgen.yaml"
    file.write_text(HEAD)
    assert main(["config", "-f", str(file), "--json", "--explain", "--set", "gpu=all"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["profile"] == "dev"
    assert document["values"]["gpu"] == "all"
    origin = next(entry for entry in document["origins"] if entry["key"] == "gpu")
    assert origin == {"key": "gpu", "value": "all", "layer": "set", "place": "--set gpu"}


# --- init -------------------------------------------------------------------------------------------------------------


def test_init_writes_a_project_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "My New.Project"
    assert main(["init", str(folder)]) == 0
    written = sorted(path.name for path in folder.iterdir())
    assert written == [".gitignore", "AGENTS.md", "envgen.schema.json", "envgen.yaml"]
    loaded = load_project(file=folder / "envgen.yaml")
    assert loaded.project.name == "my-new-project"
    assert list(loaded.project.profiles) == ["prod", "dev"]
    assert "envgen.local.yaml" in (folder / ".gitignore").read_text()
    umask = os.umask(0)
    os.umask(umask)
    assert (folder / "envgen.yaml").stat().st_mode & 0o777 == 0o666 & ~umask
    assert loaded.project.default_profile == "prod"
    assert f"next: cd '{folder}' && envgen up serve\n" in capsys.readouterr().err


def test_the_starter_is_short_and_has_what_gpt_oss_needs(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / "new")]) == 0
    file = tmp_path / "new" / "envgen.yaml"
    assert len(file.read_text().splitlines()) <= 85
    profiles = load_project(file=file).project.profiles
    assert profiles["prod"].tiktoken == shipped("prod").tiktoken and profiles["prod"].tiktoken.encodings
    assert profiles["prod"].sources["vllm"].origin == shipped("prod").sources["vllm"].origin


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "envgen.schema.json").write_text("mine\n")
    assert main(["init", str(tmp_path), "--name", "one"]) == 0
    assert (tmp_path / "envgen.schema.json").read_text() == "mine\n"
    before = (tmp_path / "envgen.yaml").read_text()
    assert main(["init", str(tmp_path), "--name", "two"]) == 6
    assert "already exists" in capsys.readouterr().err
    assert (tmp_path / "envgen.yaml").read_text() == before
    assert "name: one\n" in before


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ("", "# What belongs to one machine\nenvgen.local.yaml\n.envgen/\n.env\n"),
        ("mine", "mine\n\n# What belongs to one machine\nenvgen.local.yaml\n.envgen/\n.env\n"),
        ("/.envgen\n.env\n", "/.envgen\n.env\n\n# What belongs to one machine\nenvgen.local.yaml\n"),
        (".envgen/\n.env\n/envgen.local.yaml\n", ".envgen/\n.env\n/envgen.local.yaml\n"),
    ],
)
def test_init_completes_a_gitignore(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], there: str, expected: str
) -> None:
    (tmp_path / ".gitignore").write_text(there)
    assert main(["init", str(tmp_path), "--name", "one"]) == 0
    assert (tmp_path / ".gitignore").read_text() == expected
    assert ("added" if there != expected else "kept") in capsys.readouterr().err.splitlines()[1]


def test_init_follows_no_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "envgen.yaml").symlink_to(tmp_path / "elsewhere")
    assert main(["init", str(tmp_path)]) == 6
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["My Project", "", "-x", "a\nb", "$(id)", "x" * 41])
def test_init_refuses_a_bad_name(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "p"), "--name", name]) == 2
    assert "is not a project name" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_init_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert main(["init", str(tmp_path / "file")]) == 2
    assert main(["init", str(tmp_path / "file" / "below")]) == 6


# --- the shipped project ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("starter", [False, True])
def test_dev_is_prod_with_checkouts_on_the_wheels_of_prod(tmp_path: Path, starter: bool) -> None:
    """One release in both, and nothing that a build would need."""
    assert main(["init", str(tmp_path / "new")]) == 0
    file = (tmp_path / "new" if starter else ROOT) / "envgen.yaml"
    profiles = load_project(file=file, local=False).project.profiles
    dev, prod = profiles["dev"], profiles["prod"]
    for key in ("base", "cuda", "build", "apt", "pip", "tiktoken", "env", "secrets", "gpu", "ipc", "ulimits"):
        assert getattr(dev, key) == getattr(prod, key), key
    for name, source in dev.sources.items():
        assert source.origin.kind == "checkout" and not source.install.requires and not source.install.env
        assert source.binaries == prod.sources[name].origin.wheel is not None


def test_what_the_starter_says_of_the_local_file_works_when_it_is_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "new")]) == 0
    file = tmp_path / "new" / "envgen.yaml"
    (line,) = re.findall(r"write envgen\.local\.yaml,\n +# +(.*)\n", file.read_text())
    file.with_name("envgen.local.yaml").write_text(line + "\n")
    profiles = load_project(file=file).project.profiles
    assert str(profiles["dev"].sources["vllm"].origin.checkout) == "~/src/vllm"
    assert "warning" not in capsys.readouterr().err


def test_hints_repeat_the_file_and_the_values(tmp_path: Path) -> None:
    """`lock` and `render` write for everybody, and take no --set."""
    text = "version: 1\nname: t\nprofiles: {p: {mode: production, base: {image: a:1}, gpu: none}}\n"
    (tmp_path / "second.yaml").write_text(text)
    file = str(tmp_path / "second.yaml")
    profile = Session(tmp_path / "second.yaml", "p", ("ipc=host",)).profile()
    assert profile.chosen == f"--profile p --file {file} --set ipc=host"
    assert profile.lock_command == f"envgen lock --profile p --file {file}"
    assert profile.render_command == f"envgen render --file {file}"
