"""Templates print quoted text or fail; compiled templates are kept safely."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from envgen.render import templating
from envgen.render.quote import Quoted


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(templating, "templates_dir", lambda: tmp_path)
    templating._environment.cache_clear()
    yield tmp_path  # type: ignore[misc]
    templating._environment.cache_clear()


def test_text_that_was_not_quoted_cannot_be_printed(templates: Path) -> None:
    (templates / "t.j2").write_text("{{ value }}")
    with pytest.raises(TypeError, match="not quoted"):
        templating.render("t.j2", {"value": "a"})
    assert templating.render("t.j2", {"value": Quoted("a")}) == "a"
    assert templating.render("t.j2", {"value": 7}) == "7"


def test_joining_quoted_text_makes_it_unquoted(templates: Path) -> None:
    (templates / "t.j2").write_text("{{ a ~ b }}")
    with pytest.raises(TypeError, match="not quoted"):
        templating.render("t.j2", {"a": Quoted("'a"), "b": "b'"})


def test_an_unknown_name_is_an_error(templates: Path) -> None:
    (templates / "t.j2").write_text("{% for x in plan.nothing %}{% endfor %}")
    with pytest.raises(jinja2.UndefinedError):
        templating.render("t.j2", {"plan": object()})


def test_compiled_templates_are_used_again(templates: Path, own_cache: Path) -> None:
    (templates / "t.j2").write_text("one")
    assert templating.render("t.j2", {}) == "one"
    (kept,) = (own_cache / "envgen/templates").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    templating._environment.cache_clear()
    assert templating.render("t.j2", {}) == "one"


def test_a_changed_template_is_compiled_again(templates: Path) -> None:
    (templates / "t.j2").write_text("one")
    templating.render("t.j2", {})
    (templates / "t.j2").write_text("two")
    templating._environment.cache_clear()
    assert templating.render("t.j2", {}) == "two"


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_or_foreign_record_is_not_believed(templates: Path, own_cache: Path, damage: bytes | None) -> None:
    (templates / "t.j2").write_text("one")
    templating.render("t.j2", {})
    (kept,) = (own_cache / "envgen/templates").iterdir()
    if damage is None:
        kept.chmod(0o666)
    else:
        kept.write_bytes(damage)
    templating._environment.cache_clear()
    assert templating.render("t.j2", {}) == "one"


def test_a_cache_folder_that_cannot_be_written_costs_nothing_but_time(
    templates: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (templates / "t.j2").write_text("one")
    assert templating.render("t.j2", {}) == "one"
