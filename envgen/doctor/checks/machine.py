"""Checks inside the container: Python, mounts and caches."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from envgen.doctor import remedies
from envgen.doctor.model import Context, Findings, Remedy, Section, check, error, ok, warning
from envgen.doctor.probed import FolderFacts, Probe
from envgen.inside.jit.shapes import Module
from envgen.profile.caches import HUGGINGFACE
from envgen.text import counted, first_of, shell_line

REMOVED = "//deleted"  # the kernel's mark of a removed folder in /proc/self/mountinfo


@check("python.start", Section.INSIDE)
def probe_ran(context: Context) -> Findings:
    """The probe returned a complete document."""
    probe = context.probe
    python = context.profile.base.python
    if context.trouble:
        cure = remedies.inside(context, python, "-c", "pass")
        wanted = "one JSON document from Python in the container"
        title = "the probe gave no answer"
        yield error(title, context.trouble, wanted, cure, case="no-document")
    if probe is None:
        return None
    for failed in probe.errors:
        cure = remedies.envgen(context, "doctor", "--json")
        title = f"a part of the probe failed: {failed.part}"
        yield warning(title, failed.error, "facts", cure, case="part")
    version = probe.python.version.partition(" ")[0]
    return ok(f"Python {version}, {probe.python.executable}")


# --- mounts and files
# ------------------------------------------------------------------------------------------------


@check("mounts.sources", Section.INSIDE, needs="probe")
def source_mounts(context: Context, probe: Probe) -> Findings:
    """Each mounted checkout is the folder that is there now, and the container's user may write to it."""
    folders = {folder.path: folder for folder in probe.folders if folder.mounted}
    for name, source in context.profile.mounted_sources.items():
        folder = folders.get(str(source.mount))
        if folder is None:
            continue  # container.settings and import.truth report that
        if place := _moved(name, folder, context):
            title = f"{name}: its folder was moved or removed while it was mounted"
            again = remedies.restart(context)
            yield error(
                title, f"{place} at {folder.path}", f"the checkout of {name}", again, case="moved"
            )
        elif not any(
            root.root.startswith(f"{folder.path}/")
            for root in probe.roots
            if root.package == source.package
        ):
            title = f"{name}: the mounted folder is not its checkout"
            evidence = f"{folder.path} has no {source.package}"
            point_at = remedies.line(f"sources: {{{name}: {{origin: {{checkout: ../{name}}}}}}}")
            yield error(title, evidence, f"the checkout of {name}", point_at, case="no-package")
        elif not folder.writable:
            evidence = f"{_owner(folder)}; the container runs as {probe.system.uid}"
            cure = _own(context, folder, context.checkouts.get(name, ""))
            yield warning(
                f"{name} is not writable for the container's user",
                evidence,
                "writable",
                cure,
                case="owner",
            )
        else:
            yield ok(f"{name} is mounted at {folder.path}")
    return None


def _moved(name: str, folder: FolderFacts, context: Context) -> str:
    """The path in its file system of a mounted folder that was moved or removed on the host; else
    "".

    Only if path and inode differ: the path may differ for other reasons (links, subvolumes), and so
    may the inode (an engine in a VM).
    """
    if folder.root.endswith(REMOVED):
        return f"{folder.root.removesuffix(REMOVED)} (removed)"
    place = context.checkouts.get(name, "")
    now = context.inodes.get(name)
    mounts = context.container.mounts if context.container and not context.is_temporary else ()
    is_ours = any(
        it.kind == "bind" and (it.source, it.target) == (place, folder.path) for it in mounts
    )
    same = (
        now is None
        or folder.inode in (0, now)
        or posixpath.basename(folder.root) == posixpath.basename(place)
    )
    return folder.root if is_ours and not same else ""


def _owner(folder: FolderFacts) -> str:
    return f"{folder.path} belongs to {folder.uid}:{folder.gid}, mode {folder.mode}"


def _own(context: Context, folder: FolderFacts, place: str) -> Remedy:
    """Make the folder writable. ``place``: the folder on this machine; "": a volume, which `up`
    fixes.
    """
    system = context.inside.system
    container = None if context.is_temporary else context.container
    if folder.read_only or not (container or place):
        return remedies.up(context)
    if not system.uid:  # userns-remap: root in the container is another user on the machine
        return remedies.line(f"services: {{{context.service}: {{user: host}}}}")
    owner = f"{system.uid}:{system.gid}"
    if container is None:
        return Remedy(shell_line(["sudo", "chown", "-R", owner, place]))
    return Remedy(
        shell_line(
            ["docker", "exec", "--user", "0", container.name, "chown", "-R", owner, folder.path]
        )
    )


@check("mounts.caches", Section.INSIDE, needs="probe")
def caches(context: Context, probe: Probe) -> Findings:
    """Each cache is mounted and writable."""
    folders = {folder.path: folder for folder in probe.folders}
    named = context.profile.caches
    for name, cache in named.items():
        folder = folders.get(str(cache.path))
        if folder is None:
            continue
        if not folder.exists or not folder.mounted:
            title = f"the {name} cache isn't mounted and is lost with the container"
            yield warning(title, folder.path, "a mount", remedies.up(context), case="not-mounted")
        elif name == HUGGINGFACE.name and context.profile.only_reads_weights:
            continue
        elif folder.read_only or not folder.writable:
            evidence = _owner(folder) + (", mounted read-only" if folder.read_only else "")
            title = f"the {name} cache is not writable"
            cure = _own(context, folder, str(cache.host or ""))
            yield error(title, evidence, "a writable folder", cure, case="not-writable")
    if not named:
        return None
    return ok(f"{counted(len(named), 'cache is', 'caches are')} mounted and writable")


@check("caches.stale", Section.INSIDE, needs="modules")
def modules(context: Context, listed: Sequence[Module]) -> Findings:
    """No compiled kernel is of other files than those that are there now."""
    for guess in (False, True):  # one edit of a header can be of all kernels
        stale = [module for module in listed if module.state == "stale" and module.guess is guess]
        names = [module.name for module in stale]
        several = len(stale) > 1
        perhaps = "perhaps " * guess
        if not stale:
            continue
        title = f"the compiled kernel {names[0]} is {perhaps}stale: its old code may run"
        seen = dict[str, None]()
        for module in stale:
            for reason in module.reasons:
                if reason.stale:
                    words = [reason.message, *reason.files[:1]]
                    seen[" ".join(words)] = None
        evidence = first_of(list(seen), 3)
        cure = ["cache why" if guess else "cache clear", names[0]]
        if several:
            title = f"{len(stale)} compiled kernels are {perhaps}stale: their old code may run"
            evidence = [", ".join(first_of(names, 5)), *evidence]
            cure = ["cache list"] if guess else ["cache clear", "--stale"]
        remedy = remedies.envgen(context, *cure)
        case = "guess" if guess else "stale"
        yield warning(title, "; ".join(evidence), "the files that are there now", remedy, case=case)
    if not listed:
        return None
    return ok(f"{counted(len(listed), 'kernel')} compiled, none stale")
