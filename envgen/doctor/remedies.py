"""Remedies: commands and lines of the project file."""

from __future__ import annotations

from collections.abc import Iterable

from envgen.doctor.model import Context, Remedy
from envgen.profile.model import Source
from envgen.render.outputs import RENDER_LABEL
from envgen.text import shell_line


def envgen(context: Context, verb: str, *words: str) -> Remedy:
    """An envgen command for this profile."""
    profile = context.profile
    line = ["envgen", *verb.split(), "-p", profile.name, *profile.options, *words]
    return Remedy(shell_line(line))


def build(context: Context) -> Remedy:
    """Build the image; a production build needs a lock first."""
    built = envgen(context, "build")
    return (
        Remedy(f"{context.profile.lock_command} && {built.text}") if context.is_unlocked else built
    )


def up(context: Context) -> Remedy:
    """Start the service; a running container whose settings differ is replaced."""
    replaces = (
        context.container is not None
        and context.container.state == "running"
        and not context.is_temporary
    )
    return _start(context, *(["--recreate"] if replaces else []))


def _start(context: Context, *words: str) -> Remedy:
    variant = ["--variant", context.profile.variant] if context.profile.variant else []
    return envgen(context, "up", context.service, *variant, *words)


def renew(context: Context) -> Remedy:
    """Make the container match the profile: a new container or, for what is in the image, a build."""
    digest = context.image.labels.get(RENDER_LABEL, "") if context.image else ""
    return up(context) if digest and digest == context.digest else build(context)


def anew(context: Context) -> Remedy:
    """A new container from the image: what was changed in its files goes, volumes and their caches
    stay.
    """
    return _start(context, "--recreate")


def away(context: Context, path: str) -> Remedy:
    """Move a file or folder of the container out of Python's way; nothing is deleted."""
    binds = list(context.container.mounts) if context.container else []
    if context.is_temporary:
        binds.clear()
    for mount in sorted(binds, key=lambda one: -len(one.target)):
        if path.startswith(f"{mount.target}/"):
            if mount.kind == "bind" and mount.read_only:  # only this machine can change it
                place = mount.source + path[len(mount.target) :]
                return Remedy(shell_line(["mv", place, f"{place}.off"]))
            break
    return inside(context, "mv", path, f"{path}.off")


def restart(context: Context) -> Remedy:
    return envgen(context, "restart", context.service)


def inside(context: Context, *words: str) -> Remedy:
    """A command inside the running service."""
    return envgen(context, "exec", context.service, *words)


def install(context: Context, name: str, source: Source, *, force: bool = False) -> Remedy:
    """Install a mounted source again (``force``: even if it looks installed), or rebuild the image
    that has it.
    """
    words = ["envgen-install", *(["--force"] if force else []), name]
    return inside(context, *words) if source.origin.kind == "checkout" else build(context)


def line(text: str) -> Remedy:
    """A line of the project file, below the profile."""
    return Remedy(text, is_line=True)


def python_path(context: Context, without: Iterable[str] = ()) -> Remedy:
    """The line that puts each mounted checkout (or a folder in it, such as `src`) first."""
    left_out = set(without)
    entries = [str(entry) for entry in context.profile.python_path if str(entry) not in left_out]
    mounts = [str(source.mount) for source in context.profile.mounted_sources.values()]
    missing = [
        mount
        for mount in mounts
        if not any(f"{entry}/".startswith(f"{mount}/") for entry in entries)
    ]
    wanted = missing + entries
    return line(f"python_path: [{', '.join(wanted)}]")
