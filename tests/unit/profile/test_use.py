"""`envgen use`, and what is said about a profile that isn't there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from envgen.__main__ import main
from envgen.app.use import with_default
from envgen.profile.load import load_project

TEXT = """\
version: 1
name: lab
default_profile: dev
defaults: {cuda: {arch_list: 12.1a}}
profiles:
  prod: {mode: production, base: {image: "debian:13"}}
  dev: {mode: production, base: {image: "debian:13"}, dockerfile: Dockerfile.dev}
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ENVGEN_PROFILE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envgen.yaml").write_text(TEXT)
    return tmp_path


def default() -> str:
    return load_project().project.default_profile


def test_a_link_that_leads_out_of_the_project_is_not_written_through(
    lab: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path_factory.mktemp("elsewhere") / "mine.yaml"
    other.write_text("# mine\n")
    (lab / "envgen.local.yaml").symlink_to(other)
    assert main(["use", "prod"]) == 6
    assert other.read_text() == "# mine\n" and "a link leads it out of" in capsys.readouterr().err
    (lab / "envgen.local.yaml").unlink()
    (lab / "machine.yaml").write_text("# mine\n")
    (lab / "envgen.local.yaml").symlink_to("machine.yaml")
    assert main(["use", "prod"]) == 0
    assert (lab / "machine.yaml").read_text() == "# mine\ndefault_profile: prod\n"


@pytest.mark.parametrize("name", ["null", "true", "on", "no"])
@pytest.mark.parametrize("before", ["", "default_profile: dev\n", "version: 1\n"])
def test_a_name_that_yaml_reads_as_something_else(lab: Path, name: str, before: str) -> None:
    (lab / "envgen.yaml").write_text(TEXT.replace("  prod:", f'  "{name}":'))
    (lab / "envgen.local.yaml").write_text(before)
    assert main(["use", name]) == 0
    assert default() == name


def test_use_writes_the_local_file_and_nothing_else(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["use", "prod"]) == 0
    assert default() == "prod" and (lab / "envgen.yaml").read_text() == TEXT
    assert load_project(local=False).project.default_profile == "dev"
    capsys.readouterr()
    assert main(["config"]) == 0
    assert capsys.readouterr().out.startswith("# profile prod of lab")
    assert main(["use", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["profile"] == "prod" and [one["used"] for one in found["profiles"]] == [True, False]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# mine\nversion: 1\n# more\ndefaults: {gpu: none} # end\n",
         "# mine\nversion: 1\n# more\ndefaults: {gpu: none} # end\ndefault_profile: prod\n"),
        ("default_profile: 'dev'  # today\n", "default_profile: prod  # today\n"),
        ("default_profile:\n", "default_profile: prod\n"),
        ("version: 1", "version: 1\ndefault_profile: prod\n"),
        ("# nothing yet", "# nothing yet\ndefault_profile: prod\n"),
    ],
)  # fmt: skip
def test_what_stands_in_the_local_file_stays(lab: Path, before: str, after: str) -> None:
    (lab / "envgen.local.yaml").write_text(before)
    assert main(["use", "prod"]) == 0
    assert (lab / "envgen.local.yaml").read_text() == after
    assert default() == "prod"
    assert main(["use", "dev"]) == 0 and main(["use", "prod"]) == 0
    assert (lab / "envgen.local.yaml").read_text() == after


@pytest.mark.parametrize("text", ["{version: 1}\n", "- a\n", "a: [\n", "default_profile:\n  dev\n"])
def test_a_file_that_it_cannot_change_stays(lab: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (lab / "envgen.local.yaml").write_text(text)
    assert main(["use", "prod"]) == 6
    assert (lab / "envgen.local.yaml").read_text() == text
    assert "write `default_profile: prod` at its top" in capsys.readouterr().err


KEYS = st.sampled_from(["version", "name", "x-a", "defaults", "default_profile"])
VALUES = st.one_of(
    st.none(), st.text(), st.integers(), st.lists(st.text()), st.dictionaries(st.text(), st.text())
)  # fmt: skip


@given(st.dictionaries(KEYS, VALUES))
def test_only_the_default_changes(document: dict[str, object]) -> None:
    text = yaml.safe_dump(document, sort_keys=False)
    after = with_default(text, "prod")
    if after is not None:
        assert yaml.safe_load(after) == {**document, "default_profile": "prod"}


def test_a_profile_that_is_missing(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["use", "prot"]) == 2
    assert "did you mean `prod`?; known: prod, dev" in capsys.readouterr().err
    assert not (lab / "envgen.local.yaml").exists()
    (lab / "envgen.local.yaml").write_text("default_profile: gone\n")
    assert main(["config"]) == 2
    assert "envgen.local.yaml:1:18: default_profile: profile 'gone' does not exist" in capsys.readouterr().err
    assert main(["use", "dev"]) == 0 and default() == "dev"


def test_the_variable_is_stronger_and_named(
    lab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVGEN_PROFILE", "dev")
    assert main(["use", "prod"]) == 0
    assert "ENVGEN_PROFILE=dev is set and overrides it" in capsys.readouterr().err
