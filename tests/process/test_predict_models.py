"""Models that owners of a Spark run, asked of both releases: what a release would start, it does not refuse."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from model_shapes import MODELS, request
from releases import PROFILES, TOP, Answers, Ask

from envgen.predict.judge import Judgement, Verdict, backends, judge, rejected
from envgen.profile.model import Service

UNKNOWN_TYPE = r"model type `\w+` but Transformers does not recognize"
# What a release can't serve, as it says itself. All else is refused by neither.
REFUSED = {
    ("0.14.0", "qwen3.6-35b-a3b-nvfp4"): UNKNOWN_TYPE,
    ("0.14.0", "qwen3.6-27b-fp8"): UNKNOWN_TYPE,
    ("0.14.0", "nemotron-3-super-120b-nvfp4"): "invalid reasoning-parser: nemotron_v3",
    ("0.14.0", "nemotron-3-nano-30b-fp8"): "invalid reasoning-parser: nemotron_v3",
    ("0.14.0", "glm-4.7-flash"): UNKNOWN_TYPE,
    ("0.14.0", "qwen3-30b-a3b-mxfp8"): "ModelOpt currently only supports",
    ("0.14.0", "gemma-4-26b-a4b-nvfp4"): "invalid tool-call-parser: gemma4",
    ("0.14.0", "deepseek-v4-flash"): "invalid tool-call-parser: deepseek_v4",
}
NEWEST = PROFILES["prod"]
RELEASES = ("0.14.0", NEWEST)
Answered = Callable[[str], Answers]


@pytest.fixture(scope="session")
def answers(ask_models: Ask, tmp_path_factory: pytest.TempPathFactory) -> Answered:
    """What a release answers about each model."""

    @functools.cache
    def ask(version: str) -> Answers:
        folder = tmp_path_factory.mktemp("models")
        return ask_models(version, {name: request(name, folder) for name in MODELS})

    return ask


def judged(answer: dict[str, Any]) -> Judgement:
    return judge(answer, Service(("vllm", "serve", "x")))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("version", RELEASES)
def test_none_is_refused_that_the_release_would_start(answers: Answered, version: str, name: str) -> None:
    answer = answers(version)[name]
    shown = json.dumps({key: answer[key] for key in ("refusals", "unasked", "asked", "notes")}, indent=1)
    found = judged(answer)
    expected = REFUSED.get((version, name))
    if expected:
        assert found.verdict is Verdict.REFUSED and re.search(expected, found.refusals[0].message), shown
        return
    assert found.verdict in (Verdict.FITS, Verdict.UNKNOWN), shown
    # Whatever else could not be asked, the configuration was.
    assert answer["config_line"], shown


def test_a_parser_that_is_left_out_for_lack_of_a_tokenizer_is_a_caveat(answers: Answered) -> None:
    caveats = judged(answers(NEWEST)["qwen3-30b-a3b-fp8"]).caveats
    assert "the reasoning parser qwen3 was left out of the question: the tokenizer is not in the cache" in caveats


# Quantization of the experts -> what the newest logs, for `ready.expect`.
MOE = {
    "qwen3.6-35b-a3b-nvfp4": "Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend",
    "nemotron-3-super-120b-nvfp4": "Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend",
    "qwen3-30b-a3b-fp8": "Using TRITON Fp8 MoE backend",
    "nemotron-3-nano-30b-fp8": "Using FLASHINFER_CUTLASS Fp8 MoE backend",
    "qwen3-30b-a3b-int4": "Using 'MARLIN' WNA16 MoE backend",
    "qwen3-30b-a3b-awq": "Using 'MARLIN' WNA16 MoE backend",
    "qwen3-30b-a3b-nvfp4a16": "Using 'MARLIN' NvFp4 MoE backend",
    "qwen3-30b-a3b-mxfp8": "Using 'MARLIN' MxFp8 MoE backend",
    "glm-4.5-air-fp8": "Using TRITON Fp8 MoE backend",
    "glm-4.7-flash": "Using FlashInfer CUTLASS Unquantized MoE backend",
}


SILENT = ("qwen3-30b-a3b-mxfp8",)  # this oracle gives no reasons for what it did not choose


@pytest.mark.parametrize("name", MOE)
def test_experts_of_each_quantization_are_asked_with_the_release_s_own_words(answers: Answered, name: str) -> None:
    answer = answers(NEWEST)[name]
    found = judged(answer)
    assert found.verdict is Verdict.FITS and found.patterns["moe"] == MOE[name]
    tried = {one["backend"]: one["reason"] for one in rejected(answer)}
    assert any("TRTLLM" in one for one in tried) == (name not in SILENT) and all(tried.values())


def cell(answer: dict[str, Any]) -> str:
    """A release's answer in the table of docs/predict.md."""
    found = judged(answer)
    if found.refusals:
        message = found.refusals[0].message
        unknown = re.search(r"model type (`\w+`)", message)
        return (
            f"refused: its Transformers has no {unknown[1]}"
            if unknown
            else f"refused: {message.split(' (')[0].split('. ')[0]}"
        )
    chosen = ", ".join(f"{'MoE ' if step == 'moe' else ''}{name}" for step, name in backends(answer).items())
    unasked = " and ".join(str(one["step"]) for one in answer["unasked"])
    return "; ".join(filter(None, (chosen, f"{unasked} unknown" if unasked else "")))


def test_the_table_in_the_docs_is_what_the_releases_answer(answers: Answered) -> None:
    rows = []
    for name, parsers in MODELS.items():
        both = " | ".join(cell(answers(version)[name]) for version in RELEASES)
        rows.append(f"| {name} | {', '.join(filter(None, parsers))} | {both} |")
    text = (TOP / "docs" / "predict.md").read_text(encoding="utf-8")
    section = text.partition("## Answers for seventeen models")[2].partition("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("| ")][2:] == rows, "\n".join(rows)
