"""GPU architectures as FlashInfer and nvcc spell them: ``121a`` is 12.1 with its own instructions."""

from __future__ import annotations

from typing import Tuple

Arch = Tuple[int, int, str]


def parse(text: str) -> Arch | None:
    """``121a`` as (12, 1, "a"); None for anything else."""
    number, suffix = (text[:-1], text[-1:]) if text[-1:] in ("a", "f") else (text, "")
    if not (number.isascii() and number.isdigit() and 2 <= len(number) <= 3):
        return None
    return int(number[:-1]), int(number[-1]), suffix


def runs(code: str, device: str) -> bool:
    """Can a GPU of ``device`` run machine code for ``code``? CUDA's rule: ``a`` on that GPU alone, else on all later
    ones of its major version."""
    made, gpu = parse(code), parse(device)
    if made is None or gpu is None or made[0] != gpu[0]:
        return False
    return made[1] == gpu[1] if made[2] == "a" else made[1] <= gpu[1]
