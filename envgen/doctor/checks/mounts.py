"""Mounted checkouts, cache folders and vocabulary files, as the container sees them."""

from __future__ import annotations

import posixpath

from envgen.doctor import remedies
from envgen.doctor.evidence import Folder, Probe
from envgen.doctor.model import Context, Finding, Remedy, Where, check, error, ok, warning
from envgen.profile.model import Source
from envgen.text import counted

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
