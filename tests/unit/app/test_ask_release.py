"""What `up` asks before anything is started: the answers are recordings of real releases."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.app.predict import ask_release, choose_service, vllm_words
from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.engine.values import ExecResult, Image
from envgen.errors import EngineError, UsageError
from envgen.profile.load import load_project
from envgen.profile.model import Profile
from envgen.profile.service import Service
from envgen.serve.preflight import PreflightError
from envgen.text import KILLED

ANSWERS = Path(__file__).parents[1] / "predict" / "answers"
TEXT = """\
version: 1
name: t
default_profile: prod
profiles:
  prod:
    mode: production
    base: {image: "x:1"}
    cuda: {arch_list: 12.1a}
    services:
      dev: {command: [sleep, infinity]}
      serve:
        command: [vllm, serve, openai/gpt-oss-120b]
        ports: ["8000:8000"]
        ready: {model: openai/gpt-oss-120b, port: 8000, expect: {moe: Using Marlin backend}}
"""


class Recorded:
    """An engine whose temporary container answers with a recording."""

    def __init__(self, answer: dict[str, Any] | None, code: int = 0) -> None:
        self.answer, self.code = answer, code
        self.asked: list[Any] = []
        self.runtimes: tuple[str, ...] = ()
        self.gpus: list[Any] = []
        self.lacking = 0  # starts with a GPU that fail

    def containers(self, *_: Any, **__: Any) -> tuple[()]:
        return ()

    def image(self, name: str) -> Image:
        return Image("sha256:1", {}, "", 1, "arm64", (name,), {})

    def volume(self, _name: str) -> None:
        return None

    def info(self) -> Any:
        return SimpleNamespace(local=True, rootless=False, runtimes=self.runtimes, cdi_devices=(), api_version="1.50")

    def run_once(self, _image: str, _argv: Any, *, stdin: bytes, gpus: Any = (), **_: Any) -> ExecResult:
        self.gpus.append(list(gpus))
        if gpus and self.lacking:
            raise EngineError("could not select device driver")
        envelope = json.loads(stdin)
        self.asked.append(envelope["request"])
        document = f"{envelope['mark']} {json.dumps({'answer': self.answer})}\n" if self.answer else ""
        return ExecResult(self.code, document.encode(), b"Killed")


def recorded(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ANSWERS / f"{name}.json").read_text(encoding="utf-8"))
    return document


def profile(tmp_path: Path, text: str = TEXT) -> Profile:
    (tmp_path / "envgen.yaml").write_text(text, encoding="utf-8")
    return load_project(tmp_path).project.profiles["prod"]


def ask(tmp_path: Path, engine: Recorded, service: str = "serve", text: str = TEXT) -> list[str]:
    return ask_release(LiveService(Deployment(profile(tmp_path, text), tmp_path).with_cached(engine=engine), service))


def test_a_refusal_stops_up_with_the_reasons_and_a_way_on(tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as caught:
        ask(tmp_path, Recorded(recorded("0.14.0-flashinfer")))
    assert caught.value.exit_code == 6
    said = str(caught.value)
    assert "sink setting not supported" in said
    assert "`envgen up serve --profile prod --no-predict`" in said


def test_checkouts_that_are_not_installed_yet_are_asked_after_the_first_start(tmp_path: Path) -> None:
    mounted = "mode: development\n    sources: {vllm: {package: vllm, distribution: vllm, origin: {checkout: ../v}}}\n"
    engine = Recorded(recorded("0.32.0-two-gpus"))
    (note,) = ask(tmp_path, engine, text=TEXT.replace("mode: production\n", mounted))
    assert "vLLM is queried (`predict`) from the next start on" in note and engine.asked == []


def test_what_fits_is_a_note_and_the_target_of_the_profile_is_asked_for(tmp_path: Path) -> None:
    engine = Recorded(recorded("0.32.0-two-gpus"))
    notes = ask(tmp_path, engine)
    assert notes[0] == "on NVIDIA GB10 (assumed: cuda.arch_list) vLLM would use attention TRITON_ATTN, moe MARLIN"
    assert engine.gpus == [[]] and engine.asked[0]["real"] is False
    assert any("ready.expect.moe" in note and "Using 'MARLIN' Mxfp4 MoE backend." in note for note in notes)
    assert engine.asked[0]["gpu"]["capability"] == [12, 1] and engine.asked[0]["words"] == ["openai/gpt-oss-120b"]


def test_a_variable_that_the_release_does_not_know_is_told_in_its_own_words(tmp_path: Path) -> None:
    answer, text = recorded("0.32.0-flashinfer"), "Unknown vLLM environment variable detected: VLLM_OLD"
    answer["lines"].append({"step": "configuration", "level": "WARNING", "logger": "vllm.envs", "text": text})
    assert text in ask(tmp_path, Recorded(answer))


def test_a_gpu_that_the_engine_has_is_asked(tmp_path: Path) -> None:
    answer = recorded("0.32.0-two-gpus")
    answer["platform"] = {"name": "NVIDIA H100", "capability": [9, 0], "memory": 80 << 30, "count": 1, "real": True}
    engine = Recorded(answer)
    engine.runtimes = ("nvidia", "runc")
    notes = ask(tmp_path, engine)
    assert notes[0].startswith("on NVIDIA H100 vLLM would use ")
    assert engine.asked[0]["real"] is True
    assert engine.gpus == [[{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]]


def test_a_gpu_that_the_engine_can_not_give_is_assumed(tmp_path: Path) -> None:
    engine = Recorded(recorded("0.32.0-two-gpus"))
    engine.runtimes, engine.lacking = ("nvidia", "runc"), 1
    assert "assumed: cuda.arch_list" in ask(tmp_path, engine)[0]
    assert len(engine.gpus) == 2 and not engine.gpus[1]


def test_before_a_start_the_image_is_asked_not_the_container_that_it_replaces(tmp_path: Path) -> None:
    engine = Recorded(recorded("0.32.0-two-gpus"))
    setattr(engine, "containers", lambda *_, **__: pytest.fail("the old container was looked for"))  # noqa: B010
    assert ask(tmp_path, engine)


def test_memory_is_a_note_and_so_is_too_little_of_it_where_none_is_asked_for(tmp_path: Path) -> None:
    answer = recorded("0.32.0-two-gpus")
    config = {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 64}
    answer["size"] = {
        "config": config, "weights": 1 << 50, "context": 4096, "cache_dtype": "auto", "dtype": "bfloat16", "share": 0.7,
        "fixed": None, "ranks": 1, "stages": 1, "sequences": 2, "batched": 8192, "draft": False,
    }  # fmt: skip
    notes = [one for one in ask(tmp_path, Recorded(answer)) if one.startswith("memory: ")]
    assert notes[0].startswith("memory: weights 1048576.0 GiB") and "about 0 tokens fit" in notes[0]
    assert "at least 1048582.0 GiB needed" in notes[1]
    told = TEXT.replace("        ready:", "        needs_memory: 1GiB\n        ready:")
    assert len([one for one in ask(tmp_path, Recorded(answer), text=told) if one.startswith("memory: ")]) == 1
    answer["size"]["share"] = "much"
    assert not [one for one in ask(tmp_path, Recorded(answer)) if one.startswith("memory: ")]


def test_a_release_that_can_not_be_asked_is_a_note(tmp_path: Path) -> None:
    notes = ask(tmp_path, Recorded(None, 137))
    assert notes == [f"vLLM could not be queried: no answer: {KILLED}"]
    [note] = ask(tmp_path, Recorded(None, 127))
    assert "cannot start python3 in the container" in note


def test_only_vllm_for_a_gpu_is_asked(tmp_path: Path) -> None:
    engine = Recorded(recorded("0.14.0-flashinfer"))
    assert ask(tmp_path, engine, "dev") == []
    assert engine.asked == []


CPU = TEXT.replace("    mode:", "    gpu: none\n    mode:")
ANSWER: dict[str, Any] = {"asked": {}, "refusals": [], "unasked": [], "notes": [], "lines": []}
# What the parsers of 0.14.0, 0.30.0 and 0.33.0 say, and what is said of the project file.
REFUSALS = {
    "argument --max-model-len: invalid human_readable_int_or_auto value: '3x'":
        "refuses services.serve.args.max-model-len: invalid human_readable_int_or_auto value: '3x'",
    "argument --dtype: invalid choice: 'bf16' (choose from 'auto', 'half')":
        "refuses services.serve.args.dtype: invalid choice: 'bf16' (choose from 'auto', 'half')",
    "unrecognized arguments: --max-modl-len 3; similar: --max-model-len":
        "refuses services.serve.args.max-modl-len: unrecognized arguments: --max-modl-len 3; similar: --max-model-len",
    "unrecognized arguments: x": "refuses services.serve.args.enforce-eager: unrecognized arguments: x",
    "argument --speculative-config/-sc: Value {a cannot be converted to <function loads at 0x7f>.":
        "refuses services.serve.args.speculative-config: Value {a cannot be converted to <function loads",
    "argument --compilation-config/-cc: 1 validation error for CompilationConfig\npass_config.fuse_norm_quant\n  Input"
    " should be a valid boolean [type=bool_parsing, input_value='maybe', input_type=str]\n    "
    "For further information visit x":
        'refuses services.serve.args."compilation-config.pass_config.fuse_norm_quant": pass_config.fuse_norm_quant'
        " Input should be a valid boolean",
    "argument --gpu-memory-utilization/--device-memory-utilization: invalid float value: 'lots'":
        "refuses services.serve.args.gpu_memory_utilization: invalid float value: 'lots'",
    "invalid tool-call-parser: nope (this release has hermes)":
        "refuses services.serve.args.tool-call-parser: invalid tool-call-parser: nope (this release has hermes)",
    "argument --port: invalid int value: 'x'": "refuses services.serve.command: invalid int value: 'x'",
    "argument --other: invalid int value: 'x'": "refuses its settings (arguments): argument --other: invalid int value",
}  # fmt: skip
VALUES = {
    "max-model-len": "3x", "dtype": "bf16", "max-modl-len": 3, "enforce-eager": "x", "speculative-config": "{a",
    "compilation-config.pass_config.fuse_norm_quant": "maybe", "gpu_memory_utilization": "lots",
    "tool-call-parser": "nope",
}  # fmt: skip
WRONG = CPU.replace("gpt-oss-120b]", 'gpt-oss-120b, --port, "8000"]').replace(
    "        ports:", f"        args: {json.dumps(VALUES)}\n        ports:"
)


@pytest.mark.parametrize("message", REFUSALS)
def test_a_value_that_the_release_refuses_is_told_before_a_server_is_replaced(tmp_path: Path, message: str) -> None:
    engine = Recorded({**ANSWER, "refusals": [{"step": "arguments", "message": message}]})
    deployment = Deployment(profile(tmp_path, WRONG), tmp_path).with_cached(engine=engine)
    with pytest.raises(PreflightError) as caught:
        ask_release(LiveService(deployment, "serve"), replaced=True)
    assert engine.asked[0]["gpu"] is None and f"this vLLM {REFUSALS[message]}" in str(caught.value)
    assert "`envgen up serve --profile prod --no-predict` starts it anyway" in str(caught.value)
    if "args.dtype" in REFUSALS[message]:
        assert "`envgen up serve --profile prod --set services.serve.args.dtype=null`" in str(caught.value)
    if "similar" in message:
        assert "write args.max-model-len; " in str(caught.value)
    assert (
        ask_release(LiveService(deployment, "serve")) == [] and len(engine.asked) == 1
    )  # a first start says it itself


@pytest.mark.parametrize("answer", [None, {"refusals": 7}, {**ANSWER, "refusals": [7]}, ANSWER])
def test_without_a_gpu_what_can_not_be_asked_stops_nothing(tmp_path: Path, answer: Any) -> None:
    deployment = Deployment(profile(tmp_path, CPU), tmp_path).with_cached(engine=Recorded(answer))
    notes = ask_release(LiveService(deployment, "serve"), replaced=True)
    assert notes == [] if answer is ANSWER else notes[0].startswith("vLLM could not be queried")


def test_the_words_of_both_ways_to_start_a_server() -> None:
    assert vllm_words(Service(("vllm", "serve", "m"), args={"port": "1"})) == ("m", "--port", "1")
    server = ("python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m")
    assert vllm_words(Service(server)) == ("--model", "m")


def test_the_one_service_that_starts_vllm_needs_no_name(tmp_path: Path) -> None:
    found = profile(tmp_path)
    assert choose_service(found, None) == "serve"
    with pytest.raises(UsageError, match="service dev starts no `vllm serve`") as caught:
        choose_service(found, "dev")
    assert "envgen predict serve --profile prod" in str(caught.value)
