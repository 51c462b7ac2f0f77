"""What a lock changes in a plan, and the key of FlashInfer's JIT cache.

FlashInfer separates its cache only by its version and the GPU archs. Two sources of one version (a
wheel, a commit, a patched commit), two CUDA releases or two torches share it, and make each other's
modules stale. The key is a digest of what the modules depend on, and part of the name of the volume
or host folder. In the container the path is always the same, because build.ninja and ninja's
records have absolute paths.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from envgen.errors import EnvgenError
from envgen.lock.ask import locked, patched, python_sets
from envgen.lock.model import LOCAL, GitLock, Pinned, ProfileLock, facts_of, load, with_version
from envgen.profile.caches import FLASHINFER
from envgen.profile.model import Profile, Source
from envgen.profile.values import ImageRef
from envgen.render.environment import WRITTEN, cache_variable, cache_volume, compose_environment

if TYPE_CHECKING:
    from envgen.patches.series import Series

LOCKED = "/run/envgen/locked.txt"  # a step's list of packages
HASHED = ("--no-deps", "--require-hashes", "-r", LOCKED)
_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}


def base_image(image: ImageRef, lock: ProfileLock | None) -> str:
    """The name after FROM; with the digest, unless only the local engine has the image."""
    if lock is None or lock.base is None or lock.base.resolved == LOCAL or image.digest:
        return str(image)
    return f"{image}@{lock.base.digest}"


def git_words(lock: GitLock | None, ref: str) -> tuple[str, str]:
    """(what to fetch, the full ref of a locked commit)."""
    if lock is None:
        return ref, ""
    if lock.kind == "commit":
        return lock.commit, ""
    if not ref.startswith("refs/"):
        folder = {"tag": "refs/tags/", "branch": "refs/heads/"}.get(lock.kind, "")
        ref = folder + ref
    return lock.commit, ref


def requirements(profile: Profile, lock: ProfileLock | None) -> dict[str, str]:
    """Step -> its locked list of packages; "" for a step that installs nothing."""
    if lock is None or not lock.python:
        return {}
    lists = {}
    platforms = sorted(lock.python.items())
    for step in python_sets(profile):
        pins = {
            platform: python.sets[step.name]
            for platform, python in platforms
            if step.name in python.sets
        }
        if len(pins) == len(platforms):
            lists[step.name] = _requirements(pins)
    return lists


def _requirements(pins: Mapping[str, tuple[Pinned, ...]]) -> str:
    """Lines for pip and uv, with markers where platforms differ. `==1.0` would be 1.0+local, too,
    whose hash is not in the lock.
    """
    versions: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    for platform, each in pins.items():
        for pin in each:
            hashes_of = versions.setdefault((pin.name, pin.version), {})
            hashes_of[platform] = pin.hashes
    lines = []
    for (name, version), platforms in sorted(versions.items()):
        marker = ""
        machines = [_MACHINES[one] for one in platforms if one in _MACHINES]
        if machines and len(platforms) < len(pins):
            tests = [f'platform_machine == "{machine}"' for machine in machines]
            marker = f" ; {' or '.join(tests)}"
        hashes = sorted(set().union(*platforms.values()))
        options = " ".join(f"--hash=sha256:{digest}" for digest in hashes)
        lines.append(f"{name}==={version}{marker} {options}\n")
    return "".join(lines)


def manifest(profile: Profile, lock: ProfileLock | None) -> str:
    """The manifest of inputs in the image; "" without a lock."""
    if lock is None:
        return ""
    unresolved = set()
    for python in lock.python.values():
        unresolved |= {f"{step}: {why}" for step, why in python.open.items()}
    document = {
        "#": WRITTEN,
        "format": 1,
        "project": profile.project,
        "profile": profile.name,
        "lock": lock.digest,
        "epoch": lock.epoch,
        "inputs": facts_of(lock),
        "open": sorted(unresolved),
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


LABEL = "dev.envgen.lock"


def lock_of(profile: Profile, root: Path) -> ProfileLock | None:
    """The part of envgen.lock for ``profile``; None without that file."""
    lock = load(root)
    return locked(profile, lock) if lock else None


CACHE = FLASHINFER.name
LENGTH = 12
_TORCH = re.compile(r"torch\b(?![-_])")


def key_parts(
    profile: Profile, lock: ProfileLock | None, series: Mapping[str, Series]
) -> dict[str, str]:
    """The parts of the key, by name. A mounted checkout counts by its path, since a new key for
    each edit would start
    an empty cache; `cache why` and `clear --stale` handle edits."""
    parts = {
        "base": str(profile.base.image),
        "cuda_home": profile.cuda.HOME.path,
        "archs": str(profile.cuda.arch_list),
        "flashinfer": _source(profile, lock),
    }
    if lock and lock.base:
        parts["base"] += f"@{lock.base.digest}"
    if profile.base.platform is not None:
        parts["platform"] = str(profile.base.platform)
    patches = series.get(CACHE)
    if patches is not None and patches.patches:
        digest = hashlib.sha256(b"\0".join(patch.content for patch in patches.patches)).hexdigest()
        parts["patches"] = digest[:LENGTH]
    torch = [word for word in (*profile.pip.tools, *profile.pip.deps) if _TORCH.match(word)]
    if torch:
        parts["torch"] = " ".join(torch)
    return parts


def _source(profile: Profile, lock: ProfileLock | None) -> str:
    source = profile.sources.get(CACHE)
    if source is None:
        asked = (*profile.pip.tools, *profile.pip.deps)
        words = [word for word in asked if word.lower().startswith("flashinfer")]
        return " ".join(words) or "of the base image"
    origin = source.origin
    if origin.checkout is not None:
        return f"checkout at {source.mount.path}"
    if origin.wheel is not None:
        return str(with_version(origin.wheel, lock))
    locked = lock.git.get(CACHE) if lock else None
    return f"{origin.git} {locked.commit if locked else origin.ref}"


ALIKE = 6  # digits of a key that are the same for caches that differ by patches alone


def key_of(parts: Mapping[str, str]) -> str:
    """Twelve hexadecimal digits; with patches, the first of them are those without."""
    rest = {name: value for name, value in parts.items() if name != "patches"}
    return _hex_of(rest)[:ALIKE] + _hex_of(dict(parts))[ALIKE:LENGTH]


def _hex_of(parts: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def series_of(profile: Profile, root: Path | None) -> dict[str, Series]:
    """Source -> its patches, of the sources that a build patches. ProjectError with everything
    wrong in them.
    """
    folders = {name: source.patches for name, source in profile.sources.items() if source.patches}
    if not folders:
        return {}
    if root is None:
        raise EnvgenError(
            f"profile {profile.name} has patches; rendering it needs the project's folder"
        )
    from envgen.patches.series import load_series  # with `packaging`, for profiles with patches

    series = {
        name: load_series(root, folder) for name, folder in folders.items()
    }  # a mounted one's must be there, too
    return {name: series[name] for name in patched(profile)}


def built_version(source: Source, lock: ProfileLock | None) -> str:
    """The version that a build installs: of the origin, else of the lock; "" if it is not known."""
    wheel = source.origin.wheel
    return with_version(wheel, lock).version if wheel is not None else source.origin.version


def applied(
    profile: Profile, lock: ProfileLock | None, series: Mapping[str, Series]
) -> dict[str, Series]:
    """``series`` without the patches for other versions than the profile's."""
    return {
        name: one.for_version(built_version(profile.sources[name], lock))
        for name, one in series.items()
    }


def left_out(profile: Profile, lock: ProfileLock | None, series: Mapping[str, Series]) -> list[str]:
    """A sentence for each source with patches that are not for its version."""
    lines = (
        one.left_out(built_version(profile.sources[name], lock)) for name, one in series.items()
    )
    return [f"{profile.name}: {line}" for line in lines if line]


def namespace(profile: Profile, lock: ProfileLock | None, series: Mapping[str, Series]) -> str:
    """The key of this profile's cache; "" without such a cache, or with `namespace: false`."""
    cache = profile.caches.get(CACHE)
    return key_of(key_parts(profile, lock, series)) if cache is not None and cache.namespace else ""


def volume_of(profile: Profile, cache: str, key: str) -> str:
    """The Docker volume of a cache that has no folder on the host; ``key`` is only for
    FlashInfer's.
    """
    name = cache_volume(profile, cache)
    return f"{name}-{key}" if key and cache == CACHE else name


def folder_of(cache: str, key: str) -> str:
    """The part after the host's folder: ``/envgen-KEY``, or ""."""
    return f"/envgen-{key}" if key and cache == CACHE else ""


def places_of(profile: Profile, root: Path, key: str) -> Iterator[tuple[str, str, str]]:
    """Source, target and kind (volume, bind) of each cache, as `envgen up` mounts it on this
    machine.

    ``key``: of FlashInfer's (``namespace``).
    """
    machine = compose_environment(profile, root)
    for name, cache in profile.caches.items():
        target = cache.path.path
        if cache.host is None:
            volume = volume_of(profile, name, key)
            yield volume, target, "volume"
        else:
            folder = machine[cache_variable(name)]
            yield folder + folder_of(name, key), target, "bind"
