"""docs/doctor.md says what the checks say, and the checks say what they find."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from envgen.doctor.checks import CHECKS
from envgen.doctor.model import FunctionCheck, Says, Severity
from envgen.doctor.reference import BEGIN, END, cell, page

ROOT = Path(__file__).parents[3]
MODULES = sorted((ROOT / "envgen" / "doctor" / "checks").glob("*.py"))


def test_the_page_is_current() -> None:
    text = (ROOT / "docs" / "doctor.md").read_text()
    assert page(text) == text, "run scripts/regenerate"


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks"):
        page(f"{BEGIN}\nno end")
    assert page(f"a\n{BEGIN}\nold\n{END}\nb\n").startswith("a\n" + BEGIN)
    assert cell("a|b\nc") == "a\\|b c"


def test_identifiers_and_cases_are_unique() -> None:
    identifiers = [check.id for check in CHECKS]
    assert len(set(identifiers)) == len(identifiers)
    for check in CHECKS:
        cases = [says.case for says in check.says]
        assert len(set(cases)) == len(cases), check.id
        assert check.about, check.id


@pytest.mark.parametrize("says", [says for check in CHECKS for says in check.says], ids=lambda says: says.case)
def test_each_finding_is_described(says: Says) -> None:
    assert says.what
    assert says.why
    assert says.cure or says.severity is Severity.INFO


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_finding_is_made_without_a_case(path: Path) -> None:
    """Read from the source: each call that makes a warning or an error names its case."""
    tree = ast.parse(path.read_text())
    for name in ("warning", "error", "make"):
        for call in calls(tree, name):
            assert any(word.arg == "case" for word in call.keywords), f"{path.name}:{call.lineno}"


def declared(check: FunctionCheck) -> set[str]:
    return {says.case for says in check.says}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_each_literal_case_is_declared_in_its_module(path: Path) -> None:
    tree = ast.parse(path.read_text())
    known = {says for check in CHECKS if Path(check.judge.__code__.co_filename) == path for says in declared(check)}
    for name in ("warning", "error", "make", "info"):
        for call in calls(tree, name):
            for word in call.keywords:
                if word.arg == "case" and isinstance(word.value, ast.Constant):
                    assert word.value.value in known, f"{path.name}:{call.lineno}: {word.value.value}"
