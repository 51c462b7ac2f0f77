"""Figures of others: what ships, and lab notes whose every figure is read or handed back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.bench.compare import table
from envgen.bench.notes import Foreign, moment, parse, read_notes, shipped
from envgen.errors import ResultsError

# Each table and line here has a form of the lab notes that envgen began with.
NOTES = """\
## Final (2026-01-17)
| Context | Prefill (t/s) | Decode tg32 (t/s) |
|---------|---------------|-------------------|
| **Short (512)** | 1,854 | **60.02** |

| Metric | Baseline | Best | Config | Date |
|--------|----------|------|--------|------|
| tg32 (tok/s) | 29.1 | **60.02** | **64x128 tiles** | 2026-01-17 |

## Upstream
```yaml
date: 2026-01-09 16:25:01
prompt_length: 2048
pp512_tps: 2209.10 ± 97.25   # TTFT: 332ms
tg32_tps: 31.58 ± 0.06
```
| Metric | Mean | Std Dev | CV% |
|--------|------|---------|-----|
| pp4096 | 4008 | ±23 | 0.6% |
| pp512 | 2209 | ±97 | 4.4% |
| tg64 | 31.62 | ±0.03 | 0.1% |

## Attention (2026-01-10)
| Config | tg32 (tok/s) | pp2048 (tok/s) | Output Quality |
|--------|--------------|----------------|----------------|
| Marlin | 32.6 | 4341 | Coherent |
| Marlin without sinks | 32.6 | 4341 | ❌ Garbage |
| Eagle3 | ~24-25 | - | Coherent |

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
| TPOT | 18.83 ms |
"""
READ = {  # metric, prompt, reply, depth, value, deviation
    "Final (2026-01-17): Short (512)": [
        ("prefill_tps", 512, None, 0, 1854.0, None),
        ("decode_tps", 512, 32, 0, 60.02, None),  # the headline has the prompt of its row
    ],
    "Upstream": [
        ("prefill_tps", 512, None, 0, 2209.1, 97.25),
        ("ttft_ms", 512, None, 0, 332.0, None),
        ("decode_tps", 2048, 32, 0, 31.58, 0.06),
        ("prefill_tps", 4096, None, 0, 4008.0, 23.0),
        ("decode_tps", 2048, 64, 0, 31.62, 0.03),  # not with the last prompt of the table
    ],
    "Attention (2026-01-10): Marlin": [
        ("decode_tps", 2048, 32, 0, 32.6, None),
        ("prefill_tps", 2048, None, 0, 4341.0, None),
    ],
    "Undated: llama.cpp (llama-bench, build f5acfb2ff)": [
        ("prefill_tps", 2048, None, 0, 2449.83, 10.27),
        ("decode_tps", 0, 32, 4096, 54.81, 0.3),  # llama-bench generates from an empty context
    ],
    "Undated: vLLM (llama-benchy)": [
        ("prefill_tps", 2048, None, 4096, 3172.51, 16.0),
        ("ttft_ms", 2048, None, 4096, 821.97, 4.0),
        ("decode_tps", 2048, 32, 4096, 32.63, 0.02),
    ],
    "Undated: SGLang": [("itl_ms", None, None, 0, 18.83, None)],
}
LEFT = {
    "| Metric | Baseline | Best | Config | Date |": "a table of 1 rows without a column of measured values",
    "| pp512 | 2209 | ±97 | 4.4% |": "this test has a figure above",
    "| Marlin without sinks | 32.6 | 4341 | ❌ Garbage |": "marked as garbage",
    "| Eagle3 | ~24-25 | - | Coherent |": "not a number: ~24-25",
    "Decode is twice as slow (29 vs 58 tok/s).": "a sentence",
}


def figures(run: Foreign) -> list[tuple[Any, ...]]:
    cells = ("prompt_tokens", "output_tokens", "context_tokens")
    return [
        (name, *map(one.get, cells), one[name], one["spread"].get(name))
        for one in run.samples for name in one if name.endswith(("_tps", "_ms"))
    ]  # fmt: skip


def test_notes_are_read_or_handed_back() -> None:
    runs, left = read_notes(NOTES, moment("2026-01-08"), "notes")
    assert {run.label: figures(run) for run in runs} == READ
    assert [run.started and run.started.day for run in runs] == [17, 9, 10, 8, 8, 8]
    assert {one.text: one.why for one in left} == LEFT
    assert all(NOTES.splitlines()[one.line - 1] == one.text for one in left)


def test_undated_figures_are_left_out_one_by_one() -> None:
    runs, left = read_notes(NOTES, None, "notes")
    undated = [one for one in left if "no date" in one.why]
    assert len(runs) == 3 and len(undated) == 5
    assert all(one.line > NOTES.splitlines().index("## Undated") for one in undated)


@given(st.text(alphabet="|-#*`: 0.9±dt32pg@/s()\n\r", max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    read_notes(text, moment("2026-01-08"), "notes")


def test_the_shipped_history() -> None:
    runs = shipped()
    assert len(runs) >= 15 and all(run.started and table(run.samples) for run in runs)
    (llama,) = [run for run in runs if run.name == "llama.cpp"]
    assert len(llama.samples) == 10 and llama.environment["imported"]["source"].startswith("lab notes")


@pytest.mark.parametrize(
    ("content", "message"), [(b"\xff\xfe\x00", "can't be read: .*utf-8"), (b"# Nothing", "no figures were found")]
)
def test_what_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.md").write_bytes(content)
    with pytest.raises(ResultsError, match=message):
        parse(tmp_path / "a.md", None)
