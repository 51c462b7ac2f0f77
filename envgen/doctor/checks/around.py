"""What surrounds the code inside the container: Python itself, mounts, caches, vocabulary files, GPU, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envgen.doctor import remedies
from envgen.doctor.evidence import Folder, PartError, Probe
from envgen.doctor.model import Context, Finding, Remedy, error, info, ok, warning

if TYPE_CHECKING:
    from envgen.profile.model import Source

GIB = 1 << 30


def probe_ran(context: Context) -> list[Finding]:
    """The probe came back with a whole document, and nothing disturbed it."""
    if context.trouble is not None:
        cure = remedies.inside(context, context.profile.base.python, "-c", "pass")
        return [
            error(context.trouble.title, context.trouble.seen, "one JSON document from Python in the container", cure)
        ]
    if context.probe is None:
        return []
    probe, found = context.probe, []
    for failed in probe.errors:
        found.append(_failed_part(failed, probe, context))
    if probe.noise:
        cure = remedies.inside(context, context.profile.base.python, "-v", "-c", "pass")
        title = "something prints whenever Python starts"
        found.append(warning(title, f"{probe.noise} bytes before the first line of a program", "nothing", cure))
    if found:
        return found
    version = probe.python.version.split()[0]
    return [ok(f"Python {version}, {probe.python.executable}", finders=list(probe.python.meta_path))]


def _failed_part(failed: PartError, probe: Probe, context: Context) -> Finding:
    if failed.what in ("hang", "crash"):
        title = "an import hook hangs" if failed.what == "hang" else "an import hook kills Python"
        starter = _who_starts(failed.file, probe)
        seen = failed.error + (f"; it is put there by {starter}" if starter else "")
        cure = remedies.inside(context, "mv", starter, f"{starter}.off") if starter else remedies.recreate(context)
        return error(title, seen, "an answer within milliseconds", cure)
    cure = remedies.envgen(context, "doctor", "--json")
    return warning(f"a part of the probe failed: {failed.part}", failed.error, "facts", cure)


def _who_starts(file: str, probe: Probe) -> str:
    """The .pth file that starts a hook's module, else the module itself: moving it away stops the hook."""
    module = file.rsplit("/", 1)[-1].removesuffix(".py")
    starters = [pth.path for pth in probe.pth if module and any(module in line for line in pth.lines)]
    return starters[0] if starters else file


# --- mounts and caches -----------------------------------------------------------------------------------------------


def _folder(context: Context, path: str) -> Folder | None:
    assert context.probe is not None
    return next((folder for folder in context.probe.folders if folder.path == path), None)


def source_mounts(context: Context) -> list[Finding]:
    """Each checkout is mounted, and holds the package."""
    assert context.probe is not None
    found = []
    for name, source in context.profile.mounted_sources.items():
        folder = _folder(context, str(source.mount))
        if folder is not None:
            found.append(_source_mount(name, source, folder, context, context.probe))
    return found


def _source_mount(name: str, source: Source, folder: Folder, context: Context, probe: Probe) -> Finding:
    path, wanted = str(source.mount), f"the checkout of {name}"
    point_at = remedies.line(f"sources: {{{name}: {{origin: {{checkout: ../{name}}}}}}}")
    if not folder.exists:
        return error(f"{name}: nothing is mounted", f"{path} doesn't exist", wanted, remedies.up(context))
    if not folder.mounted and not folder.empty:
        return warning(f"{name}: not a mount, edits stay in the container", path, wanted, remedies.up(context))
    if folder.empty:
        return error(f"{name}: the mounted checkout is empty", path, wanted, point_at)
    if not any(root.root.startswith(path + "/") for root in probe.roots if root.package == source.package):
        seen = f"{path} holds no folder {source.package}"
        return error(f"{name}: another folder than its checkout is mounted", seen, wanted, point_at)
    return ok(f"{name} is mounted at {path}", owner=folder.uid, read_only=folder.read_only)


def caches(context: Context) -> list[Finding]:
    """Each cache outlives the container, and can be written."""
    found: list[Finding] = []
    for name, cache in context.profile.caches.items():
        folder = _folder(context, str(cache.path))
        if folder is None:
            continue
        if not folder.exists or not folder.mounted:
            title = f"the {name} cache isn't mounted: it is lost with the container"
            found.append(warning(title, str(cache.path), "a mount", remedies.up(context), cache=name))
        elif folder.read_only or not folder.writable:
            seen = f"{folder.path} belongs to {folder.uid}:{folder.gid}, mode {folder.mode}"
            seen += ", mounted read-only" if folder.read_only else ""
            found.append(
                error(
                    f"the {name} cache can't be written", seen, "a writable folder", _own(context, folder), cache=name
                )
            )
    return found or (
        [ok(f"{len(context.profile.caches)} caches are mounted and writable")] if context.profile.caches else []
    )


def _own(context: Context, folder: Folder) -> Remedy:
    if folder.read_only:
        return remedies.up(context)
    assert context.container is not None
    assert context.probe is not None
    owner = f"{context.probe.system.uid}:{context.probe.system.gid}"
    return remedies.command(f"docker exec --user 0 {context.container.name} chown -R {owner} {folder.path}")


def vocabulary(context: Context) -> list[Finding]:
    """The tiktoken files are the right ones: without them a server is healthy, and dies on the first prompt."""
    assert context.probe is not None
    tiktoken, files = context.profile.tiktoken, {file.path: file for file in context.probe.encodings}
    found = []
    for name, encoding in tiktoken.encodings.items():
        path = f"{tiktoken.directory}/{name}.tiktoken"
        file = files.get(path)
        if file is None:
            continue
        if not file.exists:
            found.append(
                error(
                    f"{name} is missing", f"{path} doesn't exist", f"sha256 {encoding.sha256}", remedies.build(context)
                )
            )
        elif file.sha256 != encoding.sha256:
            seen = f"{path} has sha256 {file.sha256}"
            found.append(error(f"{name} is another file", seen, f"sha256 {encoding.sha256}", remedies.build(context)))
    base = context.probe.variables.get("TIKTOKEN_ENCODINGS_BASE", "")
    if tiktoken.encodings and not found and base != str(tiktoken.directory):
        seen = f"TIKTOKEN_ENCODINGS_BASE={base}" if base else "TIKTOKEN_ENCODINGS_BASE isn't set"
        cure = remedies.up(context)
        found.append(
            error("the vocabulary files aren't used", seen, f"TIKTOKEN_ENCODINGS_BASE={tiktoken.directory}", cure)
        )
    return found or (
        [ok(f"{len(tiktoken.encodings)} vocabulary files are the right ones")] if tiktoken.encodings else []
    )


# --- machine ---------------------------------------------------------------------------------------------------------


def gpu(context: Context) -> list[Finding]:
    """The container sees a GPU, when the profile wants one."""
    assert context.probe is not None
    mode, nvidia = context.profile.gpu.value, context.probe.system.nvidia
    devices = [name for name in nvidia.devices if name.removeprefix("/dev/nvidia").isdigit()]
    if mode == "none":
        return []
    if devices:
        return [ok(f"the container sees {', '.join(devices)}", driver=nvidia.driver)]
    if mode == "auto":
        return [info("the container sees no GPU", "no /dev/nvidia*; gpu: auto takes none where the engine has none")]
    return [error("the container sees no GPU", "no /dev/nvidia*", f"gpu: {mode}", remedies.line("gpu: auto"))]


def jobs_fit_memory(context: Context) -> list[Finding]:
    """MAX_JOBS compilers fit into the memory that is free now."""
    assert context.probe is not None
    text, free = context.probe.variables.get("MAX_JOBS", ""), context.probe.system.MemAvailable
    if not text.isdigit() or not free:
        return []
    each = context.profile.build.memory_per_job.bytes
    needed, fits = int(text) * each, max(1, free // each)
    if needed > free and int(text) > 1:
        each_text = str(context.profile.build.memory_per_job)
        seen = f"MAX_JOBS={text}, {each_text} each = {needed // GIB} GiB; {free // GIB} GiB are free"
        cure = remedies.line(f"build: {{max_jobs: {fits}}}")
        return [warning("a JIT build may run out of memory", seen, f"at most {fits}", cure)]
    return [ok(f"MAX_JOBS={text} fits into {free // GIB} GiB of free memory")]
