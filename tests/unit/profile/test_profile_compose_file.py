"""A profile's own Compose file: what is refused in it, and what its settings are where they are spoken of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bad_project_files import HEAD

from envgen.errors import ProjectError
from envgen.profile.compose_file import changes, effective, own_file
from envgen.profile.exposure import exposed
from envgen.profile.load import load_project
from envgen.profile.model import Profile

SERVICE = "    services: {s: {command: [x], ports: ['127.0.0.1:80:80']}}\n"
TOKEN = "hf_" + "a1B2" * 10


def profile_of(folder: Path) -> Profile:
    """Loaded, whatever the file's state: else nothing of the profile could be stopped."""
    (folder / "envgen.yaml").write_text(HEAD + SERVICE + "    compose: over.yaml\n")
    return load_project(file=folder / "envgen.yaml").project.profiles["dev"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: other\n", "over.yaml:1:1: `name` would make it another Compose project"),
        ('services: {}\n"name" : other\n', "over.yaml:2:1: `name` would make it"),
        (f"services: {{s: {{environment: {{HF_TOKEN: {TOKEN}}}}}}}\n", "over.yaml:1:1: looks like a secret"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    profile = profile_of(tmp_path)
    (tmp_path / "over.yaml").write_text(text)
    with pytest.raises(ProjectError) as caught:
        own_file(profile, tmp_path)
    assert message in str(caught.value) and TOKEN not in str(caught.value)


def test_what_compose_understands_is_its_own_matter(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    for text in ("services: {x: {provider: {type: y}, labels: {name: z}}}\n", "include: [../a.yaml]\n", "}{"):
        (tmp_path / "over.yaml").write_text(text)
        assert own_file(profile, tmp_path) == tmp_path / "over.yaml"


def test_one_that_is_not_there_or_elsewhere(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    profile = profile_of(root)
    with pytest.raises(ProjectError, match="does not exist"):
        own_file(profile, root)
    (tmp_path / "over.yaml").write_text("services: {}\n")
    (root / "over.yaml").symlink_to(tmp_path / "over.yaml")
    with pytest.raises(ProjectError, match="leaves the project folder"):
        own_file(profile, root)


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ({"ports": [{"target": 80, "published": "80", "host_ip": "127.0.0.1"}]}, ""),
        ({"ports": [{"target": 80, "published": "80", "host_ip": "0.0.0.0"}]}, "s: port 80 is reachable"),
        ({"ports": [{"target": 80, "published": "80-81"}]}, "s: ports 80, 81 are reachable"),
        ({"ports": [{"target": 80}]}, ""),
        ({}, ""),
    ],
)
def test_exposure_is_of_what_compose_understands(tmp_path: Path, described: dict[str, Any], expected: str) -> None:
    sentence = exposed(effective(profile_of(tmp_path), {"s": described}), "s")
    assert sentence.startswith(expected) and bool(sentence) == bool(expected)
    keyed = {**described, "environment": {"VLLM_API_KEY": "x"}}
    assert "no API key" not in exposed(effective(profile_of(tmp_path), {"s": keyed}), "s")


def test_a_command_of_ones_own_is_the_effective_one(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    assert effective(profile, {"s": {"command": ["guard", "x"]}}).services["s"].argv == ("x",)
    assert effective(profile, {"s": {"command": ["y", "--api-key", "k"]}}).services["s"].argv[0] == "y"


def test_changes_name_keys_and_no_values() -> None:
    rendered = {"command": ["x"], "volumes": [{"target": "/a"}], "environment": {"A": "1"}}
    merged = {
        "command": ["x"], "volumes": [{"target": "/a"}, {"target": "/b"}], "environment": {"A": TOKEN},
        "privileged": True, "ports": [{"target": 80, "published": "8080", "host_ip": "0.0.0.0"}],
    }  # fmt: skip
    assert changes(rendered, merged) == ["environment", "ports", "privileged", "volumes"]
