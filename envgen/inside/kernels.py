"""Asks the packages themselves. Runs inside the container, Python 3.8 and later, standard library only."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Tuple

Doc = Dict[str, Any]
Kernel = Callable[[Any], Callable[[], Any]]  # prepares a case; what it returns runs the kernel
NO_GPU = "no GPU in this container"
HEADS, KV_HEADS, HEAD, WINDOW = 64, 8, 64, 128
WINDOWS = (0, WINDOW)  # gpt-oss has layers of both kinds
EXPERTS, TOP, HIDDEN, ALPHA, LIMIT = 128, 4, 2880, 1.702, 7.0
CONTEXT, PAGE, POOL = 1024, 16, 512  # tokens before, tokens of a page, pages that the sequences share
# The largest difference, as a part of the largest value: kernels that round to bfloat16 stay below 0.01.
TOLERANCE = 0.02
MEMORY = 12 << 30  # bytes that the weights of the MoE take
DEVICE = "cuda"
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


class NotHere(Exception):
    """This kernel can't run here, and why."""


def import_of(package: str) -> Doc:
    module = importlib.import_module(package)
    path = getattr(module, "__file__", None)
    version = str(getattr(module, "__version__", ""))
    return {"version": version, "file": path, "path": list(getattr(module, "__path__", []))}


def ask_fused_moe() -> Doc:
    """vllm/utils/flashinfer.py holds these since 0.11."""
    ours = importlib.import_module("vllm.utils.flashinfer")
    found = {}
    for name in ("has_flashinfer", "has_flashinfer_moe", "has_flashinfer_cutlass_fused_moe"):
        if hasattr(ours, name):
            found[name] = bool(getattr(ours, name)())
    return found


def ask_gpu() -> Doc:
    torch = importlib.import_module("torch")
    found: Doc = {"torch": torch.__version__, "cuda": torch.version.cuda, "available": bool(torch.cuda.is_available())}
    if found["available"]:
        found["count"] = torch.cuda.device_count()
        found["name"] = torch.cuda.get_device_name(0)
        found["capability"] = list(torch.cuda.get_device_capability(0))
        found["torch_archs"] = list(torch.cuda.get_arch_list())
        found["free"], found["total"] = torch.cuda.mem_get_info(0)
    return found


def ask_kernel() -> Doc:
    """Compile and run FlashInfer's smallest kernel in a temporary cache, and compare with torch."""
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return {"skipped": NO_GPU}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FLASHINFER_WORKSPACE_BASE"] = folder  # else a compiled kernel of before would answer
        flashinfer = importlib.import_module("flashinfer")
        torch.manual_seed(0)
        x = torch.randn(4, 256, device="cuda", dtype=torch.float16)
        began = time.time()
        got = flashinfer.activation.silu_and_mul(x)
        torch.cuda.synchronize()
        seconds = time.time() - began
        wanted = torch.nn.functional.silu(x[:, :128].float()) * x[:, 128:].float()
        worst = float((got.float() - wanted).abs().max())
    return {"kernel": "silu_and_mul", "seconds": round(seconds, 1), "worst": worst, "right": worst < 0.02}


QUESTIONS: Dict[str, Callable[[], Doc]] = {
    "vllm": lambda: import_of("vllm"), "flashinfer": lambda: import_of("flashinfer"),
    "fused_moe": ask_fused_moe, "gpu": ask_gpu, "kernel": ask_kernel,
    # The smallest and the largest number of tokens; `envgen bench --kernels` asks for more.
    "attention": lambda: compared({"kernel": "attention", "tokens": [4, 320], "seconds": 540}),
    "moe": lambda: compared({"kernel": "moe", "tokens": [4, 320], "seconds": 270}),
}  # fmt: skip


def answer(request: Doc) -> Doc:
    """A ``question``, or a ``kernel``. An import may hang, print, exit or crash: that is the answer."""
    if "kernel" in request:
        return compared(request)
    if sys.path and sys.path[0] == "":
        del sys.path[0]  # as a console script: not what happens to lie in the current folder
    began = time.time()
    found = QUESTIONS[request["question"]]()
    return {"answer": found, "seconds": round(time.time() - began, 2)}


def compared(request: Doc) -> Doc:
    """``kernel`` (attention or moe) with each number of ``tokens``, until ``seconds`` are over."""
    table = Table(str(request["kernel"]), time.time() + float(request["seconds"]))
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        return table.skip("", str(error)).document("")
    if not torch.cuda.is_available():
        return table.skip("", NO_GPU).document("")
    torch.manual_seed(0)
    # A compiled kernel of before must not answer for attention.
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        os.environ["FLASHINFER_WORKSPACE_BASE"] = folder
        {"attention": attention, "moe": moe}[table.kernel](torch, table, request["tokens"])
    return table.document(torch.cuda.get_device_name(0))


class Table:
    """What was found: a row a kernel and shape."""

    def __init__(self, kernel: str, deadline: float) -> None:
        self.kernel, self.deadline = kernel, deadline
        self.rows: List[Doc] = []
        self.not_run: List[Doc] = []

    def skip(self, by: str, why: str, failed: bool = False) -> Table:
        self.not_run.append({"by": by, "why": why[:600], "failed": failed})
        return self

    def prepared(self, by: str, prepare: Callable[[], Any]) -> Any:
        """What ``prepare`` returns; None when the kernel can't run here."""
        try:
            return prepare()
        except (ImportError, AttributeError, NotHere) as error:
            self.skip(by, str(error))
        except Exception as error:
            self.skip(by, type(error).__name__ + ": " + str(error), failed=True)
        return None

    def measure(self, torch: Any, kernels: Dict[str, Kernel], shape: str, case: Any, want: Any) -> None:
        """A row for each kernel. One that raises is not asked again."""
        for by in list(kernels):
            if time.time() > self.deadline:
                self.skip(by, "no time was left for " + shape)
                continue
            try:
                run = kernels[by](case)
                wrong = difference(torch, run(), want)
                microseconds = median(torch, run)
            except Exception as error:
                self.skip(by, shape + ": " + type(error).__name__ + ": " + str(error), failed=True)
                del kernels[by]
                continue
            self.rows.append({"by": by, "shape": shape, "error": wrong, "tolerance": TOLERANCE,
                              "right": wrong is not None and wrong <= TOLERANCE,
                              "microseconds": microseconds})  # fmt: skip

    def document(self, gpu: str) -> Doc:
        return {"kernel": self.kernel, "gpu": gpu, "rows": self.rows, "not_run": self.not_run}


def difference(torch: Any, got: Any, want: Any) -> Any:
    """The largest difference as a part of the largest value; None where the result holds NaN or infinity."""
    if tuple(got.shape) != tuple(want.shape):
        raise ValueError("the result has the shape %s, not %s" % (tuple(got.shape), tuple(want.shape)))
    worst = float((got.double() - want).abs().max() / want.abs().max())
    return worst if math.isfinite(worst) else None


def median(torch: Any, run: Callable[[], Any]) -> Any:
    """Microseconds of one replay of a CUDA graph, as a server runs it; None where it can't be captured."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    try:
        with torch.cuda.stream(side):
            run()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        return None
    found = []
    for turn in range(23):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if turn >= 3:
            found.append(start.elapsed_time(end) * 1000)
    return round(statistics.median(found), 1)


# --- attention with sinks ---------------------------------------------------------------------------------------------


class Sequences:
    """Queries at the ends of sequences that lie in pages; ``window`` tokens are seen, 0: all before."""

    def __init__(self, torch: Any, kind: str, tokens: int, window: int) -> None:
        self.window = window
        counts = [1] * tokens if kind == "decode" else [tokens]
        lengths = [max(CONTEXT - 37 * i % 512, 1) if kind == "decode" else CONTEXT // 2 + tokens
                   for i in range(len(counts))]  # fmt: skip
        self.counts, self.lengths = counts, lengths
        self.pages = [-(-length // PAGE) for length in lengths]
        self.tables = torch.randint(POOL, (len(counts), max(self.pages)), device=DEVICE, dtype=torch.int32)

        def normal(*shape: int) -> Any:
            return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)

        self.q = normal(tokens, HEADS, HEAD)
        self.k, self.v = normal(POOL, PAGE, KV_HEADS, HEAD), normal(POOL, PAGE, KV_HEADS, HEAD)
        # As heavy as hundreds of keys together: a kernel that leaves the sinks out is far off.
        self.sinks = (torch.rand(HEADS, device=DEVICE) * 3 + 4).bfloat16()
        self.torch = torch

    def ints(self, values: List[int]) -> Any:
        return self.torch.tensor(values, device=DEVICE, dtype=self.torch.int32)

    def starts(self, counts: List[int]) -> Any:
        return self.ints([sum(counts[:i]) for i in range(len(counts) + 1)])


def attention_in_torch(torch: Any, case: Sequences) -> Any:
    """Each sequence by itself."""
    found, begin = [], 0
    for i, (count, length) in enumerate(zip(case.counts, case.lengths)):
        pages = case.tables[i, : case.pages[i]].long()
        k, v = (cache[pages].reshape(-1, KV_HEADS, HEAD)[:length].double() for cache in (case.k, case.v))
        q = case.q[begin : begin + count].double().reshape(count, KV_HEADS, -1, HEAD)
        begin += count
        scores = torch.einsum("qhgd,khd->hgqk", q, k) / math.sqrt(HEAD)
        at = torch.arange(length - count, length, device=q.device)[:, None]
        key = torch.arange(length, device=q.device)[None]
        unseen = (key > at) | (key <= at - case.window) if case.window else key > at
        scores = scores.masked_fill(unseen, -math.inf)
        sinks = case.sinks.double().reshape(KV_HEADS, -1, 1, 1).expand(-1, -1, count, 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]  # a sink takes weight, and has no value
        found.append(torch.einsum("hgqk,khd->qhgd", weights, v).reshape(count, -1, HEAD))
    return torch.cat(found)


def flashinfer_attention(torch: Any) -> Kernel:
    """Its FA2 kernels on every GPU: those that a GB10 gets."""
    wrapper_of = importlib.import_module("flashinfer").BatchAttentionWithAttentionSinkWrapper
    nvcc = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
    if shutil.which("nvcc") is None and not os.path.exists(nvcc):
        raise NotHere("it is compiled first, and this container has no nvcc")
    space = torch.empty(128 << 20, dtype=torch.uint8, device=DEVICE)
    wrappers = {}

    def prepare(case: Sequences) -> Callable[[], Any]:
        left = case.window - 1 if case.window else -1
        types = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
        if left not in wrappers:
            wrappers[left] = wrapper_of(space, backend="fa2", head_dim_qk=HEAD, head_dim_vo=HEAD, window_left=left,
                                        **types)  # fmt: skip
        wrapper = wrappers[left]
        indices = torch.cat([case.tables[i, :count] for i, count in enumerate(case.pages)])
        last = case.ints([length - (count - 1) * PAGE for length, count in zip(case.lengths, case.pages)])
        wrapper.plan(case.starts(case.counts), case.starts(case.pages), indices, last, HEADS, KV_HEADS, HEAD, PAGE,
                     causal=True, window_left=left, **types)  # fmt: skip
        sinks = case.sinks.float()
        return lambda: wrapper.run(case.q, (case.k, case.v), sinks, 1 / math.sqrt(HEAD))

    return prepare


def vllm_attention(torch: Any) -> Kernel:
    """The Triton kernel of vLLM's TRITON_ATTN backend."""
    unified = importlib.import_module("vllm.v1.attention.ops.triton_unified_attention").unified_attention

    def prepare(case: Sequences) -> Callable[[], Any]:
        out = torch.empty_like(case.q)
        words = {
            "q": case.q, "k": case.k, "v": case.v, "out": out, "cu_seqlens_q": case.starts(case.counts),
            "max_seqlen_q": max(case.counts), "seqused_k": case.ints(case.lengths), "max_seqlen_k": max(case.lengths),
            "softmax_scale": 1 / math.sqrt(HEAD), "causal": True, "block_table": case.tables, "softcap": 0,
            "window_size": (case.window - 1, 0) if case.window else (-1, -1), "q_descale": None, "k_descale": None,
            "v_descale": None, "sinks": case.sinks,
        }  # fmt: skip

        def run() -> Any:
            unified(**words)
            return out

        return run

    return prepare


def attention(torch: Any, table: Table, tokens: List[int]) -> None:
    """Decoding (a token of each of M sequences) and prefill (M tokens of one)."""
    kernels = {}
    for by, make in (("FlashInfer fa2", flashinfer_attention), ("vLLM Triton", vllm_attention)):
        kernel = table.prepared(by, lambda make=make: make(torch))  # type: ignore[misc]
        if kernel is not None:
            kernels[by] = kernel
    for window in WINDOWS:
        for kind in ("decode", "prefill"):
            for count in tokens:
                case = Sequences(torch, kind, count, window)
                shape = "%s M=%d%s" % (kind, count, ", window %d" % window if window else "")
                table.measure(torch, kernels, shape, case, attention_in_torch(torch, case))


# --- fused MoE --------------------------------------------------------------------------------------------------------


class Tokens:
    """Tokens and the experts that they go to. No two logits of a token are equal: there is one right choice."""

    def __init__(self, torch: Any, count: int) -> None:
        self.x = 3 * torch.randn(count, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
        self.logits = (torch.rand(count, EXPERTS, device=DEVICE).argsort(-1) / 8).bfloat16()
        best = self.logits.double().topk(TOP)
        self.gates, self.experts = best.values.softmax(-1), best.indices


class Mxfp4:
    """Weights as gpt-oss has them: 4 bits, a scale for 32 of them, biases, and its own SwiGLU with limits."""

    def __init__(self, torch: Any) -> None:
        def codes(*shape: int) -> Any:
            return torch.randint(256, shape, device=DEVICE, dtype=torch.uint8)

        def scales(*shape: int) -> Any:
            return torch.randint(119, 122, shape, device=DEVICE, dtype=torch.uint8)

        self.codes = [codes(EXPERTS, rows, HIDDEN // 2) for rows in (2 * HIDDEN, HIDDEN)]
        self.scales = [scales(EXPERTS, rows, HIDDEN // 32) for rows in (2 * HIDDEN, HIDDEN)]
        self.biases = [torch.randn(EXPERTS, rows, device=DEVICE) for rows in (2 * HIDDEN, HIDDEN)]
        self.values = torch.tensor(FP4, device=DEVICE, dtype=torch.double)

    def weights(self, torch: Any, which: int, expert: int) -> Any:
        """Gate and up (0) or down (1) of one expert, in double precision."""
        codes = self.codes[which][expert]
        values = self.values[torch.stack([codes & 15, codes >> 4], -1).long()].reshape(codes.shape[0], -1, 32)
        return (values * torch.exp2(self.scales[which][expert].double() - 127)[..., None]).reshape(codes.shape[0], -1)

    def feed(self, torch: Any, x: Any, expert: int) -> Any:
        """One expert in double precision."""
        both = x @ self.weights(torch, 0, expert).T + self.biases[0][expert].double()
        gate, up = both[:, ::2].clamp(max=LIMIT), both[:, 1::2].clamp(-LIMIT, LIMIT)
        middle = gate * (ALPHA * gate).sigmoid() * (up + 1)
        return middle @ self.weights(torch, 1, expert).T + self.biases[1][expert].double()


def moe_in_torch(torch: Any, case: Tokens, weights: Any) -> Any:
    """Each expert by itself."""
    found = torch.zeros(case.x.shape, device=case.x.device, dtype=torch.double)
    for expert in case.experts.unique().tolist():
        rows, slots = (case.experts == expert).nonzero(as_tuple=True)
        fed = weights.feed(torch, case.x[rows].double(), expert)
        found.index_add_(0, rows, case.gates[rows, slots, None] * fed)
    return found


def triton_moe(torch: Any, weights: Mxfp4) -> Kernel:
    """The triton_kernels that vLLM brings along, with the layouts that vLLM gives them."""
    found = importlib.util.find_spec("vllm")
    if found is not None and found.origin:
        sys.path.append(os.path.join(os.path.dirname(found.origin), "third_party"))
    ogs = importlib.import_module("triton_kernels.matmul_ogs")
    routing = importlib.import_module("triton_kernels.routing").routing
    swiglu = importlib.import_module("triton_kernels.swiglu").swiglu_fn
    tensors = importlib.import_module("triton_kernels.tensor")
    layouts = importlib.import_module("triton_kernels.tensor_details.layout")
    major = torch.cuda.get_device_capability()[0]
    limits = {"split_k": 1} if major == 9 else {"is_persistent": True, "epilogue_subtile": 1} if major >= 10 else {}
    if major == 12:
        limits["block_m"] = 16  # 99 KiB of shared memory hold no more stages
    ogs.update_opt_flags_constraints(limits)
    values, of_values = layouts.make_default_matmul_mxfp4_w_layout(mx_axis=1)
    scales, of_scales = layouts.make_default_matmul_mxfp4_w_scale_layout(mx_axis=1, num_warps=8)
    given = []
    for which in (0, 1):
        scale = torch.nn.functional.pad(weights.scales[which], (0, -weights.scales[which].shape[-1] % 4))
        scale = tensors.convert_layout(tensors.wrap_torch_tensor(scale.transpose(-2, -1)), scales, **of_scales)
        packed = tensors.wrap_torch_tensor(weights.codes[which].transpose(-2, -1), dtype=tensors.FP4)
        given.append((tensors.convert_layout(packed, values, **of_values), ogs.PrecisionConfig(weight_scale=scale)))
    activation = ogs.FusedActivation(ogs.FnSpecs("swiglu", swiglu, ("alpha", "limit")), (ALPHA, LIMIT), 2)

    def prepare(case: Tokens) -> Callable[[], Any]:
        (first, how_first), (second, how_second) = given

        def run() -> Any:
            data, gather, scatter = routing(case.logits, TOP)
            middle = ogs.matmul_ogs(case.x, first, weights.biases[0], data, gather_indx=gather,
                                    precision_config=how_first, fused_activation=activation)  # fmt: skip
            return ogs.matmul_ogs(middle, second, weights.biases[1], data, scatter_indx=scatter,
                                  precision_config=how_second, gammas=data.gate_scal)  # fmt: skip

        return run

    return prepare


def moe(torch: Any, table: Table, tokens: List[int]) -> None:
    """What gpt-oss runs: weights of 4 bits with bfloat16."""

    def begin() -> Tuple[Mxfp4, Kernel]:
        free = torch.cuda.mem_get_info()[0]
        if free < MEMORY:
            raise NotHere("it needs %d GiB of the GPU's memory, %.1f GiB are free" % (MEMORY >> 30, free / (1 << 30)))
        weights = Mxfp4(torch)
        return weights, triton_moe(torch, weights)

    by = "vLLM triton_kernels mxfp4"
    begun = table.prepared(by, begin)
    if begun is not None:
        kernels = {by: begun[1]}
        for count in tokens:
            case = Tokens(torch, count)
            table.measure(torch, kernels, "M=%d" % count, case, moe_in_torch(torch, case, begun[0]))
