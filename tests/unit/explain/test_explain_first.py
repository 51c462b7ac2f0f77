"""The line that a maintainer would point at is the first one shown: logs of a real vLLM for CPUs that failed.

Each was recorded (0.30.0; module.log: 0.14.0) with one thing wrong:
a /dev/shm of 64 MiB, a truncated weights file, a configuration of another
model... Lines of more than 1500 characters were left out, addresses replaced.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.__main__ import main
from envgen.app.bundle import archive
from envgen.explain import Circumstances
from envgen.explain.first import Tracker
from envgen.explain.read import cause_of, read_lines, text_lines
from envgen.serve.ended import log_text

LOGS = Path(__file__).parent / "logs" / "failures"
# What is shown first: the process, and how its exception begins.
FIRST = {
    "architecture": ("APIServer pid=1", "ValidationError: Model architectures ['NopeForCausalLM'] are not supported"),
    "heads": ("APIServer pid=1", "StrictDataclassClassValidationError: ValueError: The hidden size (64) is not a mul"),
    "model-missing": ("APIServer pid=1", "huggingface_hub.errors.HFValidationError: Repo id must be in the form"),
    "model-type": (
        "APIServer pid=1",
        "ValidationError: The checkpoint you are trying to load has model type `nope_llm`",
    ),
    "module": ("EngineCore_DP0 pid=153", "ModuleNotFoundError: No module named 'numba'"),
    "other-cuda": ("", "OSError: Could not load this library: /usr/local/lib/python3.11/site-packages/torchaudio/lib"),
    "parser": ("APIServer pid=1", "KeyError: \"Reasoning parser 'nope' not found."),
    "quantization": ("APIServer pid=1", "ValidationError: Cannot find the config file for awq"),
    "shm": ("EngineCore pid=27", "RuntimeError: Insufficient space in /dev/shm: 160 MiB required, 64 MiB free."),
    "template": ("", "vllm.exceptions.VLLMValidationError: The supplied chat template string (/models/none.jinja)"),
    "tokenizer": ("APIServer pid=1", "json.decoder.JSONDecodeError: Expecting value: line 1 column 13 (char 12)"),
    "too-long": (
        "APIServer pid=1",
        "ValidationError: User-specified max_model_len (99999) is greater than the derived",
    ),
    "unknown-flag": ("", "api_server.py: error: unrecognized arguments: --max-modl-len"),
    "weights-cut": ("Worker pid=38", "safetensors._safetensors_rust.SafetensorError: Error while deserializing header"),
    "weights-shape": ("Worker pid=38", "RuntimeError: start (0) + length (256) exceeds dimension size (128)."),
}
RULES = {
    "architecture": "architecture", "model-missing": "model_path", "model-type": "model_type",
    "module": "module_absent", "parser": "parser_unknown", "quantization": "quantization_name",
    "weights-shape": "weights_shape", "tokenizer": "json_text", "heads": "config_checked",
    "other-cuda": "cuda_runtime", "shm": "shared_memory", "template": "template_file",
    "too-long": "context_length", "unknown-flag": "arguments", "weights-cut": "weights_broken",
}  # fmt: skip


def test_the_package_whose_library_is_missing_is_named() -> None:
    """A wheel of PyPI for CUDA 13 in an image without CUDA; and the same where the loader does not name the file."""
    lines = (LOGS / "other-cuda.log").read_text(encoding="utf-8").splitlines()
    outer = [
        lines[0],
        '  File "/usr/local/lib/python3.11/dist-packages/vllm/config.py", line 9, in <module>',
        *lines[1:],
    ]
    for log in (lines, outer):
        cause = cause_of(log, Circumstances(exit_code=1, facts={"cuda": "12.9"}), service=True)
        assert cause is not None
        assert cause.cause == (
            "the package torchaudio can't be loaded: a compiled extension needs another CUDA than the image has: it "
            "wants libcudart.so.13, CUDA 13's; the image has CUDA 12.9"
        )
        assert cause.cure.startswith("pip: {override: [torchaudio]}")
    bare = [lines[0], outer[1], '  File "/usr/local/lib/python3.11/dist-packages/torchcodec/a.py", line 9', lines[6]]
    cause = cause_of(bare, service=True)
    assert cause is not None and cause.cause.startswith("the package torchcodec can't be loaded")


@pytest.mark.parametrize("name", sorted(path.stem for path in LOGS.iterdir()))
def test_the_first_exception_of_a_real_failure(name: str) -> None:
    lines = (LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines()
    found = read_lines(lines).first
    assert found is not None
    assert (found.process, found.text[: len(FIRST[name][1])]) == FIRST[name]
    assert found.text.rpartition(": ")[2][:20] in lines[found.line - 1]
    cause = cause_of(lines, Circumstances(exit_code=1), service=True)
    assert cause and cause.rule == RULES[name]


@pytest.mark.parametrize("name", FIRST)
def test_colours_and_times_change_nothing(name: str) -> None:
    """vLLM 0.14.0 colours the names of its processes, also where no terminal is; a crash bundle has Docker's times."""
    log = (LOGS / f"{name}.log").read_text(encoding="utf-8")
    coloured = re.sub(r"(?m)^(\([^)]+\))", "\x1b[0;36m\\1\x1b[0;0m", log)
    timed = re.sub(r"(?m)^", "2026-11-23T21:37:16.037371662Z ", coloured)
    assert read_lines(text_lines(timed.encode())).first == read_lines(log.splitlines()).first
    assert [log_text(line) for line in coloured.splitlines()] == [log_text(line) for line in log.splitlines()]


def test_another_s_failure_is_named_where_nothing_else_is() -> None:
    trace = ["Traceback (most recent call last):", '  File "x.py", line 1, in x']
    wrapper = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'E': -9}"
    lines = [f"(APIServer pid=1) {line}" for line in [*trace, wrapper]]
    found = read_lines(lines).first
    assert found is not None and found.text == wrapper and found.line == 3
    child = [f"(EngineCore pid=7) ERROR 11-23 18:18:52 [core.py:1366] {line}" for line in [*trace, "OSError: no"]]
    assert str(read_lines([*child, *lines]).first) == "EngineCore pid=7: OSError: no"
    caught = [line.replace("ERROR", "WARNING") for line in child]
    assert str(read_lines([*caught, *lines]).first).endswith(wrapper)


@given(
    st.lists(st.sampled_from(["Traceback (most recent call last):", "  File x", "A: b", "A:", "", "x y"]) | st.text())
)
def test_any_text_is_taken(lines: list[str]) -> None:
    found = read_lines(lines).first
    assert found is None or 1 <= found.line <= len(lines)


def test_a_crash_bundle_is_read_as_its_server_s_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = (LOGS / "tokenizer.log").read_text(encoding="utf-8")
    (tmp_path / "b.tar.gz").write_bytes(archive({"findings.json": "{}", "server.log": log}))
    assert main(["explain", str(tmp_path / "b.tar.gz")]) == 1
    assert "first exception of APIServer pid=1" in capsys.readouterr().out
    (tmp_path / "none.tar.gz").write_bytes(archive({"findings.json": "{}"}))
    (tmp_path / "cut.tar.gz").write_bytes((tmp_path / "b.tar.gz").read_bytes()[:300])
    (tmp_path / "text.tar.gz").write_text("no archive")
    for name, why in (("none", "has no server.log"), ("cut", "can't be read"), ("text", "can't be read")):
        assert main(["explain", str(tmp_path / f"{name}.tar.gz")]) == 2
        assert why in capsys.readouterr().err


def test_a_cause_is_proven_only_of_what_failed() -> None:
    lines = (LOGS / "shm.log").read_text(encoding="utf-8").splitlines()
    assert read_lines(lines).cause is None
    proven = read_lines(lines, Circumstances(failed=True)).cause
    assert proven is not None and proven.rule == "shared_memory"


RAISE = ["Traceback (most recent call last):", '  File "x.py", line 1, in x', "ValueError: x"]


@pytest.mark.parametrize(
    ("lines", "raised"),
    [
        (["vllm: error: unrecognized arguments: --x"], True),
        (RAISE, True),
        ([*RAISE, "and on it goes"], True),
        (["INFO all is well", "ERROR but not this"], False),
        ([f"WARNING {line}" for line in RAISE], False),
    ],
)
def test_what_was_raised(lines: list[str], raised: bool) -> None:
    tracker = Tracker()
    for number, line in enumerate(lines):
        tracker.feed(line, number)
    assert tracker.raised is raised
