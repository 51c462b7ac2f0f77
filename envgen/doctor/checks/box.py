"""Checks of the machine itself: what makes a healthy server slow, or ends it, before any software
is to blame.

The figures and cures are those of public threads of DGX Spark owners (docs/doctor.md names them);
no GB10 was at hand.
"""

from __future__ import annotations

import re

from envgen.doctor.model import (
    CMA,
    HANDOVER_CURE,
    Context,
    Finding,
    Findings,
    Remedy,
    Section,
    check,
    error,
    ok,
    warning,
)
from envgen.engine.box import REBOOT, Box, BoxGpu
from envgen.text import GIB

LATCHED_WATTS, LATCHED_MHZ, BUSY = (
    25.0,
    1000,
    50,
)  # a Spark that is stuck: 14 to 20 W and 800 MHz under load


@check("host.kernel", Section.HOST, needs="box")
def kernel(_context: Context, box: Box) -> Finding | None:
    """The kernel keeps no memory back that a GPU or a network card needs."""
    match = re.match(r"(\d+)\.(\d+)", box.kernel)
    if not match:
        return None
    held = box.memory.get("CmaFree", 0)
    if int(match[1]) >= 7 and "kho=off" not in box.options and held > CMA:
        cure = Remedy(HANDOVER_CURE)
        evidence = (
            f"kernel {box.kernel} without kho=off; {held / GIB:.1f} GiB are CMA pages (CmaFree)"
        )
        title = "Kexec HandOver holds memory that can't be pinned"
        return error(
            title,
            evidence,
            "kho=off on the kernel's command line, or kernel 6.17",
            cure,
            case="kho",
        )
    return ok(f"kernel {box.kernel}")


@check("host.clocks", Section.HOST, needs="box")
def clocks(_context: Context, box: Box) -> Findings:
    """The GPU is not slowed down."""
    for number, gpu in enumerate(box.gpus):
        state = _state(gpu)
        if (
            (gpu.load or 0) >= BUSY
            and (gpu.power or 99) < LATCHED_WATTS
            and (gpu.clock or 9999) < LATCHED_MHZ
        ):
            cure = Remedy("sudo poweroff   # then pull the power plug for five minutes")
            title = f"GPU {number} is stuck at a low clock under load"
            yield error(title, state, "its clock rises with the load", cure, case="latched")
        elif any(one != "power cap" for one in gpu.limits):
            cure = Remedy(f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i {number}")
            title = f"GPU {number} is slowed down: {', '.join(gpu.limits)}"
            yield warning(title, state, "no limit is active", cure, case="throttled")
    if not box.gpus:
        return None
    return ok("; ".join(_state(gpu) for gpu in box.gpus))


@check("host.memory", Section.HOST, needs="box")
def memory(_context: Context, box: Box) -> Finding | None:
    """Memory of ended servers is free again."""
    if not box.taken:
        return None
    if box.left:
        evidence = (
            f"{box.taken / GIB:.1f} GiB are in no process and no cache, and nothing uses the GPU"
        )
        expected = "the driver gives a server's memory back within two minutes of its end"
        return warning(box.left, evidence, expected, Remedy(REBOOT), case="driver")
    names = ", ".join(map(str, box.programs)) or "nobody"
    return ok(f"GPU memory: {box.taken / GIB:.1f} GiB, held by {names}")


def _state(gpu: BoxGpu) -> str:
    clock = "{:.0f} MHz" if gpu.fastest is None else f"{{:.0f}} of {gpu.fastest:.0f} MHz"
    figures = (
        (gpu.power, "{:.0f} W"),
        (gpu.clock, clock),
        (gpu.temperature, "{:.0f} C"),
        (gpu.load, "{:.0f} % busy"),
    )
    shown = ", ".join(text.format(one) for one, text in figures if one is not None)
    return f"{gpu.name}: {shown or 'no figures'}"
