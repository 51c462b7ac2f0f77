"""The classifier: every rule explains its own example, patterns are safe."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.explain import FILES, FOLDER, KINDS, NOTICES, Circumstances, Rule, _Text, classify, load_yaml, phases, rules
from envgen.explain.line import read_line
from envgen.explain.read import read_lines
from envgen.serve.ended import LOCKED

ALL = rules()
PATTERNS = [one for rule in ALL for one in (*rule.patterns, *rule.beside, *rule.facts.values())]


def test_every_file_of_rules_is_read_and_no_name_comes_twice() -> None:
    assert {path.name for path in FOLDER.iterdir() if path.suffix == ".yaml"} == set(FILES)
    names = [rule.rule for rule in ALL]
    assert len(names) == len(set(names))


def test_notices_stand_in_the_file_that_a_healthy_server_s_log_needs() -> None:
    assert {rule.rule for rule in ALL if rule.notice} <= {rule.rule for rule in rules(NOTICES)}


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.rule)
def test_a_rule_explains_its_own_log(rule: Rule) -> None:
    lines = rule.example.splitlines()
    kind = "build" if {*rule.kinds} == {"build"} else None
    found = classify(["INFO starting", *lines, "INFO more"], kind=kind, known=Circumstances(failed=True))
    mine = next((one for one in found if one.rule == rule.rule), None)
    assert mine is not None
    assert mine.evidence in lines[mine.line - 2] and mine.evidence
    said = mine.cause + mine.cure
    assert not re.search(r"\{[a-z_]+\}|\]\]", said.replace("{wheel}", "")), "a fact outside of [[ ]]"
    assert mine.link == rule.link
    assert found[0].rule == rule.rule, f"{found[0].rule} is taken for it"
    assert mine.link.startswith("https://github.com/" if rule.quoted else "https://") and mine.cause and mine.cure
    assert "--volumes" not in mine.cure  # it would cost the compiled kernels


def test_failures_come_before_notices_and_that_of_the_first_exception_before_others() -> None:
    lines = ["NCCL INFO Channel 0 : 1 via NET/Socket/0", "ray: not found", "OSError: Stale file handle"]
    found = read_lines(lines, Circumstances(failed=True))
    assert [one.rule for one in found.explanations] == ["file_system", "no_ray", "nccl_sockets"]
    assert found.cause == found.explanations[0]


@pytest.mark.parametrize("line", ["    raise {}", "(EngineCore pid=1)     raise {} from None", "#12 [4/9] RUN {}"])
def test_what_only_stands_in_a_source_is_no_cause(line: str) -> None:
    """A line of a traceback, or a step of a build: it names an error that did not happen there."""
    written, words = line.format("OSError('No space left on device')"), "No space left on device"
    assert not classify([written]) and classify([written, words])[0].line == 2
    assert not classify(["If it fails with 'could not select device driver', install the toolkit"])


@pytest.mark.parametrize(
    "prefix",
    ["serve-1  | ", "#12 34.5 ", "34.567 ", "2026-11-23T21:37:16.037371662Z ", "2026-11-23T21:37:16.0Z stderr F ",
     "Sep 19 06:12:31 node-a kernel: ", "Sep 19 06:12:31 node-a serve[1422]: ", "[ 388.565288] ", "[rank3]: ",
     "(EngineCore pid=1) (RayWorker pid=890, ip=::1) ", "a | (Worker_TP0_EP0 pid=5) ", "E0808 12:00:00.1 7 a.cpp:9] ",
     "(Worker_TP0 pid=5) ERROR 04-05 08:59:13 [a.py:1] ", "2025-11-11 06:41:27,319 - ERROR - a.py:4 - flashinfer: "],
)  # fmt: skip
def test_what_stands_before_a_message_changes_nothing(prefix: str) -> None:
    """The expression of this rule takes a line that has nothing else."""
    assert read_line(prefix + "MemoryError")[2] == "MemoryError"
    (found,) = classify([f"{prefix}MemoryError", f"{prefix}x MemoryError"], kind="serve")
    assert (found.rule, found.line, found.evidence) == ("server_memory", 1, (prefix + "MemoryError").strip())


def test_nccl_on_one_machine_is_not_called_slow() -> None:
    """Recorded with two GPUs on NVLink: the network that NCCL chose is named, and not used."""
    lines = ["NCCL INFO NET/IB : No device found.", "NCCL INFO NET/Socket : Using [0]eth0:192.0.2.2<0>",
             "NCCL INFO Using network Socket", "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"]  # fmt: skip
    assert classify(["vm:4788:4788 [0] " + line for line in lines]) == ()


def test_kernels_that_the_autotuner_skips_are_no_failure() -> None:
    (skipped,) = (rule for rule in ALL if rule.rule == "tactics_skipped")
    assert [(one.rule, one.failure) for one in classify(skipped.example.splitlines())] == [("tactics_skipped", False)]


def test_one_line_is_not_explained_twice() -> None:
    """What is said of the card, the driver or Ray is not said again of the machine's memory."""
    for name in ("rdma_memory", "ray_memory", "no_supported_archs", "other_archs_only", "harmony_tokens", "vocabulary"):
        rule = next(rule for rule in ALL if rule.rule == name)
        assert [one.rule for one in classify(rule.example.splitlines())] == [name]


def test_lines_are_counted_across_blocks() -> None:
    lines = [f"line {n} " + "x" * 1000 for n in range(1, 5001)]
    lines[4321] = "fatal: couldn't find remote ref v1"
    assert [(one.rule, one.line) for one in classify(lines)] == [("git_ref", 4322)]


def test_the_evidence_of_a_huge_line_is_cut_around_the_match() -> None:
    (found,) = classify(["a" * 500_000 + " No space left on device " + "b" * 500_000])
    assert len(found.evidence) <= 400 and "No space left" in found.evidence


@given(st.lists(st.text()))
def test_any_text_is_taken(lines: list[str]) -> None:
    for one in classify(lines):
        assert 1 <= one.line <= len(lines)


@given(st.lists(st.text(alphabet="\u0130\u0131\u017f\u212aabc #:\n", max_size=30), max_size=5))
def test_letters_that_change_length_in_lower_case_move_no_line(before: list[str]) -> None:
    found = classify([*(line.replace("\n", " ") for line in before), "manifest unknown"])
    assert [(one.rule, one.line) for one in found] == [("unknown_base", len(before) + 1)]


SAME = "torch.OutOfMemoryError: CUDA out of memory."
PHASES = [
    ("model_loader.py: Loading safetensors checkpoint shards:  12% Completed", "weights are loaded", "weights alone"),
    ('  File "/x/gpu_worker.py", line 1, in determine_available_memory', "memory is profiled", "max-num-batched-tokens"),
    ("[AutoTuner]: Tuning trtllm::fused_moe::gemm1: 0/21", "warmed up and tuned", "autotune"),
    ("Capturing CUDA graphs (mixed prefill-decode): 3%", "graphs are captured", "enforce-eager"),
    ('  File "/x/sglang/srt/x.py", line 1, in capture_model', "graphs are captured", "--disable-cuda-graph"),
    ("INFO:     Application startup complete.", "the server serves", "a request needs more"),
    ("nothing of the kind", "", "max-num-seqs"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "phase", "words"), PHASES)
def test_the_phase_that_stands_last_decides_the_fix(before: str, phase: str, words: str) -> None:
    lines = ["INFO starting", "Loading safetensors checkpoint shards: 0%", before, SAME]
    (found,) = classify(lines if phase else [SAME])
    assert found.rule == "cuda_memory" and (phase in found.phase if phase else not found.phase)
    assert words in found.cause + found.cure


@pytest.mark.parametrize("frame", ["vllm/v1/spec_decode/x.py", "vllm/model_executor/models/step3p5_mtp.py"])
def test_an_exception_that_no_rule_knows_is_told_by_its_phase(frame: str) -> None:
    lines = ["Traceback (most recent call last):", f'  File "/x/{frame}", line 1, in f', "RuntimeError: no such flux"]
    (found,) = read_lines(lines).explanations
    assert (found.rule, found.line, found.general) == ("unknown", 3, True) and "no such flux" in found.cause
    assert "no rule knows" in found.cause and "speculative-config" in found.cure
    report = read_lines(["FluxError: no such flux"])  # nothing is known of it, and nothing is said
    assert not report.explanations and report.first and report.clues


ARGS = (
    "INFO 11-26 12:00:00 [u.py:2] non-default args: {'api_key': ['s'], 'max_model_len': 4096, 'kv_cache_dtype': 'fp8'}"
)


@pytest.mark.parametrize("line", [ARGS, "+ vllm serve /m --api-key sk-1 --max-model-len=4096 --kv-cache-dtype fp8"])
def test_a_fix_says_what_is_set_of_what_it_names(line: str) -> None:
    needs = "ValueError: 24.00 GiB KV cache is needed, which is larger than the available KV cache memory (8.00 GiB)"
    (small,) = read_lines([line, needs]).explanations
    assert "(set in this log: max-model-len: 4096)" in small.cure
    (bug,) = read_lines([line, "FluxError: no such flux"]).explanations
    assert bug.rule == "unknown" and "log sets (kv-cache-dtype: fp8)" in bug.cure.replace("'", "")
    assert "set in this log" not in read_lines([needs]).explanations[0].cure
    assert _Text([line], ()).settings.keys() == {"max-model-len", "kv-cache-dtype"}


@pytest.mark.parametrize(
    "first",
    ["non-default args: {'model_impl': 'transformers', 'enable_lora': False}", "  --model-impl transformers \\"],
)
def test_what_is_unusual_in_a_log_is_left_out_first(first: str) -> None:
    (found,) = read_lines([first, "FluxError: no such flux"]).explanations
    assert found.cure.startswith("without, one by one, what this log sets (model-impl: transformers); else ")
    (shape,) = read_lines([first, "RuntimeError: shape '[-1, 8]' is invalid for input of size 15"]).explanations
    assert "model-impl" in shape.cure and shape.general
    assert not read_lines(["use --model-impl transformers", "FluxError: no such flux"]).explanations


def test_a_field_that_pydantic_refuses_is_named() -> None:
    lines = [
        "gpu_memory_utilization",
        "  Input should be less than or equal to 1 [type=less_than_equal, input_value=85.0]",
    ]
    (found,) = read_lines(["pydantic_core.ValidationError: 1 validation error for CacheConfig", *lines]).explanations
    assert ": gpu_memory_utilization: Input should be less" in found.cause and found.line == 3


def test_each_phase_of_a_rule_is_one() -> None:
    named = {name for rule in ALL for name in rule.phases}
    assert all(any(name in phase.phase for phase in phases()) for name in named)
    assert all(bool(one.cause or one.feature) == bool(one.cure or one.without) == bool(one.link) for one in phases())


# What is known beside a log: of the image (serve/ended.py), the first exception's package, and of the phase.
BESIDE = {*LOCKED, "cuda", "memory", "setter", "package", "without", "feature", "own", "mounted"}


@pytest.mark.parametrize("file", FILES)
def test_a_rule_says_only_what_the_log_or_the_image_has(file: str) -> None:
    for rule in rules([file]):
        groups = [re.findall(r"\(\?P<(\w+)>", pattern.text) for pattern in (*rule.patterns, *rule.facts.values())]
        known = BESIDE.union({"wheel"}, *groups)
        texts = [rule.cause, rule.cure, *(text for own in rule.phases.values() for text in own.values())]
        for text in texts:
            outside = re.sub(r"\[\[.*?\]\]", "", text)
            assert not re.search(r"\{[a-z_]+\}", outside.replace("{wheel}", "")), (
                f"a fact of {rule.rule} outside of [[ ]]"
            )
            assert set(re.findall(r"\{([a-z_]+)\}", text)) <= known, f"a fact of {rule.rule} that nothing gives"
        assert set(rule.facts) <= {name for found in groups for name in found}, rule.rule


KEYS = {"rule", "kinds", "cause", "cure", "link", "match", "codes", "notice", "quoted", "example",
        "except", "beside", "facts", "general", "weak", "mild", "only", "in", "request"}  # fmt: skip


@pytest.mark.parametrize("file", FILES)
def test_a_rule_is_well_formed_and_its_search_is_linear(file: str) -> None:
    for node in load_yaml(f"rules/{file}"):
        name = node["rule"]
        assert set(node) <= KEYS and set(node.get("kinds", KINDS)) <= set(KINDS), name
        for pattern in [*node["match"], *node.get("beside", ()), *node.get("facts", {}).values()]:
            if isinstance(pattern, str):
                assert max(map(len, pattern.split("*"))) >= 5, f"{name}: a text that few lines have"
                continue
            assert set(pattern) == {"re", "has"}, name
            bare = re.sub(r"\\.|\[(?:\\.|[^\]\\])+\]", "x", pattern["re"])
            assert not re.search(r"[*+]|\{\d*,\}", bare), f"{name}: a repetition without an end"
            assert all(int(n) <= 200 for n in re.findall(r"\{(?:\d*,)?(\d+)\}", bare)), f"{name}: a large repetition"
            assert not re.search(r"\)\{\d*,?([3-9]|\d\d)", bare), f"{name}: a repeated group"
            assert not re.search(r"(\.\{\d*,\d{3}\}\??){3}", bare), f"{name}: gaps side by side multiply"


@pytest.mark.parametrize("part", range(12))
def test_no_line_takes_for_ever(part: int) -> None:
    """An expression that backtracks would: the nastiest lines are made of parts of the patterns."""
    words = [one.text for one in PATTERNS[part::12]]
    log = _Text([nasty for word in words for nasty in (word * (800 // len(word) + 1), word[:-1] * 40)], ())
    assert [one.expression.search(log.lines[at]) for one in PATTERNS for at in log._numbers[one.has]]
