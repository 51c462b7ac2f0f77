"""`.env`: which names are taken from it, and what is not read at all. (What Compose makes of it: tests/engine.)"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from envgen.app.session import Session
from envgen.engine import compose as program
from envgen.engine import process
from envgen.engine.compose import read_dotenv
from envgen.engine.values import ExecResult
from envgen.errors import RefusedError

SECRET = "correct-horse-battery"


@pytest.fixture(autouse=True)
def compose(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Compose, which gives every name that it is asked for the value of its line."""
    asked: list[str] = []

    def run(argv: list[str], **_: Any) -> ExecResult:
        copy, question = (word.partition("=")[2] for word in argv if word.startswith(("--env-file=", "--file=")))
        names = json.loads(Path(question).read_text())["x-asked"]
        asked.extend(names)
        lines = Path(copy).read_text().splitlines()
        if any("=" not in line for line in lines):
            return ExecResult(1, b"", f'line 2: unexpected character in "{SECRET}"'.encode())
        has = dict(line.split("=", 1) for line in lines)
        return ExecResult(0, json.dumps({"x-asked": {one: has.get(one, "") for one in names}}).encode(), b"")

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(program, "plugin_argv", lambda _name: ["compose"])
    return asked


def test_only_asked_names_are_taken(tmp_path: Path, compose: list[str]) -> None:
    (tmp_path / ".env").write_text(f"HF_TOKEN={SECRET}\nOTHER=x\nDOLLAR=a$$b\n")
    assert read_dotenv(tmp_path / ".env", ["HF_TOKEN", "DOLLAR", "NONE"]) == {
        "HF_TOKEN": SECRET,
        "DOLLAR": "a$b",
    }
    assert compose == ["HF_TOKEN", "DOLLAR", "NONE"]


@pytest.mark.parametrize("name", ["PATH", "LD_PRELOAD", "DOCKER_HOST", "COMPOSE_FILE", "GIT_SSH_COMMAND", "PYTHONPATH"])
def test_variables_of_programs_are_never_taken(tmp_path: Path, compose: list[str], name: str) -> None:
    (tmp_path / ".env").write_text(f"{name}=/evil\n")
    assert read_dotenv(tmp_path / ".env", [name]) == {} and compose == []


def test_no_file_and_a_folder_of_that_name_are_nothing(tmp_path: Path, compose: list[str]) -> None:
    assert read_dotenv(tmp_path / ".env", ["A"]) == {}
    (tmp_path / ".env").mkdir()
    assert read_dotenv(tmp_path / ".env", ["A"]) == {} and compose == []


def test_links_and_large_files_are_not_read(tmp_path: Path, compose: list[str]) -> None:
    path = tmp_path / ".env"
    for make, why in (
        (lambda: path.symlink_to("/etc/hostname"), "is a link"),
        (lambda: path.write_bytes(b"A=" + b"x" * (65 << 10)), "is larger than 64 KiB"),
        (lambda: os.mkfifo(path), "cannot be read"),
    ):
        make()
        with pytest.raises(RefusedError, match=why):
            read_dotenv(path, ["A"])
        path.unlink()
    assert compose == []


def test_an_error_quotes_no_value(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"A=1\n{SECRET}\n")
    with pytest.raises(RefusedError) as raised:
        read_dotenv(tmp_path / ".env", ["A"])
    assert ", line 2" in str(raised.value) and SECRET not in str(raised.value)


def test_a_session_takes_the_secrets_that_the_terminal_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compose: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HERE", "kept")
    monkeypatch.delenv("THERE", raising=False)
    (tmp_path / "envgen.yaml").write_text(
        "version: 1\nname: unit\ndefaults: {base: {image: b:1}, cuda: {arch_list: 12.1a}}\n"
        "profiles: {prod: {mode: production, secrets: [HERE, THERE]}}\n"
    )
    (tmp_path / ".env").write_text(f"HERE=other\nTHERE={SECRET}\n")
    session = Session(tmp_path / "envgen.yaml", "prod")
    session.profile(local=False)
    assert "THERE" not in os.environ
    shell = session.deployment().shell
    assert (shell["HERE"], shell["THERE"]) == ("kept", SECRET)
    assert session.deployment().shell == shell and compose == ["THERE"]  # asked once
    assert "THERE" not in os.environ
    (tmp_path / ".env").write_text(f"{SECRET}\n")
    Session(tmp_path / "envgen.yaml", "prod").deployment()
    printed = capsys.readouterr().err
    assert "warning:" in printed and "Compose cannot read" in printed and SECRET not in printed
