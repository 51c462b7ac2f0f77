"""Headlines and criteria of a list; secrets that never reach a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envgen.results import store
from envgen.results.clean import HIDDEN, without_secrets
from envgen.results.figures import Cell, requests
from envgen.results.model import Sample, frozen, plain
from envgen.results.text import criteria, headline

CRITERIA = [
    {"part": "smoke", "name": "short prompt", "wanted": "an answer", "seen": "12 tokens", "verdict": "passed"},
    {"part": "smoke", "name": "no NaN", "wanted": "finite", "seen": "nan", "verdict": "failed", "note": "see log"},
    {"part": "stress", "name": "memory", "wanted": "< 5 GB", "seen": "?", "verdict": "not checked"},
]


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        ({}, ""),
        ({"criteria": CRITERIA}, "1 of 3 passed; failed: no NaN"),
        ({"criteria": CRITERIA[:1]}, "1 of 1 passed"),
        ({"criteria": "none"}, "criteria none"),
        ({"pp512 tg32 decode_tps": 31.6, "other": 2}, "pp512 tg32 decode 31.6 t/s, other 2"),
        ({"requests": 3, "error": "gone\x1b"}, "requests 3, error gone\\x1b"),
        (
            {
                "tool": "envgen",
                "cells": [
                    {
                        "prompt_tokens": 512,
                        "output_tokens": 32,
                        "concurrency": 8,
                        "decode_tps": {"mean": 31.584, "n": 5},
                    },
                    {"prompt_tokens": 2048, "prefill_tps": 4000},
                    "odd",
                ],
            },
            "pp512 tg32 c8 decode 31.58 t/s, pp2048 prefill 4000.00 t/s, tool envgen",
        ),
    ],
)
def test_a_headline_tells_the_most_telling_first(summary: dict[str, Any], said: str) -> None:
    assert headline(frozen(summary)) == said


def test_criteria_are_rows_of_texts() -> None:
    rows = criteria(frozen({"criteria": [*CRITERIA, 5, {}]}))
    assert [row["verdict"] for row in rows] == ["passed", "failed", "not checked", ""]
    assert rows[1]["note"] == "see log" and rows[0]["note"] == ""


def test_each_gap_between_tokens_counts() -> None:
    cell = {"unit": "request", "prompt_tokens": 8, "output_tokens": 4}
    samples = [
        Sample(0.0, frozen({**cell, "itl_ms": 20.0, "gaps_ms": [10.0, 10.0, 40.0]})),
        Sample(0.0, frozen({**cell, "itl_ms": 7.0})),
    ]
    assert requests(samples, "itl_ms") == {Cell(4, 8, 0, 1): (10.0, 10.0, 40.0, 7.0)}


SECRET = "hf_" + "Ab1" * 8


@pytest.mark.parametrize(
    "environment",
    [
        {"env": {"HF_TOKEN": "anything at all"}},
        {"env": {"HARMLESS": SECRET}},
        {"flags": ["--api-key", "anything at all"]},
        {"flags": [f"--api-key={SECRET}"]},
        {"url": "http://me:anything at all@host/".replace(" ", "-")},
        {"deep": [{"password": "anything at all"}]},
    ],
)
def test_secrets_never_reach_a_record(tmp_path: Path, environment: dict[str, Any]) -> None:
    with store.start(tmp_path, "bench", environment, environment) as run:
        run.end("passed", {})
    text = run.path.read_text(encoding="utf-8")
    assert "anything" not in text and SECRET not in text
    assert "redacted" in text


def test_what_is_no_secret_stays_as_it_is() -> None:
    environment = {
        "env": {"VLLM_USE_V1": "1", "MAX_TOKENS": "512", "HF_HOME": "/home/someone/.cache", "HF_TOKEN": ""},
        "flags": ["serve", "model", "--max-model-len", "512", "--attention-config", '{"backend": "FLASHINFER"}'],
        "image": {"id": "sha256:" + "ab" * 32},
        "sources": {"vllm": "ac9f9330e"},
        "count": 3,
        "none": None,
    }
    assert plain(without_secrets(environment)) == environment
    assert without_secrets({"tokens": ["--token", "x y z"]}) == {"tokens": ["--token", HIDDEN]}
