"""Releases that envgen has not seen: one whose functions have moved, and the newest of the package index.

A release that can't be asked must say what was not found, and nothing else may be lost with it.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from model_shapes import judged, request, shown
from releases import CACHE, RELEASES, Answers, Ask, Warm, environment, with_path

from envgen.app.predict import PROGRAM
from envgen.inside import run
from envgen.patches.wheel import released
from envgen.predict.judge import Verdict, backends
from envgen.recipes.shipped import models

pytestmark = pytest.mark.nightly
PINNED = max(RELEASES, key=lambda one: [int(part) for part in re.findall(r"\d+", one)])
KNOWN = "0.32.0"  # a release that answers everything, whatever is pinned
GPT_OSS = {
    "words": ["openai/gpt-oss-120b"], "real": False, "models": dict(models()),
    "gpu": {"name": "NVIDIA GB10", "capability": [12, 1], "memory": 120 << 30},
}  # fmt: skip
Edit = Callable[[Mapping[str, str], Mapping[str, str]], dict[str, Any]]


@pytest.fixture
def changed(warm: Warm, nowhere: dict[str, str], tmp_path: Path) -> Edit:
    """Asks the pinned release after modules were moved (place -> place) and words replaced in all of its files."""

    def ask(moves: Mapping[str, str], words: Mapping[str, str]) -> dict[str, Any]:
        source = next((CACHE / PINNED).glob("lib/*/site-packages/vllm"))
        tree = tmp_path / "tree" / "vllm"
        shutil.copytree(source, tree, copy_function=os.symlink)  # the compiled files, too: they fit what is unchanged
        for before, after in moves.items():
            target = tree.parent / f"{after.replace('.', '/')}.py"
            target.parent.mkdir(exist_ok=True)
            (tree.parent / f"{before.replace('.', '/')}.py").rename(target)
        pattern = re.compile("|".join(rf"\b{re.escape(one)}\b" for one in (*moves, *words)))
        for path in tree.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if (edited := pattern.sub(lambda one: {**moves, **words}[one[0]], text)) != text:
                path.unlink()
                path.write_text(edited, encoding="utf-8")
        python = with_path(warm(environment(PINNED)), tree.parent, tmp_path)
        env = {**nowhere, "VLLM_HAS_FLASHINFER_CUBIN": "1"}
        answer = run.ask(run.on_host(env), str(python), PROGRAM, GPT_OSS, timeout=300)
        assert isinstance(answer, dict), answer
        assert str(tree) in answer["vllm"]["file"]
        return answer

    environment(PINNED)
    return ask


def test_functions_that_have_moved_are_found_where_they_are_used(changed: Edit) -> None:
    moves = {
        "vllm.v1.attention.selector": "vllm.v1.attention.choice",
        "vllm.utils.argparse_utils": "vllm.utils.flexible",
        "vllm.model_executor.layers.fused_moe.routed_experts": "vllm.model_executor.layers.fused_moe.routes",
    }
    answer = changed(moves, {})
    assert answer["asked"]["attention"]["where"] == "vllm.v1.attention.choice.get_attn_backend"
    assert backends(answer) == {"attention": "FLASHINFER", "moe": "MARLIN"} and not answer["unasked"], shown(answer)


def test_a_release_is_asked_where_another_one_is_installed(warm: Warm, nowhere: dict[str, str], tmp_path: Path) -> None:
    """As `envgen upgrade` asks it before its image is built: by the Python of its wheel."""
    (tmp_path / "torchcodec.py").write_text("raise ImportError('PyTorch for CPUs is no basis of it')")
    code = base64.b64encode(released("vllm", KNOWN, (), None).code()).decode()
    env, python = (
        {**nowhere, "VLLM_HAS_FLASHINFER_CUBIN": "1"},
        str(with_path(warm(environment(PINNED)), tmp_path, tmp_path)),
    )
    ask = {**GPT_OSS, "code": [code]}
    answer = run.ask(run.on_host(env), python, PROGRAM, ask, timeout=300)
    assert isinstance(answer, dict), answer
    assert answer["vllm"]["version"] == KNOWN != PINNED
    assert backends(answer) == {"attention": "FLASHINFER", "moe": "MARLIN"} and not answer["unasked"], shown(answer)
    gone = {**ask, "words": ["--use-a-flag-of-tomorrow", "1"]}
    refused = run.ask(run.on_host(env), python, PROGRAM, gone, timeout=300)
    assert isinstance(refused, dict) and "unrecognized arguments" in refused["refusals"][0]["message"]


def test_what_is_not_found_is_named_and_the_rest_is_answered(changed: Edit) -> None:
    answer = changed({}, {"get_attn_backend": "pick_attention"})
    assert backends(answer) == {"moe": "MARLIN"} and answer["config_line"], shown(answer)
    why = {one["step"]: one["why"] for one in answer["unasked"]}
    assert "this release has no get_attn_backend" in why.pop("attention")
    assert not why


# The canary: the newest vLLM of the package index at this moment, asked about six models.

SIX = (
    "gpt-oss-120b", "qwen3.6-35b-a3b-nvfp4", "qwen3-30b-a3b-fp8", "nemotron-3-super-120b-nvfp4",
    "gemma-4-26b-a4b-nvfp4", "llama-3.3-70b-fp8",
)  # fmt: skip


def newest() -> str:
    asked = ["uv", "pip", "compile", "-", "--no-deps", "--no-header", "--no-annotate", "-q", "--python-version", "3.11"]
    done = subprocess.run(asked, input="vllm\n", text=True, check=True, stdout=subprocess.PIPE)
    return done.stdout.strip().partition("==")[2]


def red(ask: Ask, version: str, folder: Path, names: tuple[str, ...] = SIX) -> dict[str, str]:
    """Model -> why this release does not say that it would start, and with which kernels."""
    folder.mkdir()
    try:
        answers: Answers = ask(version, {name: request(name, folder) for name in names})
    except subprocess.CalledProcessError as problem:
        return dict.fromkeys(names, f"scripts/predict-env can't make its environment (exit code {problem.returncode})")
    except AssertionError as problem:
        return dict.fromkeys(names, f"no answer: {str(problem).strip().splitlines()[-1]}")
    found = {}
    for name, answer in answers.items():
        verdict = judged(answer).verdict
        if verdict is not Verdict.FITS or "attention" not in backends(answer):
            open_or_refused = [*answer["refusals"], *answer["unasked"]]
            words = "; ".join(f"{one['step']}: {one.get('message') or one.get('why')}" for one in open_or_refused)
            found[name] = f"{verdict.value}: {words[:600]}"
    return found


def test_the_newest_release_answers(ask_models: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Red for the newest release alone is printed, for it is news and no fault of a change here (scripts/test repeats
    these lines at its end). It fails where the releases that have answered before don't answer, either."""
    version = newest()
    if version == PINNED:
        return  # none is newer, and test_predict_models.py asks this one about these models and more
    silent = red(ask_models, version, tmp_path / "newest")
    if not silent:
        return
    with capsys.disabled():
        for name, why in silent.items():
            print(f"\nCANARY: vLLM {version}, the newest, about {name}: {why}")
    before = {one: red(ask_models, one, tmp_path / one, tuple(silent)) for one in dict.fromkeys((KNOWN, PINNED))}
    everywhere = [name for name in silent if all(name in names for names in before.values())]
    assert not everywhere, before
