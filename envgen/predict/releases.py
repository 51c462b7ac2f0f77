"""Which release first does what another one refuses. Facts with their sources; nothing here is asked of a release."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version


@dataclass(frozen=True)
class First:
    """``release``: the first vLLM that does it, empty for none. ``family``: the GPU's major capability, 0 for any."""

    what: str
    refusal: str  # a regular expression, searched in the release's own words
    release: str
    needs: str
    source: str
    family: int = 0


CUBINS = (
    "FlashInfer's cubins: flashinfer-cubin of FlashInfer's version, or VLLM_HAS_FLASHINFER_CUBIN=1 where they are"
    " already there; otherwise NVIDIA's artifactory must be reachable when the server starts"
)
FIRSTS = (
    First(
        "FlashInfer attention with sinks on compute capability 12.x",
        r"FLASHINFER.*(sink setting|attention sinks) not supported",
        "0.28.0", CUBINS, "vllm#49718, vllm#52148; asked of 0.32.0", 12,
    ),
    First(
        "--moe-backend", r"unrecognized arguments:.*--moe-backend", "0.19.1", "", "the flag is in 0.19.1",
    ),
    First(
        "--quantization-config", r"unrecognized arguments:.*--quantization-config", "0.24.0", "",
        "the flag replaces the MoE variables that 0.24.0 removed",
    ),
    First(
        "--mxfp4-backend and --mxfp4-layers", r"unrecognized arguments:.*--mxfp4-(backend|layers)", "", "",
        "flags of a fork (christopherowen/vllm, commit 045293d8), in no release up to 0.33.0",
    ),
    First(
        "CUTLASS MXFP8 x MXFP4 experts on compute capability 12.x", r"expected CUTLASS, chose MARLIN", "0.19.0",
        "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS=1; from 0.24.0 on --moe-backend flashinfer_cutlass with"
        ' --quantization-config {"moe": {"activation": "mxfp8"}}; before 0.19.0 the patch 0001 of patches/vllm',
        "asked of 0.20.2, 0.24.0 and 0.32.0", 12,
    ),
)  # fmt: skip


def first(words: str, version: str, family: int) -> First | None:
    """What is known about a refusal. A release that should do it already is told only what it needs."""
    for one in FIRSTS:
        if one.family in (0, family) and re.search(one.refusal, words, re.DOTALL):
            return one
    return None


def sentence(one: First, version: str) -> str:
    """One sentence for people."""
    if not one.release:
        return f"{one.what}: {one.source}"
    needs = f"; it needs {one.needs}" if one.needs else ""
    try:
        reached = Version(version) >= Version(one.release)
    except InvalidVersion:  # a checkout without a version
        reached = False
    if reached:
        return f"{one.what} works from vLLM {one.release} on; this is {version}{needs} ({one.source})"
    return f"the first vLLM release with {one.what} is {one.release}{needs} ({one.source})"
