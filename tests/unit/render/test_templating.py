"""Templates print quoted text or fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jinja2
import pytest

from envgen.render import quote
from envgen.render.quote import Quoted


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(quote, "data_dir", lambda _name: tmp_path)
    quote._environment.cache_clear()
    yield tmp_path
    quote._environment.cache_clear()


def test_text_that_was_not_quoted_cannot_be_printed(templates: Path) -> None:
    (templates / "t.j2").write_text("{{ value }}")
    with pytest.raises(TypeError, match="not quoted"):
        quote.render("t.j2", {"value": "a"})
    assert quote.render("t.j2", {"value": Quoted("a")}) == "a"
    assert quote.render("t.j2", {"value": 7}) == "7"


def test_joining_quoted_text_makes_it_unquoted(templates: Path) -> None:
    (templates / "t.j2").write_text("{{ a ~ b }}")
    with pytest.raises(TypeError, match="not quoted"):
        quote.render("t.j2", {"a": Quoted("'a"), "b": "b'"})


def test_an_unknown_name_is_an_error(templates: Path) -> None:
    (templates / "t.j2").write_text("{% for x in plan.nothing %}{% endfor %}")
    with pytest.raises(jinja2.UndefinedError):
        quote.render("t.j2", {"plan": object()})
