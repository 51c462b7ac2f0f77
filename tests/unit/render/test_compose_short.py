"""Compose files as a person writes them: a shell in development."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from envgen.profile.load import load_project
from envgen.profile.model import Profile
from envgen.render.compose import compose_files

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
    assert f"#   docker compose -f {profile.compose_file} up -d   # {started}\n" in text
    assert ("run --rm dev envgen-install" in text) == bool(profile.mounted_sources)
