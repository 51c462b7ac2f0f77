"""Thirteen public configurations that did not arrive: each by the facts that mattered, and what comes of it now."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.__main__ import main
from envgen.errors import ProjectError
from envgen.inside.predict import config
from envgen.lock.ask import models_of
from envgen.profile.load import load_project
from envgen.profile.model import Profile
from envgen.recipes.read import Recipe, read_recipe

TOP = Path(__file__).parents[3]
HEAD = """\
version: 1
name: t
profiles:
  a:
    mode: production
    base: {image: vllm/vllm-openai:v0.33.0}
    cuda: {arch_list: 12.1a}
    caches: {huggingface: {path: /root/.cache/huggingface, host: ~/.cache/huggingface}}
"""


def profile(text: str, tmp_path: Path) -> Profile:
    (tmp_path / "envgen.yaml").write_text(HEAD + text)
    return load_project(file=tmp_path / "envgen.yaml", local=False).project.profiles["a"]


@pytest.mark.parametrize(
    ("args", "variant"),
    [
        ("{spec-method: dspark, spec-model: o/m-D, spec-tokens: 3}", "{}"),
        ("{speculative-config.method: dspark, speculative-config.model: o/m-D}", "{}"),
        ("{speculative-config: {model: o/m-D}}", "{}"),
        ("{}", "{spec-model: o/m-D}"),
        ("{}", "{speculative-config.model: o/m-D}"),
    ],
)
def test_a_draft_is_weights_however_it_is_spelled(args: str, variant: str, tmp_path: Path) -> None:
    read = profile(
        f"    services: {{serve: {{command: [vllm, serve], model: {{repo: o/m}}, args: {args}}}}}\n"
        f"    variants: {{v: {{services: {{serve: {{args: {variant}}}}}}}}}\n",
        tmp_path,
    )
    assert [model.repo for model in models_of(read)["serve"]] == ["o/m", "o/m-D"]


def test_a_draft_with_its_own_revision(tmp_path: Path) -> None:
    args = "{speculative-config.model: o/m-D, speculative-config.revision: abc}"
    read = profile(
        f"    services: {{serve: {{command: [vllm, serve], model: {{repo: o/m}}, args: {args}}}}}\n", tmp_path
    )
    draft = read.services["serve"].draft
    assert draft is not None and draft.revision == "abc"


def test_the_release_is_asked_about_a_draft_of_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "located", lambda *_: {"from": "cache", "place": "/hub/config.json"})
    args = SimpleNamespace(spec_method="dspark", spec_model="o/m-D", spec_tokens=3, speculative_config=None)
    report: dict[str, Any] = {"model": {}}
    config.find_draft(args, {}, report, "/x")
    assert report["model"]["drafted"] == 3 and report["model"]["draft"] == "/hub/config.json"
    assert args.speculative_config == {"method": "dspark", "model": "o/m-D", "num_speculative_tokens": 3}
    assert args.spec_model is None  # the release refuses a model that is given twice
    twice = SimpleNamespace(spec_model="o/x", speculative_config={"model": "o/m-D"})
    config.find_draft(twice, {}, report, "/x")
    assert (twice.spec_model, twice.speculative_config["model"]) == ("o/x", "o/m-D")


NO_PROGRAM = "is no program, and envgen replaces the image's entry point"


@pytest.mark.parametrize(
    ("text", "where", "message", "hint"),
    [
        ("services: {serve: {command: [RedHatAI/Qwen3.6-35B, --host=0.0.0.0]}}", "services.serve.command[0]", NO_PROGRAM,
         "write command: [vllm, serve, RedHatAI/Qwen3.6-35B], and its flags in `args`"),
        ("services: {serve: {command: [--model, o/m, --port=8000]}}", "services.serve.command[0]", NO_PROGRAM,
         "write command: [vllm, serve, o/m], and its flags in `args`"),
        ("services: {serve: {command: [vllm, serve, m], args: {O3: true}}}", "services.serve.args.O3",
         "is a short flag of vLLM's", "write optimization-level: 3"),
        ("services: {serve: {command: [vllm, serve, m], memory: 56g}}", "services.serve.memory", "unknown key",
         "a key of Compose: write `compose: over.yaml` in the profile, and into the file over.yaml:"
         " services: {serve: {mem_limit: ...}}"),
        ("ulimits: {memlock: {soft: 1, hard: -1}}", "ulimits.memlock", "expected a whole number, found a mapping", ""),
    ],
)  # fmt: skip
def test_what_would_start_nothing_is_an_error(text: str, where: str, message: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(ProjectError) as error:
        profile(f"    {text}\n", tmp_path)
    [problem] = error.value.problems
    assert problem.place is not None
    assert (problem.place.line, problem.place.key) == (9, where)
    assert (problem.message, problem.hint) == (message, hint)


@pytest.mark.parametrize("program", ["/opt/vllm/serve", "./bin/serve", "python3"])
def test_a_program_is_one(program: str, tmp_path: Path) -> None:
    assert profile(f"    services: {{serve: {{command: [{program}, -m, x]}}}}\n", tmp_path).services


def test_limits_as_compose_writes_them(tmp_path: Path) -> None:
    text = "    ulimits: {memlock: {soft: -1, hard: -1}, stack: {hard: 67108864, soft: 67108864}, nofile: 9}\n"
    assert profile(text, tmp_path).ulimits == {"memlock": -1, "stack": 67108864, "nofile": 9}


# --- recipes

SPARK = 'recipe_version: "1"\nname: r\nmodel: a/b\ncommand: |\n'


def recipe(text: str) -> Recipe:
    return read_recipe(text, "r.yaml")


@pytest.mark.parametrize(
    "lines",
    [
        "  vllm serve a/b \\\n    --port {port} --seed 1\n    # a note; of the | author\n",
        "  # first\n\n  vllm serve a/b \\\n    --seed 1\n\n  # last\n",
        "  vllm serve a/b --seed 1 \\\n\n",
    ],
)
def test_comments_and_empty_lines_around_a_command(lines: str) -> None:
    assert recipe(SPARK + lines + "defaults: {port: 8000}\n").args == {"seed": "1"}


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            SPARK + "  vllm serve a/b \\\n  --seed 1 \\\n\n  --enable-prefix-caching\n",
            "line 7 is empty after a backslash: the shell ends the command there",
            "remove the line",
        ),
        (
            "model: a/b\nruntime: sglang\ncommand: sglang serve\n",
            "the runtime sglang is not vLLM's",
            "docs/recipes.md#another-server has a profile for such a server",
        ),
        (
            "apiVersion: nemoclaw.nvidia.com/managed-inference/v1\nkind: ServingRecipe\nspec: {}\n",
            "is NVIDIA's ServingRecipe (NemoClaw), which envgen does not read",
            "copy by hand: image -> base.image, model -> services.serve.model, environment -> env, arguments -> args",
        ),
        (SPARK + "  vllm serve a/b\n  echo x\n", "the command is a shell script, not one command",
         "write the profile by hand"),
    ],
)  # fmt: skip
def test_what_is_not_read_says_why(text: str, message: str, hint: str) -> None:
    with pytest.raises(ProjectError) as error:
        recipe(text)
    [problem] = error.value.problems
    assert (problem.message, problem.hint) == (message, hint)


PLAIN = """\
model: {model_id: openai/gpt-oss-120b}
features: {spec_decoding: {args: [--speculative-config, '{"model":"n/e"}']}}
opt_in_features: [spec_decoding]
dependencies: [{note: audio, command: 'uv pip install "vllm[audio]"', optional: true}, {command: pip install x}]
variants: {default: {}, nvfp4: {model_id: n/f}}
"""


def test_what_a_recipe_offers_is_named() -> None:
    left = recipe(PLAIN).left
    assert {
        'feature spec_decoding: optional; its flags: --speculative-config \'{"model":"n/e"}\'',
        'dependencies (optional): uv pip install "vllm[audio]"',
        "dependencies: pip install x",
        "variants: nvfp4; --model-variant takes one of them",
    } < set(left)
    assert not [one for one in read_recipe(PLAIN, "r.yaml", variant="nvfp4").left if "variants" in one]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(TOP / "envgen.yaml", tmp_path)
    shutil.copytree(TOP / "patches", tmp_path / "patches")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_recipe_without_a_share_of_memory_keeps_the_parent_s(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("q", PLAIN), ("speech", "model: {model_id: m/Voxtral-Mini-4B-Realtime-2602}\n")):
        Path("r.yaml").write_text(text)
        assert main(["recipe", "add", "r.yaml", "--yes", "--name", name]) == 0
    assert "a prompt to complete: a speech model" in capsys.readouterr().err
    profiles = load_project(file=Path("envgen.yaml"), local=False).project.profiles
    parent, added = profiles["prod"].services["serve"], profiles["q"].services["serve"]
    share = "gpu-memory-utilization"
    assert added.args[share] == parent.args[share] and added.needs_memory == parent.needs_memory
    ready = profiles["speech"].services["serve"].ready
    assert ready is not None and ready.expect_text is None
    for name in ("q", "speech"):
        assert main(["config", "-p", name]) == 0
    assert "warning" not in capsys.readouterr().err
