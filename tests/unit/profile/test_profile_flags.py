"""The words of `args`: what vLLM's parser reads is what the file says (tests/process/test_flags.py asks it)."""

from __future__ import annotations

import pytest

from envgen.profile.flags import ArgValue, in_words, long_name, parsed, words_of
from envgen.profile.service import Service
from envgen.profile.values import CudaArchList


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("enforce-eager", True, "--enforce-eager"),
        ("enable-prefix-caching", False, "--no-enable-prefix-caching"),
        ("trust_remote_code", False, "--no-trust_remote_code"),
        ("disable-log-stats", False, ""),  # the release has no --no- for it
        ("headless", False, ""),
        ("default-chat-template-kwargs.thinking", True, "--default-chat-template-kwargs.thinking true"),
        ("compilation-config.pass_config.fuse", False, "--compilation-config.pass_config.fuse false"),
        ("hf_overrides.a_b", ("1", "x"), '--hf_overrides.a_b [1,"x"]'),
        ("max-model-len", "-1", "--max-model-len=-1"),
        ("served-model-name", ("a", "b"), "--served-model-name a b"),
        ("served-model-name", ("-a",), "--served-model-name=-a"),
        ("middleware", ("a", "b"), "--middleware a --middleware b"),
        ("allowed-origins", ("*",), '--allowed-origins ["*"]'),
        ("device-ids", ("0", "2"), "--device-ids 0,2"),
    ],
)  # fmt: skip
def test_the_words_of_a_flag(name: str, value: ArgValue, words: str) -> None:
    assert " ".join(words_of(name, value, of_vllm=True)) == words


def test_another_program_gets_no_form_of_vllm_s() -> None:
    words = [words_of(name, value, of_vllm=False) for name, value in (("x", False), ("middleware", ("a", "b")))]
    assert words == [[], ["--middleware", "a", "b"]]


@pytest.mark.parametrize(
    ("command", "value"),
    [
        ("vllm serve m --port 8001", "8001"),
        ("vllm serve m --port=8001 --x", "8001"),
        ("vllm serve m --served x --port=8001", "8001"),
        ("vllm serve m --port 8000 --max-num-seqs 1 --port 9000", "9000"),
        ("vllm serve m --served_model_name a b -tp 2", None),
    ],
)
def test_a_flag_of_the_command_counts(command: str, value: str | None) -> None:
    service = Service(command=tuple(command.split()))
    assert service.flag("port") == value


def test_short_and_repeated_flags_of_a_command() -> None:
    words = ["vllm", "serve", "m", "--served_model_name", "a", "b", "-tp", "2", "--enforce-eager"]
    names = ("served-model-name", "tensor-parallel-size", "enforce-eager", "port")
    assert [in_words(words, name) for name in names] == [("a", "b"), "2", True, None]
    assert Service(command=tuple(words), args={"data-parallel-size": "3", "pipeline_parallel_size": "2"}).ranks == 12


def test_a_level_of_optimisation_is_a_flag_with_a_value() -> None:
    words = ["vllm", "serve", "m", "-O2", "--port", "1"]
    assert [(flag.word, flag.values) for flag in parsed(words)[3:]] == [("-O2", ("2",)), ("--port", ("1",))]
    assert in_words(words, long_name("-O")) == "2" and in_words(["-O4"], long_name("-O")) is None


@pytest.mark.parametrize(
    ("archs", "shares"),
    [("8.7", True), ("11.0", True), ("12.1a", True), ("9.0a 12.1a", True), ("8.6", False), ("9.0a 12.0f", False)],
)
def test_which_gpus_use_the_memory_of_the_machine(archs: str, shares: bool) -> None:
    assert CudaArchList.parse(archs).shares_memory is shares
