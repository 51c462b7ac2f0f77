"""gpt-oss's kernels alone, without a server: FlashInfer's attention with sinks and its fused MoE,
against torch in double precision: `envgen exec dev python3 - < checks/gpt_oss.py`. It prints findings,
and a row for each kernel and number of tokens; a wrong kernel is exit code 1. Without a GPU it
compiles for FLASHINFER_CUDA_ARCH_LIST.

ENVGEN_CHECK_KERNEL (a part of kernels' names), ENVGEN_CHECK_TOKENS (such as 1,16) and
ENVGEN_CHECK_QUICK (1) choose what runs: `envgen exec -e ENVGEN_CHECK_KERNEL=decode dev python3 - <
checks/gpt_oss.py`.

FlashInfer compiles what is not in its cache: `envgen cache warm` before shows the compiler's first
error.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Doc = dict[str, Any]
DEVICE = "cuda"
QUICK = os.environ.get("ENVGEN_CHECK_QUICK") == "1"
KERNEL = os.environ.get("ENVGEN_CHECK_KERNEL", "").lower()
ALL_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 320)
_ASKED = tuple(int(one) for one in os.environ.get("ENVGEN_CHECK_TOKENS", "").split(",") if one)
TOKENS = _ASKED or ((1, 64) if QUICK else ALL_TOKENS)
KINDS = ("decode", "decode, window 128", "prefill", "prefill, window 128")
SINKS = tuple(f"attention with sinks, {kind}" for kind in KINDS)
MOE = ("cutlass_fused_moe MXFP4 x FP8", "cutlass_fused_moe MXFP4 x BF16")
HEADS, KV_HEADS, HEAD, WINDOW = 64, 8, 64, 128
CONTEXT, PAGE, POOL = (
    1024,
    16,
    512,
)  # tokens before, tokens of a page, pages that the sequences share
EXPERTS, TOP, HIDDEN, PADDED, ALPHA, LIMIT = (
    128,
    4,
    2880,
    2944,
    1.702,
    7.0,
)  # padded to a multiple of 128, as vLLM does
MEMORY = 12 << 30  # bytes that the MoE's weights take, in both layouts
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
# The largest difference as a part of the largest value. BF16 stays below 0.01 (seen on an H100).
# FP8 rounds what is between the two layers, too; one wrong scale gives more than 0.1.
BF16_TOLERANCE, FP8_TOLERANCE = 0.02, 0.05
REPEATS = 5 if QUICK else 20


class NotHere(Exception):
    """This kernel can't run here, and why."""


def is_wanted(*names: str) -> bool:
    """Whether one of these kernels is asked for."""
    return any(KERNEL in name.lower() for name in names)


def say(text: str) -> None:
    """Progress."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


class Found:
    """What is printed at the end."""

    def __init__(self) -> None:
        self.rows: list[Doc] = []
        self.findings: list[Doc] = []

    def tell(
        self, severity: str, title: str, seen: str = "", expected: str = "", remedy: str = ""
    ) -> None:
        one: Doc = {"severity": severity, "title": title, "seen": seen[:1500], "expected": expected}
        self.findings.append(dict(one, remedy=remedy) if remedy else one)

    def or_none(self, name: str, work: Callable[[], None]) -> None:
        """A kernel that raises is a finding, and the next one is asked."""
        say(name)
        try:
            work()
        except NotHere as reason:
            self.tell("info", name + ": not run", str(reason))
        except Exception as error:
            say(traceback.format_exc())
            self.tell(
                "error", name + " fails", type(error).__name__ + ": " + str(error), "a result"
            )

    def compare(
        self,
        torch: Any,
        name: str,
        tolerance: float,
        prepare: Callable[[int], Any],
        want: Callable[[int, Any], Any],
    ) -> None:
        """``prepare`` gives a case and what runs it; ``want`` the right result of the case."""
        if not is_wanted(name):
            return
        wrong = []
        for count in TOKENS:
            case, run = prepare(count)
            error = difference(run(), want(count, case))
            times = timed(torch, run)
            row = {"kernel": name, "tokens": count, "error": error, "microseconds": times}
            self.rows.append(row)
            timing = f"{sum(times) / len(times):.1f} us" if times else "not timed"
            say(f"  M={count}: error {error}, {timing}")
            if error is None or error > tolerance:
                wrong.append(
                    f"M={count}: " + ("NaN or infinity" if error is None else f"{error:.4f}")
                )
        expected = f"at most {tolerance:g} of the largest value off torch's float64"
        if wrong:
            self.tell("error", name + ": wrong results", ", ".join(wrong), expected)
        else:
            worst = max(row["error"] for row in self.rows if row["kernel"] == name)
            self.tell(
                "ok", f"{name}: as torch, {worst:.4f} off at most, M = {TOKENS[0]} to {TOKENS[-1]}"
            )


def difference(got: Any, want: Any) -> Any:
    """The largest difference as a part of the largest value; None where the result holds NaN or
    infinity.
    """
    if tuple(got.shape) != tuple(want.shape):
        raise ValueError(f"the result has the shape {tuple(got.shape)}, not {tuple(want.shape)}")
    worst = float((got.double() - want).abs().max() / want.abs().max())
    return round(worst, 6) if math.isfinite(worst) else None


def timed(torch: Any, run: Callable[[], Any]) -> list[float]:
    """Microseconds of each replay of a CUDA graph, as a server runs it; none where it can't be
    captured.
    """
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    try:
        with torch.cuda.stream(side):
            run()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        torch.cuda.synchronize()
        return []
    found = []
    for turn in range(REPEATS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if turn >= 3:
            found.append(round(start.elapsed_time(end) * 1000, 2))
    return found


# --- attention with sinks
# ---------------------------------------------------------------------------------------------


class Sequences:
    """Queries at the ends of sequences that lie in pages; ``window`` tokens are seen, 0: all
    before.
    """

    def __init__(self, torch: Any, device: str, kind: str, tokens: int, window: int) -> None:
        self.window = window
        counts = [1] * tokens if kind == "decode" else [tokens]
        lengths = [max(CONTEXT - 37 * i % 512, 1) if kind == "decode" else CONTEXT // 2 + tokens
                   for i in range(len(counts))]  # fmt: skip
        self.counts, self.lengths = counts, lengths
        self.pages = [-(-length // PAGE) for length in lengths]
        self.tables = torch.randint(
            POOL, (len(counts), max(self.pages)), device=device, dtype=torch.int32
        )

        def normal(*shape: int) -> Any:
            return torch.randn(*shape, device=device, dtype=torch.bfloat16)

        self.q = normal(tokens, HEADS, HEAD)
        self.k, self.v = normal(POOL, PAGE, KV_HEADS, HEAD), normal(POOL, PAGE, KV_HEADS, HEAD)
        # As heavy as hundreds of keys together: a kernel that leaves the sinks out is far off.
        self.sinks = (torch.rand(HEADS, device=device) * 3 + 4).bfloat16()


def attention_in_torch(torch: Any, case: Sequences) -> Any:
    """Each sequence by itself."""
    found, begin = [], 0
    for i, (count, length) in enumerate(zip(case.counts, case.lengths, strict=True)):
        pages = case.tables[i, : case.pages[i]].long()
        k, v = (
            cache[pages].reshape(-1, KV_HEADS, HEAD)[:length].double() for cache in (case.k, case.v)
        )
        q = case.q[begin : begin + count].double().reshape(count, KV_HEADS, -1, HEAD)
        begin += count
        scores = torch.einsum("qhgd,khd->hgqk", q, k) / math.sqrt(HEAD)
        at = torch.arange(length - count, length, device=q.device)[:, None]
        key = torch.arange(length, device=q.device)[None]
        unseen = (key > at) | (key <= at - case.window) if case.window else key > at
        scores = scores.masked_fill(unseen, -math.inf)
        sinks = case.sinks.double().reshape(KV_HEADS, -1, 1, 1).expand(-1, -1, count, 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[
            ..., :-1
        ]  # a sink takes weight, and has no value
        found.append(torch.einsum("hgqk,khd->qhgd", weights, v).reshape(count, -1, HEAD))
    return torch.cat(found)


def attention(torch: Any, found: Found) -> None:
    """FlashInfer's FA2 kernels: those that a GB10 gets."""
    space = torch.empty(128 << 20, dtype=torch.uint8, device=DEVICE)
    for window in (0, WINDOW):
        left = window - 1 if window else -1
        wrapper = importlib.import_module("flashinfer").BatchAttentionWithAttentionSinkWrapper(
            space, backend="fa2", q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16, head_dim_qk=HEAD,
            head_dim_vo=HEAD, window_left=left,
        )  # fmt: skip
        for kind in ("decode", "prefill"):

            def prepare(
                count: int, wrapper: Any = wrapper, kind: str = kind, left: int = left
            ) -> Any:
                case = Sequences(torch, DEVICE, kind, count, left + 1)
                ints = {"device": DEVICE, "dtype": torch.int32}
                starts = [torch.tensor([sum(each[:i]) for i in range(len(each) + 1)], **ints)
                          for each in (case.counts, case.pages)]  # fmt: skip
                indices = torch.cat([case.tables[i, :pages] for i, pages in enumerate(case.pages)])
                last = [
                    length - (pages - 1) * PAGE
                    for length, pages in zip(case.lengths, case.pages, strict=True)
                ]
                wrapper.plan(
                    starts[0], starts[1], indices, torch.tensor(last, **ints), HEADS, KV_HEADS, HEAD, PAGE, causal=True,
                    window_left=left, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16,
                )  # fmt: skip
                sinks = case.sinks.float()
                return case, lambda: wrapper.run(
                    case.q, (case.k, case.v), sinks, 1 / math.sqrt(HEAD)
                )

            name = f"attention with sinks, {kind}" + (f", window {window}" if window else "")
            found.compare(
                torch,
                name,
                BF16_TOLERANCE,
                prepare,
                lambda _, case: attention_in_torch(torch, case),
            )


# --- fused MoE
# --------------------------------------------------------------------------------------------------------


class Mxfp4:
    """Weights as gpt-oss has them: 4 bits, a scale for 32 of them, biases. Up before gate, as
    FlashInfer wants them.
    """

    def __init__(self, torch: Any, device: str, experts: int, hidden: int, padded: int) -> None:
        def random(low: int, high: int, *shape: int) -> Any:
            return torch.randint(low, high, shape, device=device, dtype=torch.uint8)

        self.experts, self.hidden, self.padded = experts, hidden, padded
        self.codes, self.scales, self.biases = [], [], []
        for halves in (2, 1):
            codes = torch.zeros(
                experts, halves, padded, padded // 2, device=device, dtype=torch.uint8
            )
            codes[:, :, :hidden, : hidden // 2] = random(
                0, 256, experts, halves, hidden, hidden // 2
            )
            biases = torch.zeros(experts, halves, padded, device=device)
            biases[:, :, :hidden] = torch.randn(experts, halves, hidden, device=device)
            self.codes.append(codes.flatten(1, 2))
            self.scales.append(random(119, 122, experts, halves * padded, padded // 32))
            self.biases.append(biases.flatten(1, 2).bfloat16())

    def weights(self, torch: Any, layer: int, expert: int) -> Any:
        """Up and gate (0) or down (1) of one expert, in double precision."""
        codes = self.codes[layer][expert]
        table = torch.tensor(FP4, device=codes.device, dtype=torch.double)
        values = table[torch.stack([codes & 15, codes >> 4], -1).long()].reshape(
            codes.shape[0], -1, 32
        )
        scales = torch.exp2(self.scales[layer][expert].double() - 127)
        return (values * scales[..., None]).reshape(codes.shape[0], -1)


class Tokens:
    """Tokens, and the experts that they go to."""

    def __init__(self, torch: Any, device: str, count: int, weights: Mxfp4) -> None:
        self.x = torch.zeros(count, weights.padded, device=device, dtype=torch.bfloat16)
        self.x[:, : weights.hidden] = 3 * torch.randn(
            count, weights.hidden, device=device, dtype=torch.bfloat16
        )
        best = (torch.rand(count, weights.experts, device=device).argsort(-1) / 8).topk(TOP)
        self.gates, self.experts = best.values.softmax(-1).float(), best.indices


def moe_in_torch(torch: Any, case: Tokens, weights: Mxfp4, x: Any) -> Any:
    """Each expert by itself. ``x``: the tokens as the kernel gets them."""
    found = torch.zeros(x.shape, device=x.device, dtype=torch.double)
    for expert in case.experts.unique().tolist():
        rows, slots = (case.experts == expert).nonzero(as_tuple=True)
        both = (
            x[rows].double() @ weights.weights(torch, 0, expert).T
            + weights.biases[0][expert].double()
        )
        up, gate = both.chunk(2, -1)
        gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
        middle = gate * (ALPHA * gate).sigmoid() * (up + 1)
        fed = middle @ weights.weights(torch, 1, expert).T + weights.biases[1][expert].double()
        found.index_add_(0, rows, case.gates[rows, slots, None].double() * fed)
    return found


def fp8(torch: Any, x: Any) -> Any:
    """``x`` rounded to MXFP8: a power of two for 32 values, the smallest one that leaves none above
    448.
    """
    blocks = x.double().reshape(x.shape[0], -1, 32)
    largest = blocks.abs().amax(-1, keepdim=True).clamp(min=2.0**-100)
    scale = torch.exp2(torch.ceil(torch.log2(largest / 448)))
    return ((blocks / scale).float().to(torch.float8_e4m3fn).double() * scale).reshape(x.shape)


def moe(torch: Any, found: Found) -> None:
    """MXFP4 x FP8 where the GPU is a Blackwell, MXFP4 x BF16 where it is a Hopper: FlashInfer has
    no others.
    """
    major, minor = torch.cuda.get_device_capability()
    free = torch.cuda.mem_get_info()[0]
    if major not in (9, 10, 11, 12):
        raise NotHere(f"FlashInfer has no such kernel for compute capability {major}.{minor}")
    if free < MEMORY:
        raise NotHere(
            f"it needs {MEMORY >> 30} GiB of the GPU's memory, {free / (1 << 30):.1f} GiB are free"
        )
    flashinfer = importlib.import_module("flashinfer")
    fused = importlib.import_module("flashinfer.fused_moe")
    weights = Mxfp4(torch, DEVICE, EXPERTS, HIDDEN, PADDED)
    each = {name: torch.full((EXPERTS,), value, device=DEVICE) for name, value in
            (("swiglu_alpha", ALPHA), ("swiglu_beta", 1.0), ("swiglu_limit", LIMIT))}  # fmt: skip
    if major == 9:
        codes = [
            fused.interleave_moe_weights_for_sm90_mixed_gemm(one, "fp4") for one in weights.codes
        ]
        scales = [
            fused.interleave_moe_scales_for_sm90_mixed_gemm(one).view(torch.int32)
            for one in weights.scales
        ]
        words = dict(each, use_w4_group_scaling=True, quant_scales=scales)
    else:
        codes = [one.view(torch.long) for one in weights.codes]
        scales = [
            flashinfer.block_scale_interleave(one).reshape(one.shape).view(torch.int32)
            for one in weights.scales
        ]
        ones = torch.ones(EXPERTS, device=DEVICE)
        words = dict(
            each, use_mxfp8_act_scaling=True, quant_scales=[scales[0], ones, scales[1], ones]
        )

    def prepare(count: int) -> Any:
        case = Tokens(torch, DEVICE, count, weights)
        x, more = (case.x, {}) if major == 9 else (None, {})
        if x is None:
            x, more["input_sf"] = flashinfer.mxfp8_quantize(case.x, True, 32)
        chosen = case.experts.int()
        out = torch.empty(count, PADDED, device=DEVICE, dtype=torch.bfloat16)

        def run() -> Any:
            fused.cutlass_fused_moe(
                x, chosen, case.gates, codes[0], codes[1], torch.bfloat16, fc1_expert_biases=weights.biases[0],
                fc2_expert_biases=weights.biases[1], output=out, **words, **more,
            )  # fmt: skip
            return out

        return case, run

    def want(_count: int, case: Tokens) -> Any:
        return moe_in_torch(torch, case, weights, case.x if major == 9 else fp8(torch, case.x))

    form, tolerance = ("BF16", BF16_TOLERANCE) if major == 9 else ("FP8", FP8_TOLERANCE)
    found.compare(torch, "cutlass_fused_moe MXFP4 x " + form, tolerance, prepare, want)
    if major == 9:
        found.tell(
            "info",
            "cutlass_fused_moe MXFP4 x FP8: not run",
            "on Hopper it wants other weights (Humming)",
        )
    else:
        found.tell(
            "info",
            "cutlass_fused_moe MXFP4 x BF16: not run",
            "FlashInfer has that kernel for Hopper alone",
        )


# --- without a GPU
# ----------------------------------------------------------------------------------------------------


def specs(torch: Any) -> dict[str, Callable[[], Any]]:
    """What makes each module that a GB10 would compile."""
    sinks = importlib.import_module(
        "flashinfer.jit.attention.modules"
    ).gen_batch_prefill_attention_sink_module
    words = ("fa2", torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.int32, HEAD, HEAD, 0)
    return {
        "attention with sinks": functools.partial(sinks, *words, False),
        f"attention with sinks, window {WINDOW}": functools.partial(sinks, *words, True),
        "cutlass_fused_moe": importlib.import_module(
            "flashinfer.jit.fused_moe"
        ).gen_cutlass_fused_moe_sm120_module,
    }


def compile_only(torch: Any, found: Found) -> None:
    """Nothing runs: whether it compiles is still an answer."""
    why = "no GPU in this container"
    nvcc = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
    if shutil.which("nvcc") is None and not nvcc.exists():
        found.tell("info", "gpt-oss's kernels: not run, not compiled", why + ", and no nvcc")
        return
    archs = os.environ["FLASHINFER_CUDA_ARCH_LIST"]
    for name, make in specs(torch).items():

        def build(name: str = name, make: Callable[[], Any] = make) -> None:
            began, spec = time.time(), make()
            try:
                spec.build(True, need_lock=True)
            except (
                Exception
            ) as error:  # what the compiler said went by; `cache warm` shows its first error
                again = f"envgen cache warm {spec.name}"
                found.tell(
                    "error", f"{name} does not compile", str(error), f"code for {archs}", again
                )
                return
            seconds = time.time() - began
            found.tell("info", f"{name}: compiled for {archs} in {seconds:.0f} s, not run", why)

        found.or_none(name, build)


def main() -> Doc:
    """The document that is printed."""
    if sys.path and sys.path[0] == "":
        del sys.path[0]  # a folder called flashinfer in the current one is not a package
    found = Found()
    try:
        torch = importlib.import_module("torch")
        if not torch.cuda.is_available():
            os.environ.setdefault(
                "FLASHINFER_CUDA_ARCH_LIST", "12.1a"
            )  # FlashInfer reads it when it is imported
        version = importlib.import_module("flashinfer").__version__
    except ImportError as error:
        found.tell("info", "gpt-oss's kernels: not run", str(error))
        return vars(found)
    if not is_wanted(*SINKS, *MOE):
        found.tell("info", f"no kernel has {KERNEL!r} in its name", ", ".join((*SINKS, *MOE)))
        return vars(found)
    say(f"FlashInfer {version}, torch {torch.__version__}")
    if not torch.cuda.is_available():
        compile_only(torch, found)
        return vars(found)
    torch.manual_seed(0)
    with torch.no_grad():
        if is_wanted(*SINKS):
            found.or_none("attention with sinks", lambda: attention(torch, found))
        if is_wanted(*MOE):
            found.or_none("cutlass_fused_moe", lambda: moe(torch, found))
    return vars(found)


if __name__ == "__main__":
    # What packages print while they compile is progress; the document has stdout for itself.
    with os.fdopen(os.dup(1), "w") as printed:
        os.dup2(2, 1)
        report = main()
        json.dump(report, printed)
    sys.exit(any(finding["severity"] == "error" for finding in report["findings"]))
