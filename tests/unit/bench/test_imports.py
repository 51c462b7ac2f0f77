"""Figures of others: reports of tools, history files, and lab notes whose every line is read or handed back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envgen.bench.compare import table
from envgen.bench.imports import Imported, parse
from envgen.bench.notes import moment, shipped
from envgen.errors import EnvgenError

DATA = Path(__file__).parent / "data"

# Each table and line here has a form of the lab notes that envgen began with.
NOTES = """\
# Results

## Final Results (2026-01-17)

| Context | Prefill (t/s) | Decode tg32 (t/s) | Decode tg128 (t/s) |
|---------|---------------|-------------------|--------------------|
| **Short (512)** | 1,854 | **60.02** | **60.07** |

| Metric | Baseline | Best | Config | Date |
|--------|----------|------|--------|------|
| tg32 (tok/s) | 29.1 | **60.02** | **64x128 tiles** | 2026-01-17 |

| Tile Shape | tg32 @ 16 tokens | tg32 @ 1 token |
|------------|------------------|----------------|
| 128x128 | 48.9 tok/s | 60.0 tok/s |

## Upstream Baseline

```yaml
date: 2026-01-09 16:25:01
git_sha_vllm: ac9f9330e
prompt_length: 2048
tool: llama-benchy 0.1.1
```

#### Prefill
```yaml
pp512_tps: 2209.10 ± 97.25   # TTFT: 332ms
tg32_tps: 31.58 ± 0.06
ttfr_ms: 457.13 ± 13.94
```

#### Variance
| Metric | Mean | Std Dev | CV% |
|--------|------|---------|-----|
| pp4096 | 4008 | ±23 | 0.6% |
| pp512 | 2209 | ±97 | 4.4% |
| tg64 | 31.62 | ±0.03 | 0.1% |

## Attention (2026-01-10)

| Config | tg32 (tok/s) | pp2048 (tok/s) | Output Quality |
|--------|--------------|----------------|----------------|
| Marlin + FlashInfer | 32.6 | 4341 | Coherent |
| Marlin without sinks | 32.6 | 4341 | ❌ Garbage |
| Eagle3 | ~24-25 | - | Coherent |

| Category | GPU Time % |
|----------|------------|
| Dense GEMV | 38.4% |

Decode is twice as slow (29 vs 58 tok/s).

## Undated

### llama.cpp (llama-bench, build f5acfb2ff)

```
model                      test              t/s
gpt-oss 120B MXFP4 MoE    pp2048            2449.83 ± 10.27
gpt-oss 120B MXFP4 MoE    tg32 @ d4096      54.81 ± 0.30
```

<summary>vLLM (llama-benchy)</summary>

```
model                 test               t/s           e2e_ttft (ms)
openai/gpt-oss-120b   pp2048 @ d4096     3172.51±16    821.97±4
openai/gpt-oss-120b   tg32 @ d4096       32.63±0.02
```

### SGLang

| Metric | Value |
|--------|-------|
| Output throughput | **52.37 tok/s** |
| TPOT | 18.83 ms |
"""


def notes(tmp_path: Path, date: str = "2026-01-08") -> Imported:
    path = tmp_path / "notes.md"
    path.write_text(NOTES, encoding="utf-8")
    return parse(path, moment(date) if date else None)


def figures(found: Imported, label: str) -> list[dict[str, Any]]:
    (run,) = [one for one in found.runs if label in one.label]
    dropped = ("unit", "spread", "concurrency")
    return [
        {k: v for k, v in one.items() if k not in dropped and (k, v) != ("context_tokens", 0)} for one in run.samples
    ]


def test_the_headline_has_the_prompt_of_its_row(tmp_path: Path) -> None:
    assert figures(notes(tmp_path), "Short (512)") == [
        {"output_tokens": 32, "prompt_tokens": 512, "decode_tps": 60.02},
        {"output_tokens": 128, "prompt_tokens": 512, "decode_tps": 60.07},
        {"prompt_tokens": 512, "prefill_tps": 1854.0},
    ]
    (best,) = [one for one in notes(tmp_path).runs if "64x128" in one.label]
    assert best.started and best.started.day == 17 and best.samples[0]["decode_tps"] == 60.02


def test_a_metric_table_does_not_give_its_last_prompt_to_a_reply(tmp_path: Path) -> None:
    found = notes(tmp_path)
    assert figures(found, "Variance") == [
        {"prompt_tokens": 4096, "prefill_tps": 4008.0},
        {"output_tokens": 64, "prompt_tokens": 2048, "decode_tps": 31.62},
    ]
    (run,) = [one for one in found.runs if one.label == "Upstream Baseline"]
    assert run.parameters == {"tool": "llama-benchy 0.1.1"} and run.environment["notes"]["git_sha_vllm"] == "ac9f9330e"
    assert run.samples[0]["ttft_ms"] == 332.0 and run.samples[0]["spread"] == {"prefill_tps": 97.25}
    assert run.samples[2]["ttfr_ms"] == 457.13


def test_aligned_text(tmp_path: Path) -> None:
    """llama-bench generates from an empty context, llama-benchy after the prompt."""
    found = notes(tmp_path)
    assert figures(found, "llama-bench,")[1] == {
        "context_tokens": 4096, "output_tokens": 32, "prompt_tokens": 0, "decode_tps": 54.81,
    }  # fmt: skip
    assert figures(found, "vLLM (llama-benchy)")[:2] == [
        {"context_tokens": 4096, "prompt_tokens": 2048, "prefill_tps": 3172.51, "ttft_ms": 821.97},
        {"context_tokens": 4096, "output_tokens": 32, "prompt_tokens": 2048, "decode_tps": 32.63},
    ]


def test_what_is_left_out_has_its_line_and_reason(tmp_path: Path) -> None:
    left = {one.line: one.why for one in notes(tmp_path).left_out}
    lines = NOTES.splitlines()
    why = {lines[number - 1]: reason for number, reason in left.items()}
    assert why["| tg32 (tok/s) | 29.1 | **60.02** | **64x128 tiles** | 2026-01-17 |"].startswith(
        "its column `Baseline`"
    )
    assert "no column names a test" in why["| 128x128 | 48.9 tok/s | 60.0 tok/s |"]
    assert why["| pp512 | 2209 | ±97 | 4.4% |"] == "repeats a figure above"
    assert why["| Marlin without sinks | 32.6 | 4341 | ❌ Garbage |"] == "marked as garbage"
    assert "not a number" in why["| Eagle3 | ~24-25 | - | Coherent |"]
    assert "no column names a test" in why["| Dense GEMV | 38.4% |"]
    assert why["Decode is twice as slow (29 vs 58 tok/s)."] == "a sentence"
    assert len(left) == 7


def test_undated_figures_are_left_out_one_by_one(tmp_path: Path) -> None:
    found = notes(tmp_path, date="")
    undated = [one for one in found.left_out if "no date" in one.why]
    assert len(undated) == 6 and all(one.line > NOTES.splitlines().index("## Undated") for one in undated)
    assert any("Short (512)" in run.label for run in found.runs)


def test_the_shipped_history() -> None:
    runs = shipped()
    assert len(runs) >= 15 and all(run.started and table(run.samples) for run in runs)
    (llama,) = [run for run in runs if run.name == "llama.cpp"]
    assert len(llama.samples) == 10 and llama.environment["imported"]["source"].startswith("lab notes")


def test_reports_of_the_tools(tmp_path: Path) -> None:
    (benchy,) = parse(DATA / "llama-benchy-0.4.0.json").runs
    assert benchy.parameters["tool"] == "llama-benchy" and len(benchy.samples) == 32
    (vllm,) = parse(DATA / "vllm-0.30.0.json").runs
    assert vllm.parameters["tool"] == "vllm" and vllm.environment["model"] == "tiny" and len(vllm.samples) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"), (b"{}", "not a report of llama-benchy, nor of vllm"), (b"\xff\xfe\x00", "not UTF-8"),
        (b'{"benchmarks": [{}]}', "the report has another form: KeyError"), (None, "no such file"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EnvgenError, match=message):
        parse(path)
