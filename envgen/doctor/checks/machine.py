"""What surrounds the code inside the container: Python itself, mounts and files, GPU, memory, other processes."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from envgen.doctor import remedies
from envgen.doctor.model import Context, Finding, Folder, Judged, Probe, Remedy, Where, check, error, info, ok, warning
from envgen.profile.model import GpuMode, Source
from envgen.render.environment import GATE
from envgen.text import GIB, counted

# GPUs whose memory is the machine's own: GB10 (12.1), Thor (11.0), Orin (8.7).
SWAPPED = 1 * GIB
REMOVED = "//deleted"  # the kernel's mark


@check("python.start", Where.INSIDE)
def probe_ran(context: Context) -> Judged:
    """The probe came back with a whole document, and nothing disturbed it."""
    probe, python = context.probe, context.profile.base.python
    if context.trouble is not None:
        cure, wanted = remedies.inside(context, python, "-c", "pass"), "one JSON document from Python in the container"
        yield error(context.trouble.title, context.trouble.seen, wanted, cure, case="no-document")
    if probe is None:
        return None
    for failed in probe.errors:
        if failed.what in ("hang", "crash"):
            title = "an import hook hangs" if failed.what == "hang" else "an import hook kills Python"
            # The .pth file that starts the hook's module, else the module: moving it away stops the hook.
            module = failed.file.rsplit("/", 1)[-1].removesuffix(".py")
            pths = [pth.path for pth in probe.pth if module and any(module in line for line in pth.lines)]
            starter = pths[0] if pths else failed.file
            seen = failed.error + (f"; it is put there by {starter}" if starter else "")
            cure = remedies.inside(context, "mv", starter, f"{starter}.off") if starter else remedies.recreate(context)
            yield error(title, seen, "an answer within milliseconds", cure, case="hook")
        else:
            cure = remedies.envgen(context, "doctor", "--json")
            yield warning(f"a part of the probe failed: {failed.part}", failed.error, "facts", cure, case="part")
    if probe.noise:
        seen, cure = (
            f"{probe.noise} bytes before the first line of a program",
            remedies.inside(context, python, "-v", "-c", "pass"),
        )
        yield warning("something prints whenever Python starts", seen, "nothing", cure, case="noise")
    version = probe.python.version.partition(" ")[0]
    return ok(f"Python {version}, {probe.python.executable}", finders=list(probe.python.meta_path))


# --- mounts and files ------------------------------------------------------------------------------------------------


@check("mounts.sources", Where.INSIDE, needs="probe")
def source_mounts(context: Context, probe: Probe) -> Judged:
    """Each checkout is mounted, and holds the package."""
    folders = {folder.path: folder for folder in probe.folders}
    for name, source in context.profile.mounted_sources.items():
        if str(source.mount) in folders:
            yield _source_mount(name, source, folders[str(source.mount)], context, probe)
    return None


def _source_mount(name: str, source: Source, folder: Folder, context: Context, probe: Probe) -> Finding:
    path, wanted, up = folder.path, f"the checkout of {name}", remedies.up(context)
    point_at = remedies.line(f"sources: {{{name}: {{origin: {{checkout: ../{name}}}}}}}")
    if not folder.exists:
        return error(f"{name}: nothing is mounted", f"{path} doesn't exist", wanted, up, case="missing")
    if not folder.mounted and not folder.empty:
        return warning(f"{name}: not a mount, edits stay in the container", path, wanted, up, case="no-mount")
    if place := _moved(name, folder, context):
        title, again = f"{name}: its folder was moved or removed while it was mounted", remedies.recreate(context)
        return error(title, f"{place} at {path}", wanted, again, case="moved")
    if folder.empty:
        return error(f"{name}: the mounted checkout is empty", path, wanted, point_at, case="empty")
    if not any(root.root.startswith(path + "/") for root in probe.roots if root.package == source.package):
        title = f"{name}: another folder than its checkout is mounted"
        return error(title, f"{path} holds no folder {source.package}", wanted, point_at, case="no-package")
    mounted, configured = _mounted_from(context, path), context.checkouts.get(name, "")
    if mounted and configured and mounted != configured:
        title = f"{name}: another checkout is mounted than the profile names"
        return error(title, f"{mounted} at {path}", configured, up, case="elsewhere")
    if folder.read_only:
        return warning(f"{name} is mounted read-only", f"{path}: ro", "a writable mount", up, case="read-only")
    if folder.dangling:
        links = ", ".join(folder.dangling[:3])
        cure = remedies.inside(context, "find", path, "-maxdepth", "1", "-xtype", "l")
        return warning(f"{name}: links in it lead nowhere", links, "targets inside the mount", cure, case="dangling")
    if not folder.writable:
        seen = f"{_owner(folder)}; the container runs as {probe.system.uid}"
        wanted = "a folder that the container's user may write"
        cure = _own(context, folder, configured)
        return warning(f"{name} can't be written by the container", seen, wanted, cure, case="owner")
    return ok(f"{name} is mounted at {path}", owner=folder.uid, read_only=folder.read_only)


def _moved(name: str, folder: Folder, context: Context) -> str:
    """Where the mounted folder is now, as its file system has it; "" where it is what the host has under its path.

    Its path there may differ for other reasons (links, subvolumes), and so may its number (an engine in a VM).
    """
    if folder.root.endswith(REMOVED):
        return f"{folder.root.removesuffix(REMOVED)} (removed)"
    mounted, now = _mounted_from(context, folder.path), context.inodes.get(name)
    same = now is None or folder.inode in (0, now) or posixpath.basename(folder.root) == posixpath.basename(mounted)
    return "" if same or not mounted or mounted != context.checkouts.get(name) else folder.root


def _mounted_from(context: Context, target: str) -> str:
    """The folder of the engine's machine that is mounted there; "" where the engine names none."""
    if context.container is None or context.is_throw_away:
        return ""
    return next((one.source for one in context.container.mounts if one.target == target and one.kind == "bind"), "")


def _owner(folder: Folder) -> str:
    return f"{folder.path} belongs to {folder.uid}:{folder.gid}, mode {folder.mode}"


def _own(context: Context, folder: Folder, place: str) -> Remedy:
    """``place``: the folder on this machine; "" for a volume, which `up` hands to the service's user."""
    system = context.inside.system
    container = None if context.is_throw_away else context.container
    if folder.read_only or not (container or place):
        return remedies.up(context)
    if not system.uid:  # userns-remap: root in the container is another user on the machine
        return remedies.line(f"services: {{{context.service}: {{user: host}}}}")
    owner = f"{system.uid}:{system.gid}"
    if container is None:
        return remedies.command(f"sudo chown -R {owner} {place}")
    return remedies.command(f"docker exec --user 0 {container.name} chown -R {owner} {folder.path}")


@check("mounts.caches", Where.INSIDE, needs="probe")
def caches(context: Context, probe: Probe) -> Judged:
    """Each cache outlives the container, and can be written."""
    folders, named = {folder.path: folder for folder in probe.folders}, context.profile.caches
    for name, cache in named.items():
        folder = folders.get(str(cache.path))
        if folder is None:
            continue
        if not folder.exists or not folder.mounted:
            title = f"the {name} cache isn't mounted: it is lost with the container"
            yield warning(title, folder.path, "a mount", remedies.up(context), case="not-mounted", cache=name)
        elif folder.read_only or not folder.writable:
            seen = _owner(folder) + (", mounted read-only" if folder.read_only else "")
            title, cure = f"the {name} cache can't be written", _own(context, folder, str(cache.host or ""))
            yield error(title, seen, "a writable folder", cure, case="not-writable", cache=name)
    return ok(f"{counted(len(named), 'cache is', 'caches are')} mounted and writable") if named else None


@check("tiktoken.files", Where.INSIDE, needs="probe")
def vocabulary(context: Context, probe: Probe) -> Judged:
    """The tiktoken files are the right ones: without them a server is healthy, and dies on the first prompt."""
    tiktoken, files = context.profile.tiktoken, {file.path: file for file in probe.encodings}
    if not tiktoken.encodings:
        return None
    whole = True
    for name, encoding in tiktoken.encodings.items():
        file = files.get(f"{tiktoken.directory}/{name}.tiktoken")
        if file is None or (file.exists and file.sha256 == encoding.sha256):
            continue
        whole, wanted, cure = False, f"sha256 {encoding.sha256}", remedies.build(context)
        if file.exists:
            yield error(
                f"{name} is another file", f"{file.path} has sha256 {file.sha256}", wanted, cure, case="other-file"
            )
        else:
            yield error(f"{name} is missing", f"{file.path} doesn't exist", wanted, cure, case="missing")
    variable, base = "TIKTOKEN_ENCODINGS_BASE", probe.variables.get("TIKTOKEN_ENCODINGS_BASE", "")
    if whole and base != str(tiktoken.directory):
        seen, wanted = f"{variable}={base}" if base else f"{variable} isn't set", f"{variable}={tiktoken.directory}"
        yield error("the vocabulary files aren't used", seen, wanted, remedies.up(context), case="unused")
    return ok(f"{counted(len(tiktoken.encodings), 'vocabulary file is', 'vocabulary files are')} as expected")


# --- the machine -----------------------------------------------------------------------------------------------------


@check("gpu.devices", Where.INSIDE, needs="probe")
def gpu(context: Context, probe: Probe) -> Finding | None:
    """The container sees a GPU, when the profile wants one."""
    mode, nvidia = context.profile.gpu.value, probe.system.nvidia
    devices = [name for name in nvidia.devices if name.removeprefix("/dev/nvidia").isdigit()]
    if mode == "none":
        return None
    if devices:
        return ok(f"the container sees {', '.join(devices)}", driver=nvidia.driver)
    if mode == "auto":
        return info("the container sees no GPU", "no /dev/nvidia*; gpu: auto uses none where the engine has none")
    cure = remedies.line("gpu: auto")
    return error("the container sees no GPU", "no /dev/nvidia*", f"gpu: {mode}", cure, case="none")


@check("jit.memory", Where.INSIDE, needs="probe")
def gate_is_on(context: Context, probe: Probe) -> Finding:
    """Each of FlashInfer's compilers starts when its memory is free."""
    free = probe.system.MemAvailable
    if seen := _without_gate(probe.variables):
        if _without_gate(context.env):
            return info("FlashInfer's compilers do not run through compile-gate", "the profile says so")
        title, wanted = "compilers start without looking at the memory", f"FLASHINFER_NVCC={GATE}"
        return warning(title, seen, wanted, remedies.up(context), case="off")
    left = f"; {free // GIB} GiB are free" if free else ""
    return ok(f"each compiler starts when its memory is free{left}")


def _without_gate(variables: Mapping[str, str]) -> str:
    """The variable that turns the gate off."""
    if variables.get("ENVGEN_GATE") == "off":
        return "ENVGEN_GATE=off"
    nvcc = variables.get("FLASHINFER_NVCC") or GATE
    return "" if nvcc == GATE else f"FLASHINFER_NVCC={nvcc}"


def is_unified(context: Context, probe: Probe) -> bool:
    """Does the GPU share the machine's memory? The GPU itself is asked first, then the profile's archs."""
    if context.profile.gpu is GpuMode.NONE:
        return False
    if probe.gpus:
        return any(not gpu.memory or "GB10" in gpu.name for gpu in probe.gpus)
    return context.profile.cuda.arch_list.shares_memory


def share(context: Context, probe: Probe) -> float | None:
    """What part of all memory a server will ask for (`--gpu-memory-utilization`); None: no service is vLLM's.

    Without a flag, the installed release's own default counts: 0.9 in 0.14.0, 0.92 in 0.32.0.
    """
    services = context.profile.services.values()
    for service in services:
        value = service.args.get("gpu-memory-utilization")
        if isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                return None
    words = [word for service in services for word in service.command]
    serves = any(word == "vllm" or word.startswith("vllm.entrypoints") for word in words)
    return probe.defaults.get("gpu_memory_utilization") or None if serves else None


@check("memory.unified", Where.INSIDE, needs="probe")
def unified(context: Context, probe: Probe) -> Judged:
    """On unified memory: the server's share is free now, and nothing was pushed into swap."""
    system, wanted, container = probe.system, share(context, probe), context.container
    if not is_unified(context, probe) or not system.MemTotal:
        return None
    serving = container is not None and container.state == "running" and bool(container.ports)
    if wanted is not None and not serving:  # a server that runs has its memory
        needed = int(system.MemTotal * wanted)
        share_text = f"{wanted:.2f} of {system.MemTotal // GIB} GiB = {needed // GIB} GiB"
        if needed > system.MemAvailable:
            seen = f"{share_text}; {system.MemAvailable // GIB} GiB are available"
            fits = max(0.05, system.MemAvailable / system.MemTotal - 0.02)
            names = (name for name, one in context.profile.services.items() if "gpu-memory-utilization" in one.args)
            server = next(names, context.service)
            cure = remedies.line(f"services: {{{server}: {{args: {{gpu-memory-utilization: {fits:.2f}}}}}}}")
            yield warning("the server's share of memory is taken", seen, "free memory", cure, case="taken")
        elif needed > system.MemFree:
            seen = f"{share_text}; {system.MemFree // GIB} GiB are free, {system.Cached // GIB} GiB are page cache"
            cure = remedies.command("sync && sudo sysctl vm.drop_caches=3")
            title = "the page cache holds the server's share of memory"
            yield warning(title, seen, "free memory", cure, case="page-cache")
    swapped = system.SwapTotal - system.SwapFree
    if swapped > SWAPPED:
        cure = remedies.command("sudo swapoff -a && sudo swapon -a")
        seen = f"{swapped / GIB:.1f} of {system.SwapTotal / GIB:.1f} GiB of swap are in use"
        yield warning("programs were pushed into swap", seen, "none", cure, case="swapping")
    free_text = f"{system.MemFree // GIB} GiB of the memory that GPU and programs share are free"
    if wanted is not None:
        return ok(free_text)
    return info(free_text, "no service sets needs_memory") if probe.gpus else None


@check("processes.compilers", Where.INSIDE, needs="probe")
def compilers(context: Context, probe: Probe) -> Judged:
    """No compiler of a build that ended is still there."""
    processes, cure = probe.processes, remedies.recreate(context)
    if processes.zombies:
        seen = f"{len(processes.zombies)}: {', '.join(sorted(set(processes.zombies)))}; process 1 is {processes.first}"
        yield warning("zombies of compilers", seen, "an init that collects them", cure, case="zombies")
    if not processes.first:
        return info("other processes can't be seen", "/proc can't be read")
    return ok("no compiler was left behind")
