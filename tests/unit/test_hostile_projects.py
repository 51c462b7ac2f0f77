"""Random and mutated project files: each loads and renders, or is refused with envgen's own error, in bounded work.

ENVGEN_EXAMPLES says how many; the full fuzz is 10,000.
"""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from envgen.errors import EnvgenError
from envgen.profile.load import load_project
from envgen.profile.model import Profile
from envgen.profile.shape import ARG, ENUM, MAPPING, RECORD, SCALAR, SEQUENCE, VALUE, Shape, fields_of
from envgen.render.outputs import render_project

ROOT = Path(__file__).parents[2]
SEEDS = [
    (ROOT / name).read_text(encoding="utf-8")
    for name in (
        "envgen.yaml",
        "examples/quickstart/envgen.yaml",
        "examples/from-source/envgen.yaml",
        "tests/golden/awkward/envgen.yaml",
    )
]
RAW = {"Cc", "Cs", "Zl", "Zp"}

NASTY = st.sampled_from([
    "", " ", "~", "null", "true", "no", "0", "-1", "1e999", ".nan", ".inf", "9" * 400, "0x" + "f" * 200, "1" + "0" * 320 + "T",
    "{", "}", "[", "]", "${X}", "$(id)", "`id`", "'", '"', "\\", "#", "*a", "&a", "!!python/object:os.system", "<<",
    ".", "..", "../../etc/passwd", "/", "/etc", "/proc/self", "~root", "-rf", "--upload-pack=x", "a" * 300, "a" * 5000,
    "x" * 70_000, "\x1b[31m", "\x85", "\u2028", "\u202e", "\u200b", "\udc80", "\0", "\n", "\t", "é", "😀",
    "https://u:p@h/x", "https://h/x?token=abc", "hf_abcdefghijklmnopqrst", "(x+x+)+y", "(?=a)", "scratch", "git-", "x>=1 <2",
])  # fmt: skip
SCALARS = st.one_of(NASTY, st.text(max_size=20), st.integers(), st.floats(), st.booleans(), st.none())
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NASTY, inner, max_size=3), max_leaves=6
)


def values(shape: Shape, depth: int = 0) -> st.SearchStrategy[Any]:
    """What a place may hold, and now and then what it may not."""
    made: st.SearchStrategy[Any]
    if shape.kind == SCALAR:
        made = {str: st.sampled_from(["a", "vllm", "x y"]), int: st.integers(-2, 9000), bool: st.booleans()}[shape.type]
    elif shape.kind == VALUE:
        made = st.just(shape.type.EXAMPLE)
    elif shape.kind == ENUM:
        made = st.sampled_from([member.value for member in shape.type])
    elif shape.kind == RECORD:
        fields = fields_of(shape.type)
        made = st.fixed_dictionaries(
            {name: values(field.shape, depth + 1) for name, field in fields.items() if field.required},
            optional={name: values(field.shape, depth + 1) for name, field in fields.items() if not field.required},
        )
    elif shape.kind in (SEQUENCE, MAPPING):
        assert shape.inner is not None
        inner = values(shape.inner, depth + 1)
        names = st.one_of(st.sampled_from(["a", "vllm", "flashinfer", "A_B", "port"]), NASTY)
        made = st.lists(inner, max_size=2) if shape.kind == SEQUENCE else st.dictionaries(names, inner, max_size=2)
    else:
        assert shape.kind == ARG
        made = st.one_of(st.booleans(), st.text(max_size=5), ANYTHING)
    return st.one_of(made, made, made, made, made, made, made, made, ANYTHING)


@st.composite
def projects(draw: st.DrawFn) -> str:
    profile = draw(values(Shape(RECORD, Profile)))
    profiles = {"p": profile}
    top = {"version": 1, "name": "t", "profiles": profiles, **draw(st.dictionaries(NASTY, ANYTHING, max_size=1))}
    if draw(st.booleans()) and isinstance(profile, dict):
        more = draw(st.dictionaries(NASTY, ANYTHING, max_size=1))
        profiles["q"] = {"extends": "p", "dockerfile": "Dockerfile.q", **more}
    return yaml.safe_dump(top, allow_unicode=draw(st.booleans()), default_flow_style=draw(st.booleans()))


@st.composite
def mutations(draw: st.DrawFn) -> str:
    """A real project file with a few of its pieces replaced, repeated or lost."""
    text = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        text = text[:start] + draw(st.one_of(NASTY, st.text(max_size=5), st.just(text[start:end] * 3))) + text[end:]
    return text


def _paths(node: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path for key, child in steps for path in ((*above, key), *_paths(child, (*above, key)))]


@st.composite
def replacements(draw: st.DrawFn) -> str:
    """A real project file in which one value, of any depth, is another."""
    document = yaml.safe_load(draw(st.sampled_from(SEEDS)))
    # By depth first: most values are deep, and the few above them hold the file together.
    depth = draw(st.integers(1, 6))
    *above, last = draw(st.sampled_from([path for path in _paths(document) if len(path) <= depth]))
    node = document
    for key in above:
        node = node[key]
    node[last] = draw(ANYTHING)
    return yaml.safe_dump(document, allow_unicode=True, sort_keys=False)


def check(text: str, folder: Path) -> None:
    """Load and render, or an error of envgen's own, without a raw control character in it."""
    file = folder / "envgen.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        render_project(load_project(file=file, local=False).project)
    except EnvgenError as error:
        message = str(error)
        assert not [c for c in message if unicodedata.category(c) in RAW and c not in "\n\t"], repr(message)
        assert not set(message) & set("\u202e\u200b\u2066\ufeff")
        assert all(problem.place is None or problem.place.file for problem in error.problems)


BROKEN_PARENT = SEEDS[0].replace("  prod:\n", "  prod: later\n  other:\n", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@settings(
    max_examples=int(os.environ.get("ENVGEN_EXAMPLES", "30")), suppress_health_check=list(HealthCheck), deadline=None
)
@given(text=st.one_of(projects(), mutations(), replacements(), st.text(max_size=200)))
@example(text="version: 1\nname: t\nx:\n" + "".join(f"{' ' * i}a:\n" for i in range(1, 900)))
@example(text="? [&0 [], " + ", ".join(f"&{n} [*{n - 1}]" for n in range(1, 900)) + "]\n: x\na: *899\n")
@example(text='version: 1\nname: t\n"\\e]0;PWN\\a": 1\nprofiles: {"\\u202e": {}}\n')
@example(text=BROKEN_PARENT)
def test_any_file(folder: Path, text: str) -> None:
    check(text, folder)
