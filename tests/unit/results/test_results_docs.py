"""What docs/results.md shows is what the commands print: every example is run."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from envgen.__main__ import main

TOP = Path(__file__).parents[3]
PAGE = TOP / "docs" / "results.md"
DATA = Path(__file__).parent / "data"


def examples() -> list[tuple[str, str]]:
    """Each command of the page's console blocks, with the output that stands below it."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in found]


def test_every_example_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    for record in DATA.glob("*.jsonl"):
        shutil.copy(record, tmp_path / "results")
    shutil.copy(DATA / "llama-benchy-0.4.0.json", tmp_path / "llama-benchy.json")
    (tmp_path / "examples").symlink_to(TOP / "examples")
    run = 0
    for command, shown in examples():
        program, *argv = shlex.split(command, comments=True)
        assert program == "envgen" and argv[0] == "results", command
        assert main(argv) == 0, command
        captured = capsys.readouterr()
        printed = "\n".join(line.rstrip() for line in captured.out.splitlines())
        # `...` stands for lines that are left out.
        pattern = ".*".join(re.escape(part) for part in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE))
        assert re.fullmatch(pattern, printed, re.DOTALL), f"{command} prints now:\n{printed}"
        run += 1
    assert run >= 7
