"""Figures of others: reports of tools, what ships, and lab notes whose every line is read or handed back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.bench.compare import table
from envgen.bench.imports import parse
from envgen.bench.notes import Foreign, moment, read_notes, shipped
from envgen.errors import ResultsError

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

### Results

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


LEFT = {
    "| Metric | Baseline | Best | Config | Date |": "a table of 1 rows without a column of measured values",
    "| Tile Shape | tg32 @ 16 tokens | tg32 @ 1 token |": "a table of 1 rows without a column of measured values",
    "| pp512 | 2209 | ±97 | 4.4% |": "this test has a figure above",
    "| Marlin without sinks | 32.6 | 4341 | ❌ Garbage |": "marked as garbage",
    "| Eagle3 | ~24-25 | - | Coherent |": "not a number: ~24-25",
    "Decode is twice as slow (29 vs 58 tok/s).": "a sentence",
}


def notes(date: str = "2026-01-08") -> dict[str, Foreign]:
    return {run.label: run for run in read_notes(NOTES, moment(date), "notes")[0]}


def figures(run: Foreign) -> list[dict[str, Any]]:
    dropped = ("unit", "spread", "concurrency")
    return [
        {k: v for k, v in one.items() if k not in dropped and (k, v) != ("context_tokens", 0)} for one in run.samples
    ]


@pytest.mark.parametrize(
    ("label", "wanted"),
    [
        # The headline has the prompt of its row.
        ("Final Results (2026-01-17): Short (512)", [
            {"prompt_tokens": 512, "prefill_tps": 1854.0},
            {"output_tokens": 32, "prompt_tokens": 512, "decode_tps": 60.02},
            {"output_tokens": 128, "prompt_tokens": 512, "decode_tps": 60.07},
        ]),
        # A metric table does not give its last prompt to a reply; what stands behind a # belongs to the line.
        ("Upstream Baseline: Results", [
            {"prompt_tokens": 512, "prefill_tps": 2209.1}, {"prompt_tokens": 512, "ttft_ms": 332.0},
            {"output_tokens": 32, "prompt_tokens": 2048, "decode_tps": 31.58},
            {"prompt_tokens": 2048, "ttfr_ms": 457.13}, {"prompt_tokens": 4096, "prefill_tps": 4008.0},
            {"output_tokens": 64, "prompt_tokens": 2048, "decode_tps": 31.62},
        ]),
        # llama-bench generates from an empty context, llama-benchy after the prompt.
        ("Undated: llama.cpp (llama-bench, build f5acfb2ff)", [
            {"prompt_tokens": 2048, "prefill_tps": 2449.83},
            {"context_tokens": 4096, "output_tokens": 32, "prompt_tokens": 0, "decode_tps": 54.81},
        ]),
        ("Undated: vLLM (llama-benchy)", [
            {"context_tokens": 4096, "prompt_tokens": 2048, "prefill_tps": 3172.51},
            {"context_tokens": 4096, "prompt_tokens": 2048, "ttft_ms": 821.97},
            {"context_tokens": 4096, "output_tokens": 32, "prompt_tokens": 2048, "decode_tps": 32.63},
        ]),
        ("Undated: SGLang", [{"decode_tps": 52.37}, {"itl_ms": 18.83}]),
    ],
)  # fmt: skip
def test_figures_of_notes(label: str, wanted: list[dict[str, Any]]) -> None:
    assert figures(notes()[label]) == wanted


def test_dates_and_deviations() -> None:
    found = notes()
    assert found["Upstream Baseline: Results"].samples[0]["spread"] == {"prefill_tps": 97.25}
    dates = {label.partition(":")[0]: run.started and run.started.day for label, run in found.items()}
    assert dates == {
        "Final Results (2026-01-17)": 17,
        "Upstream Baseline": 9,
        "Attention (2026-01-10)": 10,
        "Undated": 8,
    }


def test_what_is_left_out_has_its_line_and_reason() -> None:
    _, left = read_notes(NOTES, moment("2026-01-08"), "notes")
    assert {one.text: one.why for one in left} == LEFT
    assert all(NOTES.splitlines()[one.line - 1] == one.text for one in left)
    _, undated = read_notes(NOTES, None, "notes")
    rest = [one for one in undated if one not in left]
    assert len(rest) == 6 and all("no date" in one.why for one in rest)
    assert all(one.line > NOTES.splitlines().index("## Undated") for one in rest)


@given(st.text(alphabet="|-#*`: 0.9±dt32pg@/s()\n\r", max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    read_notes(text, moment("2026-01-08"), "notes")


def test_the_shipped_history() -> None:
    runs = shipped()
    assert len(runs) >= 15 and all(run.started and table(run.samples) for run in runs)
    (llama,) = [run for run in runs if run.name == "llama.cpp"]
    assert len(llama.samples) == 10 and llama.environment["imported"]["source"].startswith("lab notes")


def test_reports_of_the_tools() -> None:
    ((benchy,), _), ((vllm,), _) = (parse(DATA / f"{name}.json") for name in ("llama-benchy-0.4.0", "vllm-0.30.0"))
    assert benchy.parameters["tool"] == "llama-benchy" and len(benchy.samples) == 32
    assert vllm.parameters["tool"] == "vllm" and vllm.environment["model"] == "tiny" and len(vllm.samples) == 4
    assert benchy.started and vllm.started and vllm.environment["imported"]["file"] == "vllm-0.30.0.json"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"{", "neither notes in UTF-8 nor a report of llama-benchy"), ("a.json", b"{}", "nor a report"),
        ("a.md", b"\xff\xfe\x00", "neither notes in UTF-8"), ("a.md", b"# Nothing", "no figures were found"),
        ("a.json", b'{"benchmarks": [{}]}', "KeyError"), ("a.json", b'{"benchmarks": []}', "--date 2026-01-09"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ResultsError, match=message):
        parse(tmp_path / name)
