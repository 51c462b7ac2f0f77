"""The schema and the reference page come from the model, and the schema agrees with what binding accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import profile_page
import pytest
import yaml
from bad_project_files import HEAD

from envgen.errors import ProjectError
from envgen.profile import schema
from envgen.profile.load import load_project
from envgen.profile.tree import BOOL, FLOAT, INT, LIST, MAP, NULL, PROJECT, ValueText, YamlNode, parse

ROOT = Path(__file__).parents[3]
VALIDATOR = jsonschema.Draft202012Validator(schema.project_schema())


def data(node: YamlNode) -> Any:
    """The tree as an editor's YAML 1.2 parser sees it."""
    if node.kind == MAP:
        return {name: data(child) for name, child in node.items.items()}
    if node.kind == LIST:
        return [data(child) for child in node.elements]
    if node.kind == NULL:
        return None
    if node.kind == BOOL:
        return node.text.lower() == "true"
    if node.kind == INT:
        return int(node.text, 0) if node.text.startswith(("0x", "0o")) else int(node.text[:300])
    return float(node.text.replace(".inf", "inf").replace(".nan", "nan")) if node.kind == FLOAT else node.text


def accepts(text: str) -> bool:
    tree, problems = parse(ValueText("envgen.yaml", PROJECT, text))
    assert tree is not None
    assert not problems
    return bool(VALIDATOR.is_valid(data(tree)))


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema.project_schema())


@pytest.mark.parametrize(
    "file", ["envgen.yaml", "templates/init/envgen.yaml", "examples/quickstart/envgen.yaml"], ids=lambda name: name
)
def test_shipped_files_pass_the_schema_and_the_loader(file: str) -> None:
    text = (ROOT / file).read_text()
    assert accepts(text)
    assert list(load_project(file=ROOT / file, local=False).project.profiles)
    # A YAML 1.1 reader must not see other values than we do.
    assert VALIDATOR.is_valid(yaml.safe_load(text))


def test_committed_files_match_the_model() -> None:
    assert (ROOT / "envgen.schema.json").read_text() == schema.text(), "run scripts/regenerate"
    assert (ROOT / "docs/profile.md").read_text() == profile_page.text(), "run scripts/regenerate"


GOOD_AND_BAD: list[tuple[str, list[str], list[str]]] = [
    ("gpu: {}", ["auto", "required", "all", "cdi", "none", "null"], ["al", "[all]", "1", "true", "''"]),
    ("ipc: {}", ["host", "private", "shareable"], ["hots", "[host]", "1"]),
    ("description: {}",
     ["abc", "'1'", "a b $x \\ #y", "no", "2024-01-01", "8:30"], ["1", "0.5", "true", "[a]", "{a: b}", '"a\\nb"']),
    ("dockerfile: {}", ["Dockerfile", "Dockerfile.dev"], ["../Dockerfile", "envgen.yaml", "Dockerfile/x", "1"]),
    ("image: {}", ["a/b:1", "h:5000/a:b"], ["A b", "1", "[a]", "''", "-x"]),
    ("working_dir: {}", ["/a", "/a/b c"], ["a", "/a/../b", "'/a:b'", "1", '"/a\\tb"']),
    ("shm_size: {}", ["8GiB", "512m", "1073741824", "1.5g", "'10'"], ["lots", "-1", "true", "[1]", "8 Gib x"]),
    ("build: {{max_jobs: {}}}", ["auto", "1", "4", "'4'", "9999"], ["0", "-1", "1.5", "many", "10000", "true"]),
    ("build: {{ccache: {}}}", ["true", "false"], ["yes", "no", "1", "'true'"]),
    ("cuda: {{arch_list: {}}}",
     ["12.1a", "12.0f 12.1a", "12.0a;12.1a", "9.0a"], ["12.1a,12.0a", "sm_90", "[12.1a]", "''"]),
    ("secrets: {}", ["[]", "[A, b_C]"], ["A", "[A-B]", "[1]", "[[A]]", "{A: b}"]),
    ("apt: {{build: {}}}", ["[git, g++, libc6=2.36-9+deb12u4]"], ["[-y]", "['$(id)']", "[1]", "git", "['a b']"]),
    ("pip: {{tools: {}}}", ["[a, 'a>=1,<2', 'a[x]==1.0']"], ["['a; b']", "[-r]", "['a\\b']", "[1]"]),
    ("python_path: {}", ["[/a, /b]"], ["[a]", "['/a:/b']", "/a", "[1]"]),
    ("env: {{X: {}}}", ["a", "1", "0.70", "true", "''", "'$( )'"], ["[1]", "{a: b}", '"a\\nb"']),
    ("env: {}", ["{}", "{A: x}"], ["{A: {X: 1}}", "[g]", "{A-B: 1}"]),
    ("ulimits: {{memlock: {}}}",
     ["-1", "67108864", "{soft: 1, hard: 1}"], ["many", "1.5", "{soft: 1}", "{soft: a, hard: a}"]),
    ("caches: {{c: {}}}",
     ["{path: /c}", "{path: /c, host: ~/c}"], ["/c", "{path: c}", "{path: /c, host: 'a:b'}", "{pth: /c}"]),
    ("caches: {}", ["{a_b: {path: /c}}"], ["{A: {path: /c}}", "{a__b: {path: /c}}", "{a-b: {path: /c}}"]),
    ("services: {{s: {{command: [x], args: {}}}}}",
     ["{a: 1}", "{a: true}", "{a: [b, 1]}", "{a: {b: [1, null]}}", "{a.b: x}"],
        ["[a]", "{--a: 1}", "{a: []}", "{a: [[b]]}"]),
    ("services: {{s: {{command: [x], ports: {}}}}}",
     ["['8000:8000']", "['127.0.0.1:1:1']"], ["[8000]", "['8000']", "['http:1']", "['1:1/udp']"]),
    ("services: {{s: {{command: [x], mounts: {{m: {}}}}}}}",
     ["a:/b", "~/a:/b:ro", "./a b:/b:rw", "{host: a, path: /b}", "{host: a, path: /b, read_only: true}"],
        ["a", "a:b", "a:/b:x", "':/b'", "[a]", "1", "{host: a, path: b}", "{hst: a}", "a:/b:ro:z", '"a\\n:/b"']),
    ("services: {{s: {{command: [x], mounts: {}}}}}", ["{a_b: 'a:/b'}"], ["['a:/b']", "{A: 'a:/b'}", "a"]),
    ("services: {{s: {{command: [x], network: {}}}}}", ["host", "null"], ["bridge", "none", "[host]"]),
    ("services: {{s: {{command: [x], gpu: {}}}}}", ["[]", "[0, 1]", "['2']", "[GPU-8f-1]"],
        ["0", "all", "[all]", "[-1]"]),
    ("services: {{s: {{command: [x], restart: {}}}}}",
     ["no", "on-failure:3", "always", "unless-stopped"], ["on-failure", "never", "1"]),
    ("services: {{s: {{command: [x], health: {{http: /h, interval: {}}}}}}}", ["10s", "5m"], ["10", "5 m", "soon"]),
    ("services: {{s: {{command: [x], health: {{http: {}}}}}}}", ["/health"], ["health", "1", "'/a b'"]),
    ("sources: {{v: {{package: vllm, distribution: vllm, origin: {}}}}}",
     ["{checkout: ../v}", "{git: https://h/x, ref: main}", "{git: git@h:x.git, ref: refs/pull/3/head}",
      "{wheel: vllm==1.0}"],
        ["{git: h, ref: main}", "{git: https://h/x, ref: -f}", "{git: https://h/x, pull: 3}",
         "{git: https://h/x, ref: 1}", "{svn: x}"]),
    ("services: {{s: {{command: {}}}}}", ["[a, b c]"], ["a b", "[[a]]", "[1]"]),
]  # fmt: skip


@pytest.mark.parametrize(("place", "good", "bad"), GOOD_AND_BAD, ids=[place for place, _, _ in GOOD_AND_BAD])
def test_schema_and_binding_agree(place: str, good: list[str], bad: list[str], tmp_path: Path) -> None:
    file = tmp_path / "envgen.yaml"
    base = HEAD.replace("  cuda: {arch_list: 12.1a}\n", "") if place.startswith("cuda") else HEAD
    for value in [*good, *bad]:
        text = f"{base}    {place.format(value)}\n"
        file.write_text(text)
        try:
            load_project(file=file)
            bound = True
        except ProjectError:
            bound = False
        assert (bound, accepts(text)) == ((value in good),) * 2, value
