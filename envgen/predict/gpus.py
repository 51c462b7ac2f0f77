"""Known GPUs: the facts by which vLLM chooses kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from envgen.errors import UsageError
from envgen.profile.model import Profile
from envgen.profile.values import CudaArchList
from envgen.text import GIB


@dataclass(frozen=True)
class Gpu:
    """Name, compute capability and memory in bytes, as the driver reports them."""

    name: str
    major: int
    minor: int
    memory: int

    @property
    def unified(self) -> bool:
        """Whether its memory is the machine's."""
        return CudaArchList.parse(f"{self.major}.{self.minor}").shares_memory

    def request(self) -> dict[str, object]:
        """The GPU as the program in the container reads it."""
        return {"name": self.name, "capability": [self.major, self.minor], "memory": self.memory}


_ROWS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_bytes())
GPUS: dict[str, Gpu] = {}
for _word, (_name, _major, _minor, _gib) in _ROWS.items():
    GPUS[_word] = Gpu(_name, _major, _minor, _gib * GIB)


def find(word: str) -> Gpu:
    """The GPU for ``--gpu``: a name in GPUS, or a compute capability such as 12.1."""
    key = re.sub(r"[^a-z0-9.]", "", word.lower()).removeprefix("nvidia")
    if key in GPUS:
        return GPUS[key]
    if match := re.fullmatch(r"(?:sm)?(\d{1,2})\.?(\d)[af]?", key):
        return of_capability(int(match[1]), int(match[2]))
    raise UsageError(
        f"--gpu {word}: not a known GPU",
        hint=f"{', '.join(GPUS)}, or a compute capability such as 12.1",
    )


def of_capability(major: int, minor: int) -> Gpu:
    """A known GPU with that capability, else an invented one."""
    known = [gpu for gpu in GPUS.values() if (gpu.major, gpu.minor) == (major, minor)]
    return (
        known[-1]
        if known
        else Gpu(f"a GPU of compute capability {major}.{minor}", major, minor, 80 * GIB)
    )


def target(profile: Profile) -> Gpu:
    """The GPU that the profile compiles for: the first of cuda.arch_list."""
    if not profile.cuda.arch_list.archs:
        raise UsageError(
            f"profile {profile.name} names no GPU (cuda.arch_list)", hint="name one: --gpu gb10"
        )
    first = profile.cuda.arch_list.archs[0]
    return of_capability(first.major, first.minor)
