"""Memory that GPU and programs share, and what other programs in the container left behind."""

from __future__ import annotations

import posixpath

from envgen.doctor import remedies
from envgen.doctor.model import (
    Context,
    Finding,
    Folder,
    PartError,
    Probe,
    Remedy,
    Where,
    check,
    error,
    info,
    ok,
    warning,
)
from envgen.profile.model import GpuMode, Source
from envgen.render.environment import GATE
from envgen.text import counted

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


_REMOVED = "//deleted"  # the kernel's mark


def _folder(context: Context, path: str) -> Folder | None:
    return next((folder for folder in context.inside.folders if folder.path == path), None)


@check("mounts.sources", Where.INSIDE, needs="probe")
def source_mounts(context: Context) -> list[Finding]:
    """Each checkout is mounted, and holds the package."""
    found = []
    for name, source in context.profile.mounted_sources.items():
        folder = _folder(context, str(source.mount))
        if folder is not None:
            found.append(_source_mount(name, source, folder, context, context.inside))
    return found


def _source_mount(name: str, source: Source, folder: Folder, context: Context, probe: Probe) -> Finding:
    path, wanted = str(source.mount), f"the checkout of {name}"
    point_at = remedies.line(f"sources: {{{name}: {{origin: {{checkout: ../{name}}}}}}}")
    if not folder.exists:
        up = remedies.up(context)
        return error(f"{name}: nothing is mounted", f"{path} doesn't exist", wanted, up, case="missing")
    if not folder.mounted and not folder.empty:
        title, up = f"{name}: not a mount, edits stay in the container", remedies.up(context)
        return warning(title, path, wanted, up, case="no-mount")
    if place := _moved(name, folder, context):
        title, again = f"{name}: its folder was moved or removed while it was mounted", remedies.recreate(context)
        return error(title, f"{place} at {path}", wanted, again, case="moved")
    if folder.empty:
        return error(f"{name}: the mounted checkout is empty", path, wanted, point_at, case="empty")
    if not any(root.root.startswith(path + "/") for root in probe.roots if root.package == source.package):
        seen = f"{path} holds no folder {source.package}"
        title = f"{name}: another folder than its checkout is mounted"
        return error(title, seen, wanted, point_at, case="no-package")
    mounted, named = _mounted_from(context, path), context.checkouts.get(name, "")
    if mounted and named and mounted != named:
        title, up = f"{name}: another checkout is mounted than the profile names", remedies.up(context)
        return error(title, f"{mounted} at {path}", named, up, case="elsewhere")
    if folder.read_only:
        title, up = f"{name} is mounted read-only", remedies.up(context)
        return warning(title, f"{path}: ro", "a writable mount", up, case="read-only")
    if folder.dangling:
        links = ", ".join(folder.dangling[:3])
        cure = remedies.inside(context, "find", path, "-maxdepth", "1", "-xtype", "l")
        return warning(f"{name}: links in it lead nowhere", links, "targets inside the mount", cure, case="dangling")
    if not folder.writable:
        seen = (
            f"{path} belongs to {folder.uid}:{folder.gid}, mode {folder.mode}; the container runs as {probe.system.uid}"
        )
        title, cure = (
            f"{name} can't be written by the container",
            _own(context, folder, context.checkouts.get(name, "")),
        )
        return warning(title, seen, "a folder that the container's user may write", cure, case="owner")
    return ok(f"{name} is mounted at {path}", owner=folder.uid, read_only=folder.read_only)


def _moved(name: str, folder: Folder, context: Context) -> str:
    """Where the mounted folder is now, as its file system has it; "" where it is what the host has under its path.

    Its path there may differ for other reasons (links, subvolumes), and so may its number (an engine in a VM).
    """
    if folder.root.endswith(_REMOVED):
        return f"{folder.root.removesuffix(_REMOVED)} (removed)"
    mounted, now = _mounted_from(context, folder.path), context.inodes.get(name)
    same = now is None or folder.inode in (0, now) or posixpath.basename(folder.root) == posixpath.basename(mounted)
    return "" if same or not mounted or mounted != context.checkouts.get(name) else folder.root


def _mounted_from(context: Context, target: str) -> str:
    """The folder of the engine's machine that is mounted there; "" where the engine names none."""
    if context.container is None or context.is_throw_away:
        return ""
    return next((one.source for one in context.container.mounts if one.target == target and one.kind == "bind"), "")


@check("mounts.caches", Where.INSIDE, needs="probe")
def caches(context: Context) -> list[Finding]:
    """Each cache outlives the container, and can be written."""
    found: list[Finding] = []
    for name, cache in context.profile.caches.items():
        folder = _folder(context, str(cache.path))
        if folder is None:
            continue
        if not folder.exists or not folder.mounted:
            title = f"the {name} cache isn't mounted: it is lost with the container"
            cure = remedies.up(context)
            found.append(warning(title, str(cache.path), "a mount", cure, case="not-mounted", cache=name))
        elif folder.read_only or not folder.writable:
            seen = f"{folder.path} belongs to {folder.uid}:{folder.gid}, mode {folder.mode}"
            seen += ", mounted read-only" if folder.read_only else ""
            title, cure = f"the {name} cache can't be written", _own(context, folder, str(cache.host or ""))
            found.append(error(title, seen, "a writable folder", cure, case="not-writable", cache=name))
    return found or (
        [ok(f"{counted(len(context.profile.caches), 'cache is', 'caches are')} mounted and writable")]
        if context.profile.caches
        else []
    )


def _own(context: Context, folder: Folder, place: str) -> Remedy:
    """``place``: the folder on this machine; "" for a volume, which `up` hands to the service's user."""
    system, there = context.inside.system, context.container is not None and not context.is_throw_away
    if folder.read_only or not (there or place):
        return remedies.up(context)
    if not system.uid:  # userns-remap: root in the container is another user on the machine
        return remedies.line(f"services: {{{context.service}: {{user: host}}}}")
    owner = f"{system.uid}:{system.gid}"
    if context.container is None or not there:
        return remedies.command(f"sudo chown -R {owner} {place}")
    return remedies.command(f"docker exec --user 0 {context.container.name} chown -R {owner} {folder.path}")


@check("tiktoken.files", Where.INSIDE, needs="probe")
def vocabulary(context: Context) -> list[Finding]:
    """The tiktoken files are the right ones: without them a server is healthy, and dies on the first prompt."""
    tiktoken, files = context.profile.tiktoken, {file.path: file for file in context.inside.encodings}
    found = []
    for name, encoding in tiktoken.encodings.items():
        path = f"{tiktoken.directory}/{name}.tiktoken"
        file = files.get(path)
        if file is None:
            continue
        if not file.exists:
            seen, wanted = f"{path} doesn't exist", f"sha256 {encoding.sha256}"
            found.append(error(f"{name} is missing", seen, wanted, remedies.build(context), case="missing"))
        elif file.sha256 != encoding.sha256:
            seen = f"{path} has sha256 {file.sha256}"
            wanted = f"sha256 {encoding.sha256}"
            found.append(error(f"{name} is another file", seen, wanted, remedies.build(context), case="other-file"))
    base = context.inside.variables.get("TIKTOKEN_ENCODINGS_BASE", "")
    if tiktoken.encodings and not found and base != str(tiktoken.directory):
        seen = f"TIKTOKEN_ENCODINGS_BASE={base}" if base else "TIKTOKEN_ENCODINGS_BASE isn't set"
        wanted = f"TIKTOKEN_ENCODINGS_BASE={tiktoken.directory}"
        found.append(error("the vocabulary files aren't used", seen, wanted, remedies.up(context), case="unused"))
    return found or (
        [ok(f"{counted(len(tiktoken.encodings), 'vocabulary file is', 'vocabulary files are')} as expected")]
        if tiktoken.encodings
        else []
    )
