"""What the profile promises a container: variables, mounts, and the digest of its image."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from envgen import __version__
from envgen.paths import state_dir, templates_dir
from envgen.render import plan

if TYPE_CHECKING:
    from envgen.engine.base import Engine, Mount
    from envgen.profile.model import Profile

PER_MACHINE = ("MAX_JOBS",)  # computed when a service starts


def service_env(profile: Profile, service: str) -> dict[str, str]:
    """The variables of a service, weakest first: derived from the profile, its groups in their order, its own.

    PYTHONPATH of the image is only a beginning: what the base image has follows it.
    """
    described = profile.services.get(service)
    chosen = described.env_groups if described else None
    env = plan.derived_env(profile)
    for name, group in profile.env.items():
        in_use = profile.env_groups is None or name in profile.env_groups
        if in_use and (chosen is None or name in chosen):
            env.update(group)
    env.update(described.env if described else {})
    return {name: value for name, value in env.items() if name not in PER_MACHINE}


def mounts(profile: Profile, root: Path, engine: Engine) -> list[Mount]:
    """What Compose would mount, as far as it exists: a throw-away container must not create folders and volumes."""
    from envgen.engine.base import Mount

    machine = plan.compose_environment(profile, root, 1)
    found = []
    for name, source in profile.mounted_sources.items():
        folder = machine.get(plan.checkout_variable(name), "")
        if Path(folder).is_dir():
            found.append(Mount(folder, str(source.mount)))
    volumes = [(plan.overlay_volume(profile), plan.OVERLAY)] if profile.mounted_sources else []
    for name, cache in profile.caches.items():
        folder = machine.get(plan.cache_variable(name), "")
        if not cache.host:
            volumes.append((plan.cache_volume(profile, name), str(cache.path)))
        elif Path(folder).is_dir():
            found.append(Mount(folder, str(cache.path)))
    return [*found, *(Mount(name, target, "volume") for name, target in volumes if engine.volume(name) is not None)]


# --- the digest of the image -----------------------------------------------------------------------------------------


def _read(profile: Profile, root: Path) -> Iterator[Path]:
    """Every file that a render reads, besides the project file (whose values are in the profile)."""
    yield from sorted(templates_dir().rglob("*"))
    yield from sorted((Path(__file__).parents[1] / "render").glob("*.py"))
    for source in profile.sources.values():
        if source.patches:
            yield from sorted((root / "patches" / source.patches).glob("*"))
    for encoding in profile.tiktoken.encodings.values():
        if encoding.file:
            yield root / encoding.file.path


def _key(profile: Profile, root: Path) -> str:
    found = hashlib.sha256(f"{__version__}\0{profile!r}".encode("utf-8", "backslashreplace"))
    for path in _read(profile, root):
        with contextlib.suppress(OSError):
            stat = path.stat()
            found.update(f"\0{path}\0{stat.st_mtime_ns}\0{stat.st_size}".encode("utf-8", "backslashreplace"))
    return found.hexdigest()


def image_digest(profile: Profile, root: Path) -> str:
    """The render digest that an image of this profile would carry now.

    Rendering costs more than the whole doctor, so its result is remembered until something that it reads has changed.
    """
    memory, key = state_dir(root) / "state" / f"digest-{profile.name}.json", _key(profile, root)
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(memory.read_text(encoding="utf-8"))
        if isinstance(known, dict) and known.get("key") == key:
            return str(known["digest"])
    from envgen.render.outputs import render_profile

    digest = render_profile(profile, root=root).digest
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        memory.write_text(json.dumps({"key": key, "digest": digest}), encoding="utf-8")
    return digest
