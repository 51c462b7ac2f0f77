"""Memory that GPU and programs share, and what other programs in the container left behind."""

from __future__ import annotations

from envgen.doctor import remedies
from envgen.doctor.model import Context, Finding, Where, check, info, ok, warning
from envgen.profile.model import GpuMode

GIB = 1 << 30
# GPUs whose memory is the machine's own: GB10 (12.1), Thor (11.0), Orin (8.7).
UNIFIED = {(12, 1), (11, 0), (8, 7)}
SWAPPED = 1 * GIB
INITS = ("docker-init", "tini", "dumb-init", "catatonit")


def is_unified(context: Context) -> bool:
    """Does the GPU take its memory from the machine's? The GPU itself is asked first, then the profile's archs."""
    if context.profile.gpu is GpuMode.NONE:
        return False
    if context.inside.gpus:
        return any(not gpu.memory or "GB10" in gpu.name for gpu in context.inside.gpus)
    return any((arch.major, arch.minor) in UNIFIED for arch in context.profile.cuda.arch_list.archs)


def share(context: Context) -> float | None:
    """What part of all memory a server will ask for (`--gpu-memory-utilization`); None: no service is vLLM's.

    Where no flag says it, the installed release's own default counts: 0.9 in 0.14.0, 0.92 in 0.32.0.
    """
    for service in context.profile.services.values():
        value = service.args.get("gpu-memory-utilization")
        if isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                return None
    words = [word for service in context.profile.services.values() for word in service.command]
    serves = any(word == "vllm" or word.startswith("vllm.entrypoints") for word in words)
    default = context.inside.defaults.get("gpu_memory_utilization")
    return default or None if serves else None


@check("memory.unified", Where.INSIDE, needs="probe")
def unified(context: Context) -> list[Finding]:
    """On unified memory: the server's share is free now, and nothing was pushed into swap."""
    system, wanted = context.inside.system, share(context)
    if not is_unified(context) or not system.MemTotal:
        return []
    found = []
    serving = context.container is not None and context.container.state == "running" and bool(context.container.ports)
    if wanted is not None and not serving:  # a server that runs has its memory
        needed = int(system.MemTotal * wanted)
        said = f"{wanted:.2f} of {system.MemTotal // GIB} GiB = {needed // GIB} GiB"
        if needed > system.MemAvailable:
            seen = f"{said}; {system.MemAvailable // GIB} GiB are available"
            fits = max(0.05, system.MemAvailable / system.MemTotal - 0.02)
            cure = remedies.line(f"services: {{{_server(context)}: {{args: {{gpu-memory-utilization: {fits:.2f}}}}}}}")
            found.append(warning("the server's share of memory is taken", seen, "free memory", cure, case="taken"))
        elif needed > system.MemFree:
            seen = f"{said}; {system.MemFree // GIB} GiB are free, {system.Cached // GIB} GiB are page cache"
            cure = remedies.command("sync && sudo sysctl vm.drop_caches=3")
            title = "the page cache holds the server's share of memory"
            found.append(warning(title, seen, "free memory", cure, case="page-cache"))
    swapped = system.SwapTotal - system.SwapFree
    if swapped > SWAPPED:
        cure = remedies.command("sudo swapoff -a && sudo swapon -a")
        seen = f"{swapped / GIB:.1f} of {system.SwapTotal / GIB:.1f} GiB of swap are in use"
        found.append(warning("programs were pushed into swap", seen, "none", cure, case="swapping"))
    if found or (wanted is None and not context.inside.gpus):
        return found
    told = f"{system.MemFree // GIB} GiB of the memory that GPU and programs share are free"
    return [ok(told)] if wanted is not None else [info(told, "no service says how much it needs")]


def _server(context: Context) -> str:
    names = [name for name, each in context.profile.services.items() if "gpu-memory-utilization" in each.args]
    return names[0] if names else context.service


@check("processes.compilers", Where.INSIDE, needs="probe")
def compilers(context: Context) -> list[Finding]:
    """No compiler of a build that ended is still there."""
    processes, found = context.inside.processes, []
    if processes.zombies:
        seen = f"{len(processes.zombies)}: {', '.join(sorted(set(processes.zombies)))}; process 1 is {processes.first}"
        title, cure = "zombies of compilers", remedies.recreate(context)
        found.append(warning(title, seen, "an init that collects them", cure, case="zombies"))
    # A server that is process 1 itself may well have started its compilers: only an init adopts them.
    if processes.orphans and processes.first in INITS:
        seen = f"{len(processes.orphans)}: {', '.join(sorted(set(processes.orphans)))}"
        cure = remedies.recreate(context)
        found.append(warning("compilers without a build", seen, "none", cure, case="orphans"))
    if not processes.first:
        return [info("other processes can't be seen", "/proc can't be read")]
    return found or [ok("no compiler was left behind")]
