"""Public failures: the first one that is named is what was wrong, and its fix is the one that helped."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from envgen.explain import Circumstances, Explanation, _Text, classify, rules
from envgen.explain.read import read_lines, read_log

DATA = Path(__file__).resolve().parents[3] / "benchmarks/data/explain"
FILES = [(DATA / f"{name}.jsonl").read_text("utf-8").splitlines() for name in ("learn", "noise", "provoked")]
ENTRIES, NOISE, PROVOKED = ([json.loads(line) for line in lines] for lines in FILES)
# Logs without an error or without its cause, and one whose cause is named second.
NOT_RIGHT = ("/2167", "modules/issues/1358", "/3634", "trl/pull/6569", "/54237", "/38895", "/8355", "odysseus/issues/191",
             "sparkrun/issues/208", "/1240", "/16867", "recipes/issues/3", "/48848", "paroquant/issues/31")  # fmt: skip

RIGHT = [entry for entry in ENTRIES if not entry["address"].endswith(NOT_RIGHT)]


@pytest.mark.parametrize("entry", RIGHT, ids=lambda entry: entry["address"])
def test_a_public_failure_has_the_cause_and_the_fix_of_its_thread(entry: dict[str, Any]) -> None:
    explanations = read_log(io.BytesIO("\n".join(entry["log"]).encode())).explanations
    first = next(one for one in explanations if one.failure or entry.get("notice"))
    assert all(re.search(words, first.cause, re.IGNORECASE) for words in entry.get("says", ()))
    assert all(re.search(words, first.cure, re.IGNORECASE) for words in entry.get("cure", ()))
    lines = {one.line for one in explanations}
    assert len(lines) == len(explanations), "one line is explained twice"
    assert [one["address"] for one in ENTRIES].count(entry["address"]) == 1, "a thread stands twice in the corpus"


@pytest.mark.parametrize("entry", [one for one in PROVOKED if one["rule"]], ids=lambda one: one["name"])
def test_a_failure_that_was_provoked_has_its_rule(entry: dict[str, Any]) -> None:
    first = next(one for one in read_lines(entry["log"]).explanations if one.failure)
    assert first.rule == entry["rule"]


def test_a_release_of_vllm_is_none_of_another_server() -> None:
    log = _Text(['  File "/x/sglang/srt/x.py", line 1, in f'], ())
    for rule in rules():
        one = log.worded(Explanation(rule.rule, rule.cause, "", 0, rule.cure, ""))
        assert not re.search(r"SGLang v?\d", one.cause + one.cure), one


@pytest.mark.parametrize("one", NOISE, ids=lambda one: one["line"][:40])
def test_a_line_of_something_else(one: dict[str, str]) -> None:
    """A harmless line, or one of another failure, is not taken for that of this rule."""
    assert one["rule"] not in {
        found.rule for found in read_lines(one["line"].splitlines()).explanations if found.failure
    }


@pytest.mark.parametrize("line", ["Bus error (core dumped)", "bash: line 1:  77 Bus error", "received signal SIGBUS"])
def test_a_bus_error_of_a_program(line: str) -> None:
    assert [one.rule for one in classify([line])] == ["bus_error"]


UNKNOWN = 'Traceback (most recent call last):\n  File "/x/vllm/v1/engine/core.py", line 7, in f\nValueError: no frobs\n'
KILLED = "ERROR 05-01 10:00:00 [core_client.py:5] Worker proc VllmWorker-1 died unexpectedly (exit code: -9)"
ENDED = "\nRuntimeError: Engine core initialization failed. See root cause above."
CAUGHT = UNKNOWN.replace("no frobs", "No space left on device") + UNKNOWN


@pytest.mark.parametrize("log", [CAUGHT, UNKNOWN + KILLED, UNKNOWN + KILLED + ENDED, KILLED + ENDED])
def test_beside_an_exception_that_no_rule_knows_nothing_is_certain(log: str) -> None:
    failures = [one for one in read_log(io.BytesIO(log.encode())).explanations if one.failure]
    assert failures and all(one.general == (UNKNOWN in log) for one in failures)


NVRM = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from x"


CORE = "(EngineCore pid=9) ERROR 11-30 04:01:15 [core.py:1584] "
FREE = "Free memory on device cuda:0 (50.59/139.8 GiB) on startup is less than desired GPU memory utilization"
RAISED = [UNKNOWN.splitlines()[0], '  File "/x/vllm/v1/worker/utils.py", line 7, in f', f"ValueError: {FREE}"]


def test_what_ends_the_engine_is_printed_twice_and_is_certain() -> None:
    """As vLLM's engine does it: by its logger, by its process, and then the parent's; what was caught before is not it."""
    caught = [f"{CORE}{line}" for line in (*RAISED[:2], "OSError: [Errno 30] Read-only file system: '/a'")]
    ends = [*(CORE + line for line in RAISED), "Process EngineCore:", *RAISED]
    parent = [
        *RAISED[:1],
        '  File "/x/vllm/v1/engine/utils.py", line 9, in f',
        "RuntimeError: Engine core initialization failed.",
    ]
    for before in ([], caught):
        report = read_lines([*before, *ends, *parent])
        first = report.explanations[0]
        assert (first.rule, first.general, first.line) == ("memory_taken", False, len(before) + 3)
        assert report.first and report.first.line == first.line


def test_the_exception_of_a_data_loader_s_worker_comes_before_that_about_it() -> None:
    about = UNKNOWN.replace("no frobs", "Caught ValueError in DataLoader worker process 0.")
    report = read_lines(f"{about}\nOriginal {UNKNOWN}".splitlines())
    assert report.first and report.first.text == "ValueError: no frobs"


def test_a_message_of_the_driver_is_a_notice_unless_the_server_died() -> None:
    (alive,) = classify([NVRM, "INFO: Application startup complete."])
    assert (alive.rule, alive.failure) == ("driver_memory", False)
    died = classify([NVRM, "Killed"])
    assert [(one.rule, one.failure) for one in died] == [("driver_memory", True), ("killed", True)]
    (known,) = classify([NVRM], known=Circumstances(failed=True, exit_code=1))
    assert known.failure
    raised = [NVRM, "Traceback (most recent call last):", '  File "x.py", line 1', "RuntimeError: out of NVRM"]
    assert read_log(io.BytesIO("\n".join(raised).encode())).explanations[0].failure


def test_a_general_rule_is_silent_where_another_one_knows_more() -> None:
    lines = ["WARNING: Retrying: Read timed out.", "ERROR: No matching distribution found for x==1",
             "fatal: couldn't find remote ref v1"]  # fmt: skip
    assert [one.rule for one in classify(lines)] == ["git_ref"]
    assert not classify(lines[:1])  # it warns, and tries again
    assert [one.rule for one in classify([lines[0][9:]])] == ["network"]


TRACE = [
    'File "/usr/lib/python3.12/runpy.py", line 1, in run', 'File "/opt/x/site-packages/flashinfer/jit/core.py", line 9',
    'File "/usr/lib/python3.12/pathlib.py", line 1313, in mkdir',
]  # fmt: skip


@pytest.mark.parametrize("header", [True, False])
def test_the_first_exception_behind_two_processes_names(header: bool) -> None:
    """Every line of a Ray worker has two prefixes; and an excerpt may lack the traceback's header."""
    worker = "(EngineCore pid=689) (RayWorkerWrapper pid=890) ERROR 04-05 08:59:13 [ray_utils.py:87] "
    head = [f"{worker}Traceback (most recent call last):"] if header else []
    lines = [
        "(APIServer pid=632) INFO 04-05 08:58:01 [api_server.py:9] vLLM API server version 0.30.0",
        "INFO flashinfer version 0.7.0", *head, *(f"{worker}  {line}" for line in TRACE),
        f"{worker}RuntimeError: no such kernel",
        "(APIServer pid=632) Traceback (most recent call last):", '(APIServer pid=632)   File "/usr/bin/vllm", line 10',
        "(APIServer pid=632) RuntimeError: Engine core initialization failed. See root cause above. Failed: {}",
    ]  # fmt: skip
    first = read_lines(lines).first
    assert first is not None
    assert (first.process, first.text) == ("RayWorkerWrapper pid=890", "RuntimeError: no such kernel")
    assert first.component == "flashinfer 0.7.0"


def test_what_a_server_outlived_is_no_failure() -> None:
    """A plug-in that can't be imported, in the log of a real server that then served; the next start lacks it again."""
    plugin = [
        "(EngineCore pid=9) ERROR 11-28 11:51:50 [__init__.py:72] Traceback (most recent call last):",
        '(EngineCore pid=9) ERROR 11-28 11:51:50 [__init__.py:72]   File "/x/b12x/a.py", line 3, in f',
        "(EngineCore pid=9) ERROR 11-28 11:51:50 [__init__.py:72] ModuleNotFoundError: No module named 'cutlass'",
    ]
    up = "INFO:     Application startup complete."
    early = read_lines([*plugin[2:], up])  # from the first line on
    assert [one.line for one in read_lines([f"chat-1 | {plugin[2]}", f"embed-1 | {up}"]).explanations] == [1]
    assert early.first is None and not early.explanations
    log = [*plugin, up, '"GET /health HTTP/1.1" 200 OK']
    healthy, later = read_lines(log), read_lines([*log, *plugin], before=7)
    assert healthy.first is None and not healthy.explanations
    assert later.first and later.first.line == 15 and [one.line for one in later.explanations] == [15]
    assert [one.line for one in read_lines(log, Circumstances(failed=True)).explanations] == [3]
    crash = "(EngineCore pid=9) ERROR 11-28 11:59:50 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to"
    for begins in ("envgen: starting the server", "INFO:     Started server process [1]"):
        again = read_lines([*log, crash, begins, *log])  # Docker restarted it
        assert again.first and [(one.rule, one.line) for one in again.explanations] == [("cuda_memory", 6)]


def test_the_root_of_a_chain_is_kept() -> None:
    lines = [
        "Traceback (most recent call last):", '  File "/x/dist-packages/triton/a.py", line 1', "OSError: no ptxas", "",
        "The above exception was the direct cause of the following exception:", "",
        "Traceback (most recent call last):", '  File "/x/dist-packages/vllm/b.py", line 1', "RuntimeError: no kernel",
    ]  # fmt: skip
    first = read_lines(lines).first
    assert first is not None and (first.text, first.root) == ("RuntimeError: no kernel", "OSError: no ptxas")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("0.243 error: Requirements contain", "error: Requirements contain"),
        ("nvcc fatal   : A single input file is required", "nvcc fatal   : A single input file is required"),
        ("ValueError: There is no such thing", "ValueError: There is no such thing"),
        ("(Worker pid=9) ERROR 04-05 08:59:13 [a.py:1] it is broken", "it is broken"),
        ("[rank3]: KeyError: 'qwen9'", "KeyError: 'qwen9'"),
        ("INFO 04-05 08:59:13 [a.py:1] 0 errors", None),
    ],
)
def test_a_line_that_names_an_error_without_a_traceback(line: str, text: str | None) -> None:
    first = read_lines(["starting", line, "bye"]).first
    assert (first and first.text) == text and (first is None or first.line == 2)


def test_source_code_is_no_evidence() -> None:
    """A traceback has `raise PackageNotFoundError(name)` above the exception; a step of a build begins with its RUN."""
    trace = ['  File "/usr/lib/python3.12/importlib/metadata/__init__.py", line 889, in from_name',
             "    raise PackageNotFoundError(name)",
             "importlib.metadata.PackageNotFoundError: No package metadata was found for vllm"]  # fmt: skip
    assert not classify(["#9 [2/3] RUN echo 'error: corrupt patch at line 12'", "#9 DONE 0.1s"])
    for log in (trace, [f"(APIServer pid=1) ERROR 01-08 12:21:38 [a.py:218] {line}" for line in trace]):
        (found,) = classify(log)
        assert found.line == 3 and "'vllm'" in found.cause
