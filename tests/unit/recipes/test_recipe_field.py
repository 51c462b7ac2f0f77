"""Recipes of other people that did not arrive: each as the facts that mattered, in the format it was in."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from envgen.__main__ import main
from envgen.profile.load import load_project
from envgen.profile.model import Profile
from envgen.recipes.read import Recipe, read_recipe
from envgen.render import outputs
from envgen.render.compose import compose_files

TOP = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(TOP / "envgen.yaml", tmp_path)
    shutil.copytree(TOP / "patches", tmp_path / "patches")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def spark(flags: str = "", **keys: Any) -> str:
    """A recipe as eugr's and sparkrun's."""
    return yaml.safe_dump(
        {"recipe_version": "1", "name": "r", "model": "a/b", "command": f"vllm serve a/b {flags}", **keys}
    )


def read(text: str) -> Recipe:
    return read_recipe(text, "r.yaml")


def add(text: str, *words: str) -> Profile:
    Path("r.yaml").write_text(text)
    assert main(["recipe", "add", "r.yaml", "--yes", "--name", "r", *words]) == 0
    loaded = load_project(file=Path("envgen.yaml"), local=False).project
    outputs.render_project(loaded)
    return loaded.profiles["r"]


@pytest.mark.parametrize(
    ("flags", "machines"),
    [("-tp 1 -pp 3", 3), ("--tensor-parallel-size 2 --pipeline-parallel-size 2", 4), ("-tp 2 -dp 2", 4), ("", 1)],
)
def test_ranks_are_all_that_the_flags_multiply(flags: str, machines: int) -> None:
    assert read(spark(flags)).nodes == machines
    vllm = {"model": {"model_id": "a/b", "base_args": flags.split()}}
    assert read(yaml.safe_dump(vllm)).nodes == machines
    args = read(spark(flags)).args
    assert read(yaml.safe_dump({"repo": "a/b", "args": args})).nodes == machines


def test_short_flags_of_any_kind_are_spelled_out() -> None:
    flags = '-tp 2 -O3 -ep -sc \'{"method": "ngram"}\' -cc.pass_config.fuse true -asc=2'
    assert read(spark(flags)).args == {
        "tensor-parallel-size": "2", "optimization-level": "3", "enable-expert-parallel": "true",
        "speculative-config": {"method": "ngram"}, "compilation-config.pass_config.fuse": "true",
        "api-server-count": "2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--chat-template unsloth.jinja", "chat-template: the file unsloth.jinja"),
        ("--reasoning-parser-plugin nano_parser.py", "reasoning-parser-plugin: the file nano_parser.py"),
        ("--speculative-config '{{\"model\": \"/workspace/x\"}}'", "speculative-config.model: the file /workspace/x"),
        ("--speculative-config '{{\"model\": \"org/draft\"}}'", ""),
        ("--chat-template '{{{{ messages }}}}'", ""),
    ],
)  # fmt: skip
def test_a_file_that_a_mod_brings_is_named(flags: str, named: str) -> None:
    left = read(spark(flags)).left
    assert [one for one in left if one.startswith(named)] if named else left == ()


def test_what_says_nothing_about_serving_is_not_called_unknown() -> None:
    found = read(spark(pull_image=True, hardware_notes="x", build_args=["--apply-vllm-pr", 41834], other=1))
    assert found.left == (
        "other: a key that envgen does not know in this format",
        "build_args: --apply-vllm-pr 41834: write `origin: {git: https://github.com/vllm-project/vllm.git,"
        " ref: refs/pull/41834/head}`",
    )


def test_the_recipe_s_public_image_can_be_the_base(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = spark("--max-num-seqs 4", container="vllm/vllm-openai:v0.33.0")
    Path("r.yaml").write_text(text)
    assert main(["recipe", "add", "r.yaml", "-n"]) == 0
    assert "; --image takes the recipe's" in capsys.readouterr().err
    profile = add(text, "--image")
    assert str(profile.base.image) == "vllm/vllm-openai:v0.33.0"
    assert not profile.sources and not profile.base.apt and not profile.pip.deps
    assert profile.services["serve"].argv[:3] == ("vllm", "serve", "a/b")
    assert "image" not in capsys.readouterr().err
    Path("r.yaml").write_text(spark(container="vllm-node"))  # built by its author: nobody can pull it
    assert main(["recipe", "add", "r.yaml", "-n", "--name", "q"]) == 0
    assert "--image" not in capsys.readouterr().err
    Path("r.yaml").write_text(spark())
    assert main(["recipe", "add", "r.yaml", "-n", "--name", "q", "--image"]) == 2


def test_kernels_of_b12x_need_the_wheel_s_extra(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--attention-backend B12X --moe-backend b12x --load-format b12x"
    assert add(spark(flags)).services["serve"].args["load-format"] == "b12x"
    for given, told in ((flags, True), ("--moe-backend marlin", False)):
        Path("r.yaml").write_text(spark(given))
        assert main(["recipe", "add", "r.yaml", "-n", "--name", "q"]) == 0
        said = "profile prod installs vLLM without them; write `wheel: 'vllm[b12x]==0.33.0'`"
        assert (said in capsys.readouterr().err) is told
    file = Path("envgen.yaml")
    file.write_text(file.read_text().replace("wheel: vllm==0.33.0", 'wheel: "vllm[b12x]==0.33.0"'))
    Path("r.yaml").write_text(spark(flags))
    assert main(["recipe", "add", "r.yaml", "-n", "--name", "q"]) == 0
    assert "kernels of b12x" not in capsys.readouterr().err


def test_a_reranker_inherits_no_text_to_expect(project: Path) -> None:
    profile = add(spark("--runner pooling --max-model-len 8192"))
    ready = profile.services["serve"].ready
    assert ready is not None and ready.expect_text is None and ready.model == "a/b"


def test_a_dotted_boolean_keeps_its_value(project: Path) -> None:
    words = [
        "--attention-config.use_fp4_indexer_cache=true",
        "--moe-backend",
        "b12x",
        "--default-chat-template-kwargs.thinking=true",
        "--default-chat-template-kwargs.reasoning_effort=high",
    ]
    argv = add(yaml.safe_dump({"model": {"model_id": "a/b", "base_args": words}})).services["serve"].argv
    at = argv.index("--attention-config.use_fp4_indexer_cache")
    assert argv[at : at + 4] == ("--attention-config.use_fp4_indexer_cache", "true", "--moe-backend", "b12x")
    at = argv.index("--default-chat-template-kwargs.thinking")
    assert argv[at + 1] == "true" and argv[at + 3] == "high" and "--served-model-name" not in argv


def test_a_recipe_that_no_spark_holds_says_so(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {"model": {"model_id": "a/b"}, "variants": {"default": {"vram_minimum_gb": 640}}}
    Path("r.yaml").write_text(yaml.safe_dump(document))
    assert main(["recipe", "add", "r.yaml", "-n"]) == 0
    assert "596 GiB of memory: a GB10 has 121.7 GiB, so it takes 5 or more" in capsys.readouterr().err


def test_the_user_s_own_compose_file_is_no_obstacle(project: Path) -> None:
    file = project / "envgen.yaml"
    file.write_text(file.read_text().replace("  prod:\n", "  prod:\n    compose: over.yaml\n", 1))
    (project / "over.yaml").write_text("services: {serve: {labels: {a: b}}}\n")
    assert add(spark()).compose is not None


@pytest.mark.parametrize(
    ("arch", "env", "given"), [("12.1a", "{}", "0"), ("9.0a", "{}", None), ("12.1a", "{NCCL_NVLS_ENABLE: 1}", None)]
)
def test_ranks_on_sparks_have_no_nvlink(tmp_path: Path, arch: str, env: str, given: str | None) -> None:
    file = tmp_path / "envgen.yaml"
    file.write_text(
        f"version: 1\nname: x\nprofiles:\n  p:\n    mode: production\n    base: {{image: debian:12}}\n"
        f"    cuda: {{arch_list: {arch}}}\n    services:\n      serve: {{command: [vllm, serve, a/b], env: {env},"
        " args: {tensor-parallel-size: 2}, cluster: {nodes: [a, b]}}\n"
    )
    text = compose_files(load_project(file=file).project.profiles["p"])["compose/p.serve.worker.yaml"]
    variables = yaml.safe_load(text)["services"]["serve"]["environment"]
    assert variables.get("NCCL_NVLS_ENABLE") == given
    assert variables.get("VLLM_ALLREDUCE_USE_FLASHINFER") == (None if arch == "9.0a" else "0")
