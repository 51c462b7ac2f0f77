"""What surrounds the code inside the container: Python itself, GPU, memory for compilers."""

from __future__ import annotations

from envgen.doctor import remedies
from envgen.doctor.evidence import PartError, Probe
from envgen.doctor.model import Context, Finding, Where, check, error, info, ok, warning
from envgen.render.environment import GATE

GIB = 1 << 30


@check("python.start", Where.INSIDE)
def probe_ran(context: Context) -> list[Finding]:
    """The probe came back with a whole document, and nothing disturbed it."""
    if context.trouble is not None:
        cure = remedies.inside(context, context.profile.base.python, "-c", "pass")
        wanted = "one JSON document from Python in the container"
        return [error(context.trouble.title, context.trouble.seen, wanted, cure, case="no-document")]
    if context.probe is None:
        return []
    probe, found = context.probe, []
    for failed in probe.errors:
        found.append(_failed_part(failed, probe, context))
    if probe.noise:
        cure = remedies.inside(context, context.profile.base.python, "-v", "-c", "pass")
        title = "something prints whenever Python starts"
        found.append(warning(title, f"{probe.noise} bytes before the first line of a program", "nothing", cure,
                             case="noise"))  # fmt: skip
    if found:
        return found
    version = probe.python.version.partition(" ")[0]
    return [ok(f"Python {version}, {probe.python.executable}", finders=list(probe.python.meta_path))]


def _failed_part(failed: PartError, probe: Probe, context: Context) -> Finding:
    if failed.what in ("hang", "crash"):
        title = "an import hook hangs" if failed.what == "hang" else "an import hook kills Python"
        starter = _who_starts(failed.file, probe)
        seen = failed.error + (f"; it is put there by {starter}" if starter else "")
        cure = remedies.inside(context, "mv", starter, f"{starter}.off") if starter else remedies.recreate(context)
        return error(title, seen, "an answer within milliseconds", cure, case="hook")
    cure = remedies.envgen(context, "doctor", "--json")
    return warning(f"a part of the probe failed: {failed.part}", failed.error, "facts", cure, case="part")


def _who_starts(file: str, probe: Probe) -> str:
    """The .pth file that starts a hook's module, else the module itself: moving it away stops the hook."""
    module = file.rsplit("/", 1)[-1].removesuffix(".py")
    starters = [pth.path for pth in probe.pth if module and any(module in line for line in pth.lines)]
    return starters[0] if starters else file


# --- machine ---------------------------------------------------------------------------------------------------------


@check("gpu.devices", Where.INSIDE, needs="probe")
def gpu(context: Context) -> list[Finding]:
    """The container sees a GPU, when the profile wants one."""
    mode, nvidia = context.profile.gpu.value, context.inside.system.nvidia
    devices = [name for name in nvidia.devices if name.removeprefix("/dev/nvidia").isdigit()]
    if mode == "none":
        return []
    if devices:
        return [ok(f"the container sees {', '.join(devices)}", driver=nvidia.driver)]
    if mode == "auto":
        return [info("the container sees no GPU", "no /dev/nvidia*; gpu: auto takes none where the engine has none")]
    cure = remedies.line("gpu: auto")
    return [error("the container sees no GPU", "no /dev/nvidia*", f"gpu: {mode}", cure, case="none")]


@check("jit.memory", Where.INSIDE, needs="probe")
def gate_is_on(context: Context) -> list[Finding]:
    """Each of FlashInfer's compilers starts when its memory is free."""
    variables, free = context.inside.variables, context.inside.system.MemAvailable
    off, nvcc = variables.get("ENVGEN_GATE") == "off", variables.get("FLASHINFER_NVCC", "")
    if off or (nvcc and nvcc != GATE):
        if context.env.get("ENVGEN_GATE") == "off" or context.env.get("FLASHINFER_NVCC", GATE) != GATE:
            return [info("compile-gate does not stand before FlashInfer's compilers", "the profile says so")]
        seen = "ENVGEN_GATE=off" if off else f"FLASHINFER_NVCC={nvcc}"
        return [warning("compilers start without looking at the memory", seen, f"FLASHINFER_NVCC={GATE}",
                        remedies.up(context), case="off")]  # fmt: skip
    left = f"; {free // GIB} GiB are free" if free else ""
    return [ok(f"each compiler starts when its memory is free{left}")]
