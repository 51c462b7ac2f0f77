"""What `envgen explain` shows of a failure that no rule knows."""

from __future__ import annotations

import json
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from envgen.cli.check.explain import command
from envgen.explain import classify
from envgen.explain.read import read_lines, read_log
from envgen.explain.unknown import _data, clues, in_words

LOG = """\
INFO 08-01 10:00:00 [api_server.py:1] vLLM API server version 0.30.0
INFO 08-01 10:00:01 [cuda.py:9] Driver version: 580.95, NVIDIA GB10, CUDA 13.0
(EngineCore pid=7) Traceback (most recent call last):
(EngineCore pid=7)   File "/usr/lib/python3.12/site-packages/vllm/v1/a.py", line 3, in plan
(EngineCore pid=7)     raise FluxError
(EngineCore pid=7) FluxError
frobnicator: cannot align the flux of 10.0.0.7
INFO 08-01 10:00:02 [a.py:1] nothing failed here, no error
"""


def shown(log: str) -> str:
    return CliRunner().invoke(command, ["-"], input=log, standalone_mode=False).stdout


def test_deciding_lines_versions_and_an_address() -> None:
    said = shown(LOG)
    assert "no known failure found in 8 lines" in said
    assert "first exception of EngineCore pid=7: -:6: FluxError" in said
    assert '-:4: File "/usr/lib/python3.12/site-packages/vllm/v1/a.py", line 3, in plan' in said
    assert "-:7: frobnicator: cannot align the flux of 10.0.0.7" in said and "-:8:" not in said
    assert "the log shows: vllm 0.30.0" in said
    assert "search: https://github.com/vllm-project/vllm/issues?q=FluxError+plan" in said


def test_a_log_without_versions_shows_none() -> None:
    said = shown("frobnicator: fatal: the flux is denied\n")
    assert "frobnicator: fatal" in said and "the log shows" not in said


def test_the_same_as_json() -> None:
    done = CliRunner().invoke(command, ["-", "--json"], input=LOG, standalone_mode=False)
    told = json.loads(done.stdout)["clues"]
    assert [one["line"] for one in told["lines"]] == [4, 6, 7] and told["versions"] == {"vllm": "0.30.0"}
    assert told["search"].endswith("/vllm-project/vllm/issues?q=FluxError+plan")


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("docker: Error response from daemon: frobnication of /home/me/x failed at 10.0.0.7:80",
         "https://github.com/moby/moby/issues?q=frobnication+of+failed+at"),
        ('  File "/x/site-packages/triton/a.py", line 3, in f\nRuntimeError: vllm: the 3 fluxes are not aligned',
         "https://github.com/triton-lang/triton/issues?q=the+fluxes+are+not+aligned"),
        ("nvidia-ctk: fatal: unable to align the flux", "https://github.com/NVIDIA/nvidia-container-toolkit/issues?q="),
        ("frobnicator: fatal: the flux of 0x7f00 is denied for me@example.org",
         "https://github.com/search?type=issues&q=the+flux+of+is+denied+for"),
    ],
)  # fmt: skip
def test_the_project_that_raised_it_is_searched_without_what_is_ones_own(line: str, address: str) -> None:
    assert f"search: {address}" in shown(line + "\n")


def test_a_healthy_log_has_no_deciding_lines() -> None:
    log = "INFO 08-01 10:00:00 [a.py:1] 0 errors, none failed\nApplication startup complete.\n"
    assert shown(log) == "-: the server started; nothing failed in 2 lines\n"
    late = log + "ERROR 08-01 10:00:09 [a.py:1] it broke\n"
    assert shown(late).startswith("-: no known failure found in 3 lines\n")


def test_a_certain_failure_needs_no_clues() -> None:
    log = b"(EngineCore pid=1) RuntimeError: Could not find nvcc\nwhat: cannot go on\n"
    assert read_log(BytesIO(log)).clues is None


CORPUS = Path(__file__).resolve().parents[3] / "benchmarks/data/explain"
PUBLIC = [json.loads(line) for line in (CORPUS / "lines.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("entry", PUBLIC, ids=lambda entry: re.sub(r".*com/|/issues", "", entry["address"]))
def test_the_deciding_line_is_shown_where_no_rule_knows_it(
    entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of public failures in a dozen formats: builds, CMake, panics, crashes, kernels' logs, Compose, a hang."""
    monkeypatch.setattr("envgen.explain.rules_for", lambda *_: ())
    assert entry["line"] in shown("\n".join(entry["log"]) + "\n")


def test_every_line_with_a_word_of_a_failure_has_a_stem() -> None:
    logs = [json.loads(line)["log"] for line in (CORPUS / "learn.jsonl").read_text("utf-8").splitlines()]
    logs += [entry["log"] for entry in PUBLIC]
    data = _data()
    for line in [line for log in logs for line in log]:
        if any(sign.search(line) for _, sign in data["signs"]):
            assert data["stems"].Match(line.lower()), line
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", name) for name, _ in data["projects"])


def test_public_threads_with_the_same_line_are_named_whatever_its_numbers() -> None:
    lines = ["AttributeError: 'EagleMistralLarge3Model' object has no attribute 'use_flux'", "RuntimeError: failed"]
    assert not clues(lines, 0, None, {}).others
    thread = "https://github.com/noonghunna/club-3090/issues/32"
    known = "NotImplementedError: DS conv state layout does not yet support speculative decoding"
    found = read_lines([f"{known} with mamba_cache_mode='align' (num_accepted_tokens > 3) in rank 7 here"])
    (other,) = found.clues.others if found.clues else ()
    assert other.startswith(f"{thread} (there: ") and "; what helped: " in other
    assert f"others with such a line: {other}" in in_words(found.first, found.clues)


def test_a_likely_cause_is_called_so_and_a_certain_one_is_not() -> None:
    likely, certain = (
        classify([line])[0] for line in ("IndexError: list index out of range", "no space left on device")
    )
    assert likely.said == f"likely: {likely.cause}" and certain.said == certain.cause


def test_a_message_below_its_exception_explains_it() -> None:
    lines = ["Core.ValidationError: 1 validation error for Config", "  Value error, it is too large [type=value]"]
    assert [one.rule for one in read_lines(lines).explanations] == ["config_refused"]
