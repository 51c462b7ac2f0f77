"""Recipes: the shipped ones as profiles that load and render, three formats, and bad input."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import models_page
import pytest
import yaml

from envgen.__main__ import main
from envgen.errors import ProjectError
from envgen.profile.load import load_project, profile_name_of
from envgen.recipes.read import read_recipe
from envgen.recipes.shipped import shipped
from envgen.render import outputs

TOP = Path(__file__).parents[3]
NODES = """nodes:
    spark-1: {address: 192.0.2.1, interface: eth0}
    spark-2: {address: 192.0.2.2, interface: eth0, context: spark-2}"""

VLLM = """\
meta: {hardware: {dgx_spark_gb10: verified}}
model:
  model_id: org/Model
  min_vllm_version: "0.20.0"
  base_args: [--trust-remote-code]
features:
  tool_calling:
    args: [--enable-auto-tool-choice, --tool-call-parser, qwen3_xml]
  spec_decoding: {args: [--speculative-config, '{"method": "mtp", "num_speculative_tokens": 3}']}
opt_in_features: [spec_decoding]
variants:
  default: {precision: bf16, vram_minimum_gb: 84}
  nvfp4:
    model_id: org/Model-NVFP4
    vram_minimum_gb: 21
    docker_image: {nvidia: {cu130: "vllm/vllm-openai:v0.28.0"}, amd: other}
    extra_args: [--kv-cache-dtype, fp8, "--max-num-seqs 8"]
    hardware_overrides:
      dgx_spark_gb10:
        extra_args: [--gpu-memory-utilization, "0.50", --max-num-seqs, "4"]
        extra_env: {VLLM_X: "1"}
news: later
dependencies: []
"""
EUGR = """\
recipe_version: "1"
name: My Model
model: org/My-Model
container: vllm-node
cluster_only: true
mods: [mods/fix-it]
defaults: {port: 8000, host: 0.0.0.0, tensor_parallel: 2, gpu_memory_utilization: 0.85}
env: {OMP_NUM_THREADS: "8"}
command: |
  vllm serve org/My-Model \\
      --port {port} --host {host} \\
      -tp {tensor_parallel} --distributed-executor-backend ray \\
      --gpu-memory-utilization {gpu_memory_utilization} \\
      --compilation-config '{{"cudagraph_mode": "none"}}'
"""
SPARKRUN = """\
recipe_version: "2"
model: Qwen/Qwen3-1.7B
model_revision: abc
runtime: vllm-distributed
min_nodes: 1
container: example.org/vllm:latest
defaults: {port: 8000, tensor_parallel: 1, max_model_len: 4096}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped project, with two machines."""
    text = (TOP / "envgen.yaml").read_text(encoding="utf-8")
    text = text.replace("defaults:\n", f"defaults:\n  {NODES}\n", 1)
    (tmp_path / "envgen.yaml").write_text(text, encoding="utf-8")
    shutil.copytree(TOP / "patches", tmp_path / "patches")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", sorted(shipped()))
def test_each_shipped_recipe_is_a_profile_that_loads_and_renders(
    name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = shipped()[name]
    assert main(["recipe", "add", name, "--yes"]) == 0
    assert capsys.readouterr().err.startswith("wrote envgen.yaml;")  # every setting is placed
    loaded = load_project(file=project / "envgen.yaml", local=False).project
    profile = loaded.profiles[profile_name_of(name)]
    service = profile.services["serve"]
    assert service.command == ("vllm", "serve", recipe.repo)
    assert service.model is not None and service.model.repo == recipe.repo
    assert service.ready is not None and service.ready.model == recipe.repo
    assert not service.ready.expect  # the parent's are log lines of another model
    assert set(service.args) >= set(recipe.args)
    others = {"host", "port", "tensor-parallel-size"}
    assert {flag for flag, value in service.args.items() if value is not None} <= {*recipe.args, *others}
    assert (service.cluster.nodes if service.cluster else ()) == (("spark-1", "spark-2") if recipe.nodes == 2 else ())
    assert recipe.source and recipe.date
    outputs.render_project(loaded)
    # A command takes it by the name of the recipe, too.
    assert main(["config", "--json", "-p", name]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main(["recipe", "add", name, "--yes"]) == 6
    assert "choose another name: --name NAME" in capsys.readouterr().err


def test_a_question_without_an_answer_names_the_option(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-D at the question: the end of the input, not an interruption."""

    def ended(_prompt: str) -> str:
        raise EOFError

    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.termui.visible_prompt_func", ended)
    before = (project / "envgen.yaml").read_text()
    assert main(["recipe", "add", sorted(shipped())[0]]) == 6
    printed = capsys.readouterr().err
    assert "no answer: the input ended\n" in printed and "--yes" in printed and "interrupted" not in printed
    assert (project / "envgen.yaml").read_text() == before


@pytest.mark.parametrize("value", ["²", "9" * 5000, "064" + "0" * 5000, "x", "-1", ""])
def test_a_number_of_machines_in_any_spelling_is_no_traceback(value: str) -> None:
    for text in (
        SPARKRUN.replace("min_nodes: 1", f'min_nodes: "{value}"'),
        SPARKRUN.replace("tensor_parallel: 1", f'tensor_parallel: "{value}"'),
        f'repo: org/M\nnodes: "{value}"\n',
    ):
        with contextlib.suppress(ProjectError):
            assert read_recipe(text, "other.yaml").nodes >= 1


def test_only_lines_are_added_and_nothing_without_a_yes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (project / "envgen.yaml").read_text()
    assert main(["recipe", "add", "gpt-oss-20b"]) == 6
    assert main(["recipe", "add", "gpt-oss-20b", "--dry-run"]) == 0
    assert main(["recipe", "add", "gpt-oss-20b", "--json"]) == 0
    assert (project / "envgen.yaml").read_text() == before
    shown = capsys.readouterr().out
    assert not [line for line in shown.splitlines() if line.startswith("-") and not line.startswith("---")]
    (project / "envgen.yaml").write_text(before + "# the end\n")
    assert main(["recipe", "add", "gpt-oss-20b", "--yes", "--name", "small"]) == 0
    after = (project / "envgen.yaml").read_text()
    assert after.startswith(before + "# the end\n\n  # Recipe gpt-oss-20b")
    (project / "envgen.yaml").write_text(before + "x-last: 1\n")
    assert main(["recipe", "add", "gpt-oss-20b", "--yes", "--name", "small"]) == 6
    assert "does not end with `profiles`" in capsys.readouterr().err


def test_a_project_file_that_is_a_link_to_elsewhere_is_not_written(
    project: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path_factory.mktemp("elsewhere") / "theirs.yaml"
    before = (project / "envgen.yaml").rename(other).read_text()
    (project / "envgen.yaml").symlink_to(other)
    assert main(["recipe", "add", "gpt-oss-20b", "--yes", "--name", "small"]) == 6
    assert other.read_text() == before and "a link leads it out of" in capsys.readouterr().err


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_the_line_ends_of_the_file_stay(project: Path, end: str, last: bool) -> None:
    file = project / "envgen.yaml"
    text = file.read_text().removesuffix("\n") + "\n" * last
    file.write_bytes(text.replace("\n", end).encode())
    assert main(["recipe", "add", "gpt-oss-20b", "--yes", "--name", "small"]) == 0
    after = file.read_bytes()
    assert after.startswith(text.replace("\n", end).encode()) and b"small" in after
    assert after.count(b"\r\n") == (after.count(b"\n") if end == "\r\n" else 0)


def test_vllm_projects_format() -> None:
    found = read_recipe(VLLM, "models/org/Model.yaml")
    assert (found.name, found.repo, found.release) == ("model-nvfp4", "org/Model-NVFP4", "0.20.0")
    assert found.args == {
        "trust-remote-code": "true", "enable-auto-tool-choice": "true", "tool-call-parser": "qwen3_xml",
        "kv-cache-dtype": "fp8", "max-num-seqs": "4", "gpu-memory-utilization": "0.50",
    }  # fmt: skip
    assert found.env == {"VLLM_X": "1"} and found.image == "vllm/vllm-openai:v0.28.0" and found.weights == "20 GiB"
    assert found.left == (
        "news: a key that envgen does not know in this format",
        "variants: default; --model-variant takes one of them",
        "feature spec_decoding: optional; its flags: "
        '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 3}\'',
    )
    assert read_recipe(VLLM, "Model.yaml", variant="default").repo == "org/Model"
    nightly = read_recipe(VLLM.replace('"0.20.0"', "nightly"), "Model.yaml")
    assert nightly.release == "" and "a nightly build of vLLM" in nightly.left
    with pytest.raises(ProjectError, match="it has default, nvfp4"):
        read_recipe(VLLM, "Model.yaml", variant="fp8")


def test_vllm_projects_overrides_for_blackwell_modes_and_placeholders() -> None:
    """As its own page of commands reads them: a GB10 is of the generation blackwell."""
    text = (
        VLLM.replace(
            "news: later", "hardware_overrides: {blackwell: {extra_args: [--a_b.c_d, '1', --max-num-seqs, '9']}}"
        )
        .replace(
            'spec_decoding: {args: [--speculative-config, \'{"method": "mtp", "num_speculative_tokens": 3}\']}',
            "spec_decoding: {modes: {mtp: {args: [--draft, mtp]}, own: {args: [--draft, x], hardware_overrides:"
            " {dgx_spark_gb10: {args: [--draft, own]}}}}}",
        )
        .replace("    vram_minimum_gb: 21\n", "    vram_minimum_gb: 21\n    default_modes: {spec_decoding: own}\n")
        .replace('{VLLM_X: "1"}', '{VLLM_X: "1", NCCL_SOCKET_IFNAME: "$IFACE"}')
        .replace("dependencies: []", "dependencies: [{command: pip install x}]")
    )
    found = read_recipe(text, "Model.yaml")
    assert found.args["a-b.c_d"] == "1" and found.args["max-num-seqs"] == "4" and found.args["draft"] == "own"
    assert found.env == {"VLLM_X": "1"}
    assert found.left == (
        "dependencies: pip install x",
        "variants: default; --model-variant takes one of them",
        "NCCL_SOCKET_IFNAME=$IFACE: its value depends on your machine",
    )
    assert "feature spec_decoding: optional" in read_recipe(text, "Model.yaml", variant="default").left
    with pytest.raises(ProjectError, match="vLLM-Omni"):
        read_recipe(text.replace("meta: {", "meta: {tasks: [omni], "), "Model.yaml")


def test_a_parent_without_a_place_for_weights(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile without a cache for a model gets one; a problem's place is envgen.yaml, not a scratch file."""
    file = project / "envgen.yaml"
    file.write_text(
        "version: 1\nname: x\nprofiles:\n  own:\n    mode: production\n    base: {image: example/vllm}\n"
        "    cuda: {arch_list: 12.1a}\n    services:\n      serve:\n        command: [vllm, serve, x]\n"
        "        args: {port: 8000}\n        ports: ['127.0.0.1:8000:8000']\n        ready: {model: x, port: 8000}\n"
    )
    assert main(["recipe", "add", "qwen3.6-35b-a3b", "--extends", "own", "--yes"]) == 0
    assert load_project(file=file).project.profiles["qwen3_6_35b_a3b"].caches["huggingface"].host is not None
    Path("flag.yaml").write_text("repo: a/b\nargs: {tp: 2}\n")
    capsys.readouterr()
    assert main(["recipe", "add", "flag.yaml", "--extends", "own", "--yes"]) == 2
    printed = capsys.readouterr().err
    assert "write tensor-parallel-size" in printed
    assert printed.startswith("envgen.yaml:") and "/tmp/" not in printed and "problems" not in printed


def test_eugrs_format() -> None:
    found = read_recipe(EUGR, "my.yaml")
    assert (found.name, found.repo, found.nodes, found.image) == ("my-model", "org/My-Model", 2, "vllm-node")
    assert found.args == {
        "tensor-parallel-size": "2", "gpu-memory-utilization": "0.85", "compilation-config": {"cudagraph_mode": "none"},
    }  # fmt: skip
    assert found.env == {"OMP_NUM_THREADS": "8"}
    assert found.left[0] == "mods: mods/fix-it" and found.left[1].startswith("distributed-executor-backend: ")


def test_sparkruns_format() -> None:
    found = read_recipe(SPARKRUN, "qwen3.yaml")
    assert (found.name, found.repo, found.revision, found.nodes) == ("qwen3", "Qwen/Qwen3-1.7B", "abc", 1)
    assert found.args == {"tensor-parallel-size": "1", "max-model-len": "4096"}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("--port {port}", "--port {door}", r"the template \{door\} has no value"),
        ("vllm serve org/My-Model", "vllm serve org/Other", "two models: org/My-Model, and org/Other"),
        ("vllm serve org/My-Model", "vllm serve org/My-Model org/Two", "two models, or a word that belongs to no flag"),
        ("vllm serve org/My-Model", "pip install x && vllm serve org/My-Model", "shell script"),
        ("--port {port}", "--port $(id)", "shell script"),
        ("--port {port}", "--port `id`", "shell script"),
        ("--port {port}", '--api-key "$(cat ~/.ssh/id_rsa)"', "shell script"),
        ("--port {port} --host {host} \\\n", "--port {port}\n  rm -rf /\n", "shell script"),
        ('\'{{"cudagraph_mode"', "'{{cudagraph_mode", "not JSON"),
        ("--port {port}", "--max-num-seqs 1 --max-num-seqs 2", "--max-num-seqs is there twice"),
        ("OMP_NUM_THREADS", "'A B'", "not a variable"),
        ("model: org/My-Model", "model: ../../etc", "two models"),
        ("recipe_version", "runtime: sglang\nrecipe_version", "the runtime sglang is not vLLM's"),
        ("defaults: {", "defaults: {{", "expected|mapping|found"),
    ],
)
def test_bad_recipes_are_refused(old: str, new: str, reason: str) -> None:
    text = EUGR.replace(old, new)
    assert text != EUGR
    with pytest.raises(ProjectError, match=reason):
        read_recipe(text, "bad.yaml")


def test_other_bad_input(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, reason in (
        (VLLM.replace('"0.20.0"', "soon"), "'soon' is not a release of vLLM"),
        ("repo: a/b\nargs: {}\nshell: rm\n", "unknown key 'shell'"),
        ("a: &a [1]\nb: [*a]\n", "is not a recipe"),
        ("x: " + "y" * (300 << 10), "is larger than 256 KiB"),
    ):
        Path("bad.yaml").write_text(text)
        assert main(["recipe", "add", "bad.yaml", "--yes"]) == 2
        assert reason in capsys.readouterr().err
    Path("new.yaml").write_text(VLLM.replace('"0.20.0"', '"99.1"'))
    assert main(["recipe", "add", "new.yaml", "--dry-run"]) == 0
    printed = capsys.readouterr().err
    assert "not placed: vLLM 99.1 or newer: profile prod installs 0." in printed
    assert "not placed: image vllm/vllm-openai:v0.28.0" in printed
    Path("flag.yaml").write_text("repo: a/b\nargs: {Not A Flag: 1}\n")
    assert main(["recipe", "add", "flag.yaml", "--yes"]) == 2
    assert "'Not A Flag' is not a flag that envgen knows" in capsys.readouterr().err
    for words, reason, hint in (
        (["missing.yaml"], "missing.yaml is not a file", "envgen recipe list"),
        (["gpt-oss-20b", "--model-variant", "fp8"], "have no variants", "remove --model-variant"),
        (["new.yaml", "--model-variant", "fp8"], "new.yaml:11:1: no variant 'fp8'", "default, nvfp4"),
    ):
        assert main(["recipe", "add", *words]) == 2
        printed = capsys.readouterr().err
        assert reason in printed and hint in printed
    assert main(["recipe", "add", "qwen3.6-35b"]) == 2
    assert "qwen3.6-35b-a3b" in capsys.readouterr().err


def test_a_recipe_of_a_clone(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("theirs/deep").mkdir(parents=True)
    Path("theirs/deep/Mine.yaml").write_text(EUGR)
    assert main(["recipe", "add", "theirs/deep/Mine.yaml", "--yes"]) == 0
    assert "not placed: image vllm-node" in capsys.readouterr().err
    found = yaml.safe_load((project / "envgen.yaml").read_text())["profiles"]["my_model"]
    assert found["services"]["serve"]["cluster"] == {"nodes": ["spark-1", "spark-2"]}


def test_the_page_of_models_is_current() -> None:
    page = TOP / "docs" / "models.md"
    assert models_page.renew(page.read_text(encoding="utf-8")) == page.read_text(encoding="utf-8"), "scripts/regenerate"
