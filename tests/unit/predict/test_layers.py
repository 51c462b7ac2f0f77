"""What the layers of a model hold, read from objects of the release's shape; and what judge makes of it."""

from __future__ import annotations

import argparse
import types
from pathlib import Path
from typing import Any

import pytest

from envgen.inside.predict import release
from envgen.inside.predict.layers import chosen, subject
from envgen.inside.predict.main import answer


def thing(name: str, module: str = "x", **attributes: Any) -> Any:
    return type(name, (), {"__module__": module})() if not attributes else _with(thing(name, module), attributes)


def _with(one: Any, attributes: dict[str, Any]) -> Any:
    vars(one).update(attributes)
    return one


def test_each_layer_tells_its_kernels_once() -> None:
    kernel = thing("FlashInferCutlassNvFp4LinearKernel", "vllm.model_executor.kernels.linear.nvfp4.flashinfer")
    backend = types.SimpleNamespace(get_name=lambda: "FLASHINFER")
    attention = _with(thing("Attention"), {"impl": 1, "get_attn_backend": lambda: backend})
    linear = _with(thing("Linear"), {"quant_method": thing("ModelOptNvFp4LinearMethod", kernel=kernel)})
    moe = types.SimpleNamespace(name="FLASHINFER_CUTLASS")
    experts = _with(thing("Experts"), {"quant_method": thing("ModelOptNvFp4FusedMoE", nvfp4_backend=moe)})
    gdn = _with(thing("GDN"), {"mamba_type": "gdn", "gdn_prefill_backend": "flashinfer", "gdn_decode_kernel": "cuda"})
    config = types.SimpleNamespace(mamba_config=types.SimpleNamespace(backend=types.SimpleNamespace(value="triton")))
    model = types.SimpleNamespace(
        modules=lambda: [attention, linear, linear, experts, gdn, thing("MambaMixer2", mamba_type=2)]
    )
    assert {step: one["backend"] for step, one in chosen(model, config).items()} == {
        "attention": "FLASHINFER", "moe": "FLASHINFER_CUTLASS", "linear": "FlashInferCutlassNvFp4LinearKernel",
        "mamba": "GDN prefill flashinfer, decode cuda + triton",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("logger", "text", "step"),
    [
        ("vllm.model_executor.kernels.linear", "Using X for NVFP4 GEMM", "linear"),
        ("vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn", "Using FlashInfer GDN prefill kernel", "mamba"),
        ("vllm.platforms.cuda", "Using backend AttentionBackendEnum.FLASH_ATTN for vit attention", "vision"),
        ("vllm.platforms.cuda", "Using FLASHINFER attention backend", "attention"),
        ("vllm.config.model", "head dtype: torch.bfloat16", ""),
    ],
)
def test_a_line_has_one_subject(logger: str, text: str, step: str) -> None:
    assert subject({"logger": logger, "text": text}) == step


def test_a_build_for_cpus_is_asked_for_its_arguments_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a module for each kind of CPU, of which torch can load one: loading all ends the process."""
    (tmp_path / "_C_AVX2.abi3.so").touch()
    vllm = {"file": str(tmp_path / "__init__.py"), "version": "0.30.0"}
    monkeypatch.setattr("envgen.inside.predict.main.release", lambda found, _lines: found.update(vllm=vllm))
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-model-len", type=int)
    monkeypatch.setattr("envgen.inside.predict.config.serve_parser", lambda: ("here", parser))
    why = "a build for CPUs, which has no kernels for a GPU"
    request = {"words": ["--max-model-len", "3"], "gpu": None}
    assert answer(request)["unasked"] == [{"step": "this vLLM", "why": why}] and answer(request)["refusals"] == []
    wrong = {**request, "words": ["--max-modl-len", "3"]}
    said = "unrecognized arguments: --max-modl-len 3; similar: --max-model-len"
    assert answer(wrong)["refusals"] == [{"step": "arguments", "message": said}]


@pytest.mark.parametrize(("there", "missing"), [({"numpy"}, ["humming-kernels"]), ({"numpy", "humming-kernels"}, [])])
def test_what_the_release_requires_and_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, there: set[str], missing: list[str]
) -> None:
    wanted = ["numpy", 'b12x; extra == "b12x"', 'pywin32; sys_platform == "win32"', "humming-kernels==0.1.19"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: wanted)
    monkeypatch.setattr("importlib.metadata.distributions", lambda name: [1] if name in there else [])
    assert release.lacking() == missing
