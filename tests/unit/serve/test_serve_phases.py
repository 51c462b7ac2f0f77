"""Phases of a start, read from the lines of real logs; what a log must and must not show, and what of it is printed."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.client import Engine
from envgen.logpattern import LogPattern
from envgen.serve.ended import log_text
from envgen.serve.follow import LINES, LogReader
from envgen.serve.phases import Phase, StartProgress
from envgen.serve.wait import Evidence
from envgen.text import instant

# Lines of vLLM 0.30.0 on a CPU, and (behind them) of 0.14.0 as its source spells them.
LOG = [
    ("(APIServer pid=6) INFO 11-21 06:47:36 [model.py:692] Resolved architecture: LlamaForCausalLM", Phase.START, ""),
    ("(Worker pid=92) INFO 11-21 06:47:56 [cpu_model_runner.py:130] Starting to load model /models/tiny...",
     Phase.WEIGHTS, ""),
    ("(Worker pid=92) Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]",
     Phase.WEIGHTS, "0 %"),
    ("(Worker pid=92) Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 235.95it/s]",
     Phase.WEIGHTS, "100 %"),
    ("(Worker pid=92) INFO 11-21 06:47:56 [default_loader.py:430] Loading weights took 0.01 seconds",
     Phase.COMPILE, ""),
    ("Capturing CUDA graphs (decode, FULL):  10%|#  | 2/20\rCapturing CUDA graphs (decode, FULL): 100%|##| 20/20",
     Phase.COMPILE, "CUDA graphs 100 %"),
    ("DeepGEMM warmup:   1%|          | 8/1496 [00:09<26:39,  1.07s/it]", Phase.COMPILE, "DeepGEMM 1 %"),
    ("[3/12] /usr/local/cuda/bin/nvcc --generate-dependencies-with-compile page.cu", Phase.COMPILE,
     "JIT, file 3 of 12"),
    ("(EngineCore pid=69) INFO 11-21 06:47:57 [core.py:379] init engine (profile, create kv cache, warmup model) "
     "took 0.11 s", Phase.API, ""),
]  # fmt: skip


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_phases_of_a_real_log() -> None:
    clock = Clock()
    progress = StartProgress(clock)
    for line, phase, detail in LOG:
        clock.now += 2
        progress.feed(line)
        assert (progress.phase, progress.detail) == (phase, detail), line
    progress.answering()
    clock.now += 1
    assert progress.words() == "waiting for its first answer"
    progress.feed("flashinfer.jit: building page")  # the first prompt may compile
    assert progress.words() == "waiting for its first answer, JIT: building page"
    assert progress.took() == {"start": 4, "weights": 6, "compile": 8, "api server": 0, "answer": 1}


def test_a_phase_that_ends_is_told_with_what_took_its_seconds() -> None:
    clock, ended = Clock(), list[tuple[str, float, str]]()
    progress = StartProgress(clock, lambda phase, seconds, what: ended.append((phase.value, seconds, what)))
    for seconds, line in (
        (9, "Starting to load model x"),
        (4, "Loading safetensors checkpoint shards:  50% Completed | 1/2"),
        (5, "INFO [default_loader.py:430] Loading weights took 9.01 seconds"),
        (2, "INFO [backends.py:1] Dynamo bytecode transform time: 4.43 s"),
        (30, "Capturing CUDA graphs (FULL):   0%|  | 0/2"),
        (6, "Capturing CUDA graphs (FULL): 100%|##| 2/2"),
        (1, "INFO Graph capturing finished in 7 secs"),
        (0.5, "INFO core.py: init engine (profile) took 40 s"),
        (0.5, "INFO started"),
    ):
        clock.now += seconds
        progress.feed(line)
    progress.answering()
    clock.now += 3
    progress.finish()
    assert ended == [
        ("start", 9, ""), ("weights", 9, ""), ("compile", 39.5, "torch.compile 30 s, CUDA graphs 7 s"),
        ("api server", 0.5, ""), ("answer", 3, ""),
    ]  # fmt: skip
    assert progress.took() == {"start": 9, "weights": 9, "compile": 39.5, "api server": 0.5, "answer": 3}


@pytest.mark.parametrize(
    ("bar", "nvcc", "graphs"), [("[01:56<00:00", 87, 116), ("[1:00:00<00:00", 0, 203), ("", 203, 0)]
)
def test_a_bar_that_comes_when_it_is_full_takes_its_seconds_from_what_was_named_before(
    bar: str, nvcc: float, graphs: float
) -> None:
    """Docker passes a line on when it ends, and a bar's ends with its last step."""
    clock, ended = Clock(), list[str]()
    progress = StartProgress(clock, lambda _phase, _seconds, what: ended.append(what))
    progress.feed("Model loading took 61.43 GiB memory")
    progress.feed("INFO flashinfer.jit: Building JIT module sampling")
    clock.now += 203
    progress.feed(f"Capturing CUDA graphs: 1%| | 1/83\rCapturing CUDA graphs: 100%|##| 83/83 {bar}")
    progress.feed("INFO Graph capturing finished in 116 secs")
    progress.finish()
    parts = {"nvcc for FlashInfer's sampling": nvcc, "CUDA graphs": graphs}
    assert ended[-1] == ", ".join(f"{name} {took} s" for name, took in parts.items() if took)


@pytest.mark.parametrize(
    ("line", "share"),
    [
        ("Loading safetensors checkpoint shards:  50% Completed | 1/2", 0.5),
        ("[3/12] /usr/local/cuda/bin/nvcc -c page.cu", 0.25),
        ("Capturing CUDA graphs (FULL): 100%|##| 2/2", 1.0),
        ("[9/0] nvcc", 1.0),
        ("INFO Graph capturing finished", None),
    ],
)
def test_a_share_is_known_where_the_log_says_it(line: str, share: float | None) -> None:
    progress = StartProgress()
    progress.feed(line)
    assert progress.share == share


def test_arguments_that_are_refused_are_no_compilation() -> None:
    """The usage of a real vLLM names flags such as --enable-flashinfer-autotune."""
    progress = StartProgress()
    log = Path(__file__).parents[1] / "explain/logs/failures/unknown-flag.log"
    lines = log.read_text(encoding="utf-8").splitlines()
    assert any("autotun" in line for line in lines)
    for line in lines:
        progress.feed(line)
    assert progress.words() == "reading its arguments"
    assert list(progress.took()) == ["start", "arguments"]
    progress.restart()
    for line in (*lines[:-1], "(APIServer pid=6) INFO 11-21 06:47:36 [model.py:692] Starting to load model x"):
        progress.feed(line)
    assert progress.phase is Phase.WEIGHTS


@given(st.lists(st.text()))
def test_no_line_makes_it_fail(lines: list[str]) -> None:
    progress = StartProgress()
    for line in lines:
        progress.feed(line)
    assert progress.words()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-21T06:46:57.820360749Z", "1795243617.820360749"),
        ("2026-11-21T06:46:57Z", "1795243617.000000000"),
        ("2026-11-21T07:46:57.5+01:00", "1795243617.500000000"),
        ("", ""),
        ("2026-99-21T06:46:57Z", ""),
        ("yesterday", ""),
    ],
)
def test_instants(text: str, seconds: str) -> None:
    assert instant(text) == seconds


class Log:
    """An engine of which only the log is asked: it gives all lines from an instant on, that instant included."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def logs(self, _: str, *, tail: int | None, since: str, until: str, timestamps: bool, seconds: float) -> str:
        assert tail in (None, LINES, 1) and timestamps
        last = until or "9"
        found = [f"{stamp} {text}\n" for stamp, text in self.lines if since <= instant(stamp) <= last]
        return "".join(found[-1:] if tail == 1 else found)


STAMP = "2026-11-21T06:46:57.{:09}Z"


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.text("ab ", max_size=4)), max_size=5), max_size=6))
def test_every_line_comes_once(rounds: list[list[tuple[int, str]]]) -> None:
    log = Log()
    reader = LogReader(cast(Engine, log), "x")
    now, read = 1, []
    for lines in rounds:
        for step, text in lines:  # a step of 0: written at the very same instant
            now += step
            log.lines.append((STAMP.format(now), text))
        read += reader.new_lines()
    assert read == [text for _, text in log.lines]


def test_what_was_written_before_is_not_read() -> None:
    log = Log()
    log.lines = [(STAMP.format(1), "an earlier run"), (STAMP.format(5), "this run")]
    assert LogReader(cast(Engine, log), "x", STAMP.format(3)).new_lines() == ["this run"]


@pytest.mark.parametrize("clock", [0.0, 1e12])
def test_of_one_that_runs_for_days_the_beginning_and_what_is_new(monkeypatch: pytest.MonkeyPatch, clock: float) -> None:
    """Whatever this machine's clock says."""
    monkeypatch.setattr("time.time", lambda: clock)
    log = Log()
    days = ["2026-11-21T06:00:00.5Z", "2026-11-21T06:59:59Z", "2026-11-22T06:00:00Z", "2026-11-24T06:00:01Z"]
    log.lines = [(stamp, stamp) for stamp in days[:3]]
    reader = LogReader(cast(Engine, log), "x", "2026-11-21T06:00:00Z", 3600)
    assert reader.new_lines() == days[:2]
    log.lines.append((days[3], days[3]))
    assert reader.new_lines() == days[3:] and reader.new_lines() == []


def test_evidence() -> None:
    evidence = Evidence({"attention": "Using (FLASHINFER|X) backend", "moe": "Marlin"}, {"eager": "enforce.eager"})
    assert list(evidence.missing) == ["attention", "moe"]
    evidence.feed("INFO Using FLASHINFER backend")
    evidence.feed("INFO Using X backend")
    assert list(evidence.missing) == ["moe"] and evidence.seen == {"attention": "INFO Using FLASHINFER backend"}
    assert evidence.forbidden is None
    evidence.feed("enforce-eager")
    assert evidence.forbidden == ("eager", "enforce-eager")
    evidence.restart()
    assert list(evidence.missing) == ["attention", "moe"] and evidence.forbidden is None


def test_the_progress_is_what_happens_now_with_its_own_seconds() -> None:
    clock = iter(range(0, 1000, 10))
    progress = StartProgress(lambda: float(next(clock)))
    progress.feed("(EngineCore pid=1) INFO [x.py:1] Model loading took 61.43 GiB memory")
    progress.feed("(EngineCore pid=1) INFO [monitor.py:91] [backbone] Initial profiling/warmup run took 0.17 s")
    assert progress.words() == "compiling, Triton kernels and CUDA graphs"
    progress.feed(
        "2026 - INFO - core.py:594 - flashinfer.jit: Building JIT module fused_moe_90; this can take minutes."
    )
    assert progress.words() == "compiling, nvcc for FlashInfer's fused_moe_90"


@pytest.mark.parametrize(
    ("after", "commands", "doing"),
    [
        (4, ["python3 -m vllm"], None),  # ninja may not have started yet
        (6, ["python3 -m vllm", "ninja -v -C /cache"], "nvcc for FlashInfer's sampling"),
        (6, ["python3 -m vllm", "/usr/local/cuda/bin/../nvvm/bin/cicc --c++17"], "nvcc for FlashInfer's sampling"),
        (6, [], "nvcc for FlashInfer's sampling"),  # a machine without ps
        (6, ["python3 -m vllm"], "Triton kernels and CUDA graphs"),
    ],
)
def test_a_build_is_named_as_long_as_compilers_run(after: float, commands: list[str], doing: str | None) -> None:
    """Docker passes on no progress bar before it is full, so nothing in the log follows a build for minutes."""
    clock, ended = Clock(), list[str]()
    progress = StartProgress(clock, lambda _phase, _seconds, what: ended.append(what))
    progress.feed("Model loading took 61.43 GiB memory")
    progress.feed("INFO flashinfer.jit: Building JIT module sampling")
    clock.now += after
    assert progress.may_have_built is (doing is not None)
    if doing is None:
        return
    progress.see(commands)
    assert progress.words() == f"compiling, {doing}" and not progress.may_have_built
    clock.now += 100
    progress.feed("Capturing CUDA graphs: 100%|##| 83/83 [01:40<00:00")
    progress.finish()
    assert ended[-1] == "nvcc for FlashInfer's sampling 6 s, CUDA graphs 100 s"


@pytest.mark.parametrize("pattern", [r"(x+x+)+y", r"(a|aa)+$b", r"(.*.*.*.*)*z", r"^(\w+\s?)*$!"])
def test_a_hostile_line_ends_every_pattern(pattern: str) -> None:
    """Each of them would keep a backtracking matcher busy for longer than the universe has been there."""
    found = Evidence({"a": pattern}, {"b": pattern})
    for line in ("x" * 5000, "a" * 5000, "word " * 1000, "\udc80" * 5000):
        found.feed(line)
    assert found.missing == ("a",) and found.forbidden is None


def test_what_is_looked_for_is_found() -> None:
    assert LogPattern(r"Using (AttentionBackendEnum\.)?FLASHINFER( attention)? backend").found_in(
        "INFO 11-22 [cuda.py:1] Using FLASHINFER attention backend out of ['FLASHINFER']"
    )
    assert LogPattern("(?i)größe").found_in("die GRÖßE")


def test_what_is_not_linear_is_refused() -> None:
    for pattern in (r"(?=a)b", r"(a)\1", "(?<!x)y", "(", "x{5000}"):
        with pytest.raises(ValueError, match=r"\w"):
            LogPattern(pattern)


def test_a_log_line_is_printed_without_secrets() -> None:
    line = "HF_TOKEN=hf_abcdefghijklmnopqrstuv HTTP_PROXY=http://me:pw@proxy:3128 /home/anna/x \x1b[31mred\x1b[0m"
    shown = log_text(line)
    assert "hf_abc" not in shown and "me:pw" not in shown and "\x1b" not in shown
    assert "/home/anna/x" in shown, "paths are the user's own and help him"
