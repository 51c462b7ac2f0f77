"""Text of a recipe is a value of the project file, and nothing else: in each of the four formats."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from envgen.__main__ import main
from envgen.errors import ProjectError
from envgen.profile.load import load_project
from envgen.recipes.read import read_recipe
from envgen.recipes.shipped import shipped
from envgen.recipes.write import left_of, profile_body, profile_text

TOP = Path(__file__).parents[3]
LOADED = load_project(file=TOP / "envgen.yaml", environ={}, local=False)
PARENT = LOADED.project.profiles["prod"]

# Text that would end a scalar, begin a key, a comment or a document, or be another type.
SHARP = st.sampled_from([
    "q: 1\n    secrets: [A]\n    A", "x\n  y: 1", "a: b", "a #b", "# c", "- a", "{a: b}", "[a]", "'", '"',
    "null", "~", "true", "No", "0x1f", "1e3", "1_000", "2026-01-01", "*a", "&a b",
    "!!python/name:os", "|", ">", "%", "@", "`",
    "---", "...", "", " ", "a\tb", "\u2028", "\u0085x", "\x07", "\ufeff", "é", "\U0001f600", "\u2029b: c", "<<", "? a",
])  # fmt: skip
TEXT = SHARP | st.text(max_size=12) | st.builds("{}{}".format, SHARP, st.text(max_size=4))
FLAGS = st.sampled_from(["max-model-len", "chat-template", "hf-overrides", "x.y"]) | TEXT
NAMES = st.sampled_from(["A", "VLLM_X"]) | TEXT
SOME = st.dictionaries(FLAGS, TEXT | st.lists(TEXT, max_size=2) | st.dictionaries(TEXT, TEXT, max_size=2), max_size=3)
ENV = st.dictionaries(NAMES, TEXT, max_size=2)


def own(text: str, args: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    return {"repo": "a/b", "revision": text, "args": args, "env": env, "weights": text, "source": text, "commit": text,
            "date": text, "ran": text, "b12x": args}  # fmt: skip


def vllm(text: str, args: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    words = [word for flag, value in args.items() for word in (f"--{flag}", str(value))]
    return {"model": {"model_id": "a/b", "base_args": words, "base_env": env, "docker_image": text},
            "features": {text: {}}, "opt_in_features": [text], text: 1}  # fmt: skip


def eugr(text: str, args: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    flags = " ".join(f"--{flag} '{value}'" for flag, value in args.items())
    return {"name": text, "model": "a/b", "container": text, "mods": [text], "env": env, "build_args": [text],
            "command": f"vllm serve a/b {flags}"}  # fmt: skip


def sparkrun(text: str, args: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    return {"model": "a/b", "runtime": "vllm", "container": text, "defaults": args, "env": env, "model_revision": text}


@pytest.mark.parametrize("made", [own, vllm, eugr, sparkrun])
@settings(max_examples=80, deadline=None)
@given(text=TEXT, args=SOME, env=ENV)
def test_every_text_of_a_recipe_stays_a_value(made: Any, text: str, args: dict[str, Any], env: dict[str, str]) -> None:
    document = yaml.safe_dump(made(text, args, env), allow_unicode=True)
    try:
        recipe = read_recipe(document, "r.yaml")
    except (ProjectError, yaml.YAMLError):
        return
    body = profile_body(recipe, PARENT, "serve", LOADED.trees["prod"], [])
    lines = profile_text(recipe, "r", PARENT, body, left_of(recipe, PARENT, []), 2)
    read = yaml.load("profiles:\n" + lines, yaml.BaseLoader)  # which makes text of everything
    assert read == {"profiles": {"r": plain(body)}}
    assert all(line.lstrip().startswith("#") for line in lines.split("\n")[: lines.count("\n  #") + 1])


@pytest.mark.parametrize("name", ["qwen3.6-27b-fp8", "gemma-4-26b"])
def test_of_the_parents_variants_only_kernels_for_the_chip_stay(name: str) -> None:
    recipe = shipped()[name]
    body = profile_body(recipe, PARENT, "serve", LOADED.trees["prod"], [])
    variants = body["variants"]
    kept = {key: one["services"]["serve"]["args"] for key, one in variants.items() if one}
    flags = {"attention-config": None, "attention-backend": "B12X", "block-size": "128", "linear-backend": "b12x"}
    assert kept == ({"b12x": flags} if recipe.b12x else {})
    assert variants.keys() == PARENT.variants.keys() | kept.keys()
    needed = {
        "sources": {"vllm": {"origin": {"wheel": "vllm[b12x]==0.33.0"}}},
        "pip": {"prefer": ["b12x"]},
        "caches": {"cute_dsl": {"path": "/root/.cache/cute_dsl"}, "b12x": {"path": "/root/.cache/b12x"}},
    }
    assert {key: body[key] for key in needed if key in body} == (needed if recipe.b12x else {})


def plain(value: Any) -> Any:
    """As a loader without types reads it."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return {None: "null", True: "true", False: "false"}.get(value, str(value)) if not isinstance(value, str) else value


@pytest.mark.parametrize(
    "name",
    [
        "q: 1\n        cap_add: [SYS_ADMIN]\n        devices: [/dev/fuse]\n        user",
        "q: 1\n    dockerfile_extra: {end: ['RUN id >/evil']}\n    secrets: [HF_TOKEN]\n    env:\n      g:\n        A",
    ],
)
def test_a_flag_s_name_writes_no_other_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(TOP / "envgen.yaml", tmp_path)
    shutil.copytree(TOP / "patches", tmp_path / "patches")
    before = Path("envgen.yaml").read_text()
    Path("r.yaml").write_text(yaml.safe_dump({"repo": "a/b", "args": {name: 1}}))
    assert main(["recipe", "add", "r.yaml", "--yes"]) == 2
    assert "is not a flag that envgen knows" in capsys.readouterr().err and Path("envgen.yaml").read_text() == before
