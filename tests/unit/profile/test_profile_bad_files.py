"""Every bad project file gives all of its problems, each with its place and hint, exit code 2, and no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_project_files import CASES, MARK, Bad

from envgen.__main__ import main
from envgen.errors import Problem, ProjectError
from envgen.profile.load import load_project

# Where no single place can be marked: the whole file, or a place that depends on how far aliases were expanded.
ANYWHERE = {"exploding aliases", "deep flow"}


def marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without its marks, and the place of each."""
    places = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        while MARK in line:
            places.append((number, line.index(MARK) + 1))
            line = line.replace(MARK, "", 1)
        lines[number - 1] = line
    return "\n".join(lines), places


def problems_of(file: Path) -> tuple[Problem, ...]:
    with pytest.raises(ProjectError) as caught:
        load_project(file=file)
    return caught.value.problems


def test_there_are_enough() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_file(
    case: Bad, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, places = marks(case.text)
    file = tmp_path / "envgen.yaml"
    file.write_bytes(text.encode())

    found = problems_of(file)
    seen = "\n".join(map(str, found))
    assert len(found) == len(case.expected), seen
    if case.name not in ANYWHERE:
        whole = [(1, 1) if p.place and not p.place.line else (p.place.line, p.place.column) for p in found if p.place]
        assert whole == places, seen
    for problem, (message, hint) in zip(found, case.expected, strict=True):
        assert message in problem.message, seen
        assert hint in problem.hint, seen
        assert problem.place is not None
        assert problem.place.file == "envgen.yaml"

    assert main(["config"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    assert "internal error" not in shown.err
    first = found[0].place
    assert first and shown.err.startswith(str(first) if first.line else "envgen: ")
    for problem in found:
        assert str(problem.place) in shown.err
        if problem.place and problem.place.line and problem.place.text:
            caret = shown.err[shown.err.index(str(problem.place)) :].splitlines()[2]
            assert caret.rstrip().endswith("^")


SECRET = "s3cretpw99"
LOGIN = f"https://joe:{SECRET}@index.example/simple"


@pytest.mark.parametrize(
    "lines",
    [
        f"pip: {{index: '{LOGIN}'}}",
        f"pip: {{index: 'https://joe:{'x' * 40}{SECRET}{'x' * 40}@index.example/simple'}}",
        f"pip: {{extra_indexes: ['{LOGIN}']}}",
        f"pip: {{index: 'https://index.example/simple?token={SECRET}'}}",
        f"pip: '{LOGIN}'",
        f"mode: '{LOGIN}'",
        f"base: {{image: '{LOGIN}'}}",
        f"pip: {{override: ['x y @ {LOGIN}']}}",
        f"cuda: {{arch_list: '{LOGIN}'}}",
    ],
)
@pytest.mark.parametrize("json", [False, True])
def test_an_error_about_a_value_shows_no_secret(
    lines: str, json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rest = "".join(
        f"    {key}: {value}\n"
        for key, value in (
            ("mode", "production"),
            ("base", "{image: 'nvcr.io/nvidia/pytorch:25.12-py3'}"),
            ("cuda", "{arch_list: 12.1a}"),
        )
        if not lines.startswith(f"{key}:")
    )
    text = f"version: 1\nname: x\nprofiles:\n  p:\n{rest}    sources: {{}}\n    {lines}\n"
    (tmp_path / "envgen.yaml").write_text(text)
    assert main(["config", "-p", "p", *(["--json"] if json else [])]) == 2
    shown = "".join(capsys.readouterr())
    assert "envgen.yaml:" in shown or '"line"' in shown
    assert SECRET not in shown, shown
