"""Compose files as a person writes them: short lists on one line, a shell in development, nothing that isn't set."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from envgen.profile.load import load_project
from envgen.profile.model import Profile
from envgen.render.compose import compose_files
from envgen.render.quote import compose_text

TOP = Path(__file__).resolve().parents[3]
SHIPPED = dict(load_project(file=TOP / "envgen.yaml", environ={}, local=False).project.profiles)


def document(profile: Profile) -> dict[str, dict[str, dict[str, object]]]:
    found: dict[str, dict[str, dict[str, object]]] = yaml.safe_load(compose_files(profile)[profile.compose_file])
    return found


@pytest.mark.parametrize(("name", "started"), [("prod", "serve"), ("source", "serve"), ("dev", "dev")])
def test_plain_up_starts_the_server_and_in_development_a_shell(name: str, started: str) -> None:
    profile = SHIPPED[name]
    services = document(profile)["services"]
    assert [one for one, service in services.items() if "profiles" not in service] == [started]
    text = compose_files(profile)[profile.compose_file]
    assert "up -d".ljust(60 - len(f"  docker compose -f {profile.compose_file} ")) in text
    assert ("run --rm dev envgen-install" in text) == bool(profile.mounted_sources)


PLAIN = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), PLAIN)
NAMES = st.text("ab-.:", min_size=1)
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4))
)


@given(st.dictionaries(st.sampled_from(["services", "volumes", "other"]), VALUES))
def test_one_line_or_several_says_the_same(values: dict[str, object]) -> None:
    text = compose_text(["head"], values)
    found = yaml.safe_load(text.replace("$$", "$")) or {}
    assert found == values, text
