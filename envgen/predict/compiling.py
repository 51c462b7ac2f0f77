"""How long FlashInfer compiles the experts of a model, before a server answers for the first time."""

from __future__ import annotations

from dataclasses import dataclass

from envgen.binding import JsonObject
from envgen.predict.gpus import Gpu
from envgen.profile.model import Profile
from envgen.profile.service import Service
from envgen.text import GIB

LONG = 3 * 60  # seconds that are worth a line
# Of compilers on average and together, with a budget of 16 to 48 GiB; docs/jit-cache.md.
GIB_A_COMPILER = 4
_OTHER_SECONDS = 60


@dataclass(frozen=True)
class _Known:
    """Measured: seconds of a core for an object, and of the longest; objects of FlashInfer 0.7.2."""

    seconds: int
    longest: int
    objects: int


_KNOWN = {"fused_moe_120": _Known(55, 344, 96), "fused_moe_90": _Known(322, 344, 248)}


@dataclass(frozen=True)
class Compiling:
    """A module that is compiled before the first answer. ``asked``: FlashInfer named its sources."""

    module: str
    objects: int
    asked: bool = True

    def seconds(self, cores: int, memory: int) -> float:
        """About how long, with ``memory`` bytes for compilers."""
        known = _KNOWN.get(self.module, _Known(_OTHER_SECONDS, 0, 0))
        at_once = max(1, min(cores, memory // (GIB_A_COMPILER * GIB)))
        return max(known.longest, self.objects * known.seconds / at_once)

    def line(self, cores: int, memory: int) -> str:
        """For the user; "" where it takes a few minutes at most."""
        seconds = self.seconds(cores, memory)
        if seconds < LONG:
            return ""
        about = "" if self.asked else "about "
        hours = f"{seconds / 3600:.1f} hours" if seconds > 5400 else f"{seconds / 60:.0f} minutes"
        return (
            f"FlashInfer compiles {self.module} before the first answer: {about}{self.objects} objects, some "
            f"{hours} on {cores} cores with {max(0, memory) / GIB:.0f} GiB for compilers, which take 1 to 10 GiB each"
        )


def large_module(answer: JsonObject) -> Compiling | None:
    """The module that a release's answer names."""
    named = answer.get("compiles")
    return Compiling(named["module"], named["objects"]) if named else None


def by_words(service: Service, gpu: Gpu) -> Compiling | None:
    """The module by the flags alone, for a release that can't be asked yet."""
    older = service.env.get("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS") == "1"
    if not older and service.args.get("moe-backend") != "flashinfer_cutlass":
        return None
    name = "fused_moe_120" if gpu.major == 12 else f"fused_moe_{gpu.major}{gpu.minor}"
    known = _KNOWN.get(name)
    return Compiling(name, known.objects, asked=False) if known else None


def compiles_less(profile: Profile, service: str) -> str:
    """How to start the service with other experts; "" where the profile has no such variant."""
    key = f"services.{service}.args.moe-backend"
    older = "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS"
    chosen = profile.variants.get(profile.variant)
    if chosen is not None and {key, f"services.{service}.env.{older}"} & {*chosen.changes}:
        return f"without `--variant {profile.variant}` it compiles less"
    for name, variant in profile.variants.items():
        changes = variant.changes
        others = changes.get(key, "flashinfer") if key in changes else "flashinfer"
        without = changes.get(f"services.{service}.env.{older}") in ("0", "null")
        if without or "flashinfer" not in str(others):
            return f"`--variant {name}` compiles less"
    return ""
