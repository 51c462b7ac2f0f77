"""The patterns of values, and what they mean."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from envgen.profile import shape
from envgen.profile.load import load_project
from envgen.profile.values import ImageRef
from envgen.render.outputs import render_project


def test_what_an_index_is() -> None:
    good = (
        "https://index.example.org/simple",
        "http://[::1]:8080/root/pypi/+simple/",
        "https://h",
        "https://h/a%20b/~me/simple/",
    )
    login, query = "https://me:pw@h/simple", "https://h/simple?key=x"
    bad = (login, query, "https://h/simple#x", "https://h:999999/", "https://me:pw%40h/", "https://h/${TOKEN}/",
           "https://h/$(id)", "https://h/'x", 'https://h/"x', "https:///simple", "ftp://h/simple")  # fmt: skip
    assert [one for one in (*good, *bad) if shape.matches(shape.INDEX_URL, one)] == [*good]


@given(st.one_of(st.text(max_size=90), st.from_regex(r"[a-z0-9][a-z0-9._-]{0,60}", fullmatch=True)))
def test_what_a_recipe_is_called_becomes_a_name(text: str) -> None:
    name = shape.as_profile_name(text)
    assert shape.matches(shape.NAME, name)
    assert shape.as_profile_name(name) == name


FILE = """
version: 1
name: try
defaults: {{base: {{image: debian:12}}, cuda: {{arch_list: 12.1a}}}}
profiles:
  {name}:
    mode: production
    services: {{serve: {{command: [sleep, infinity]}}}}
"""


@settings(max_examples=30)
@given(st.from_regex(shape.NAME, fullmatch=True))
def test_every_name_of_a_profile_is_one_for_docker_and_compose(name: str) -> None:
    """Its image, its Compose project and its files, whatever YAML itself makes of such a word."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "envgen.yaml")
        file.write_text(FILE.format(name=json.dumps(name)))
        project = load_project(file=file, environ={}).project
        rendered = render_project(project)
    (profile,) = project.profiles.values()
    assert str(ImageRef.parse(profile.image_name)) == profile.image_name
    compose = yaml.safe_load(rendered[f"compose/{name}.yaml"])
    assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", compose["name"])
    assert shape.matches(shape.DOCKERFILE, compose["x-service"]["build"]["dockerfile"])
