"""docs/doctor.md says what the checks say, and the checks say what they find."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.doctor.checks import CHECKS
from envgen.doctor.model import Says, Severity
from envgen.doctor.reference import BEGIN, END, cell, page

ROOT = Path(__file__).parents[3]


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
