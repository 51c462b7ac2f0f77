"""Each shipped recipe, as the profile that `recipe add` makes of it, asked of vLLM 0.32.0 on a GB10's 12.1.

The hub is not asked: a model's configuration is its shape with a few layers (tests/support/shapes).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import pytest
from test_predict import TOP, environment
from test_predict_models import CODE, GPT_OSS, SHAPES

from envgen.app import recipes as app
from envgen.app.predict import servers, vllm_words
from envgen.app.session import Session
from envgen.predict.judge import Judgement, Verdict, backends, judge
from envgen.predict.memory import estimate
from envgen.profile.load import load_project
from envgen.profile.model import Service

RELEASE = "0.32.0"
NODES = """nodes:
    spark-1: {address: 192.0.2.1, interface: eth0}
    spark-2: {address: 192.0.2.2, interface: eth0, context: spark-2}"""
SHAPE = {
    "gemma-4-26b": "gemma-4-26b-a4b-nvfp4",
    "minimax-m2.7": "minimax-m2.7-nvfp4",
    "nemotron-3-super-120b": "nemotron-3-super-120b-nvfp4",
    "nemotron-3.5-lightning-30b": "nemotron-3-nano-30b-fp8",
    "qwen3.6-27b-fp8": "qwen3.6-27b-fp8",
    "qwen3.6-35b-a3b": "qwen3.6-35b-a3b-nvfp4",
}


def shape(name: str) -> dict[str, Any]:
    """The configuration of a recipe's model, with a few layers."""
    found: dict[str, Any] = json.loads((SHAPES / f"{SHAPE[name]}.json").read_text(encoding="utf-8"))
    if name == "nemotron-3.5-lightning-30b":  # its own config.json is not known here: Nemotron 3 Nano's layers
        other = json.loads((SHAPES / "nemotron-3-super-120b-nvfp4.json").read_text(encoding="utf-8"))
        found["quantization_config"] = other["quantization_config"]
    return found


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Service]:
    """The server of each recipe's profile, in a project with two machines."""
    folder = tmp_path_factory.mktemp("recipes")
    text = (TOP / "envgen.yaml").read_text(encoding="utf-8")
    (folder / "envgen.yaml").write_text(text.replace("defaults:\n", f"defaults:\n  {NODES}\n", 1), encoding="utf-8")
    shutil.copytree(TOP / "patches", folder / "patches")
    found = {}
    for name, recipe in app.shipped().items():
        made = app.add(Session(file=folder / "envgen.yaml"), recipe, "")
        made.write()
        profile = load_project(file=folder / "envgen.yaml", local=False).project.profiles[made.profile]
        found[name] = profile.services[servers(profile)[0]]
    return found


@pytest.fixture(scope="session")
def answers(services: dict[str, Service], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the release answers about each recipe."""
    folder = tmp_path_factory.mktemp("models")
    requests: dict[str, dict[str, Any]] = {}
    for name, service in services.items():
        words = list(vllm_words(service) or ())
        if words[0] not in GPT_OSS:
            model = folder / name
            model.mkdir()
            (model / "config.json").write_text(json.dumps(shape(name)), encoding="utf-8")
            (model / "configuration_minimax_m2.py").write_text(CODE, encoding="utf-8")
            words[0] = str(model)
        gpu = {"name": "NVIDIA GB10", "capability": [12, 1], "memory": 120 << 30}
        requests[name] = {"words": words, "gpu": gpu, "real": False, "models": GPT_OSS, "env": dict(service.env)}
    env = {**os.environ, "HOME": str(folder), "HF_HOME": str(folder), "VLLM_HAS_FLASHINFER_CUBIN": "1"}
    done = subprocess.run(
        [environment(RELEASE), TOP / "tests" / "support" / "ask_models.py"], input=json.dumps(requests), env=env,
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    found: dict[str, dict[str, Any]] = dict(
        json.loads(line[2:]) for line in done.stdout.splitlines() if line.startswith("@@")
    )
    assert set(found) == set(requests), done.stderr[-3000:]
    return found


def judged(answer: dict[str, Any]) -> Judgement:
    """Without the words of ``ready``: a recipe has none."""
    return judge(answer, Service(("vllm", "serve", "x")))


def cell(answer: dict[str, Any]) -> str:
    """An answer in the table of docs/models.md."""
    found = judged(answer)
    if found.refusals:
        return f"refused: {found.refusals[0].message.splitlines()[0]}"
    chosen = ", ".join(f"{'MoE ' if step == 'moe' else ''}{name}" for step, name in backends(answer).items())
    unasked = " and ".join(str(one["step"]) for one in answer["unasked"])
    return "; ".join(filter(None, (chosen, f"{unasked} unknown" if unasked else "")))


@pytest.mark.parametrize("name", sorted(app.shipped()))
def test_no_shipped_recipe_is_refused(answers: dict[str, dict[str, Any]], name: str) -> None:
    answer = answers[name]
    shown = json.dumps({key: answer[key] for key in ("refusals", "unasked", "asked", "notes")}, indent=1)
    assert judged(answer).verdict in (Verdict.FITS, Verdict.UNKNOWN), shown
    assert answer["config_line"] and backends(answer), shown


def test_the_table_in_the_docs_is_what_the_release_answers(answers: dict[str, dict[str, Any]]) -> None:
    rows = [f"| `{name}` | {cell(answer)} |" for name, answer in answers.items()]
    text = (TOP / "docs" / "models.md").read_text(encoding="utf-8")
    section = text.partition("## Kernels")[2].partition("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("| ")][2:] == rows, "\n".join(rows)


def test_the_release_tells_what_memory_hangs_on(answers: dict[str, dict[str, Any]]) -> None:
    for name, answer in answers.items():
        found = estimate(answer.get("size"), 120 << 30)
        assert found is not None and found.context > 0 and found.sequence, (name, answer.get("size"))
    found = estimate(answers["gpt-oss-120b"]["size"], 120 << 30)
    # 18 of 36 layers see everything, 8 heads of 64, two bytes; the others keep 127 tokens and one step of 8192.
    assert found is not None and found.sequence == 18 * 2 * 8 * 64 * 2 * (131072 + 127 + 8192)
