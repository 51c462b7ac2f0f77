"""The key under which FlashInfer's JIT cache lives: what its modules depend on, so that none is found by another.

FlashInfer itself separates its cache by its version and the GPU archs alone. Two sources of one version (a wheel, a
commit, a patched commit), two CUDA releases or two torches share it, and one's modules are stale or lost for the other.
The key decides which volume, or which folder on the host, is mounted; inside, the path is always the same, because
absolute paths are in build.ninja and in ninja's records.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from envgen.errors import EnvgenError
from envgen.lock.model import ProfileLock
from envgen.patches.series import Series, load_series, version_of
from envgen.profile.model import Profile
from envgen.render.environment import cache_variable, cache_volume, compose_environment
from envgen.render.locking import lock_of_image

CACHE = "flashinfer"
LENGTH = 12
_TORCH = re.compile(r"torch\b(?![-_])")


def made_of(profile: Profile, lock: ProfileLock | None, series: Mapping[str, Series]) -> dict[str, str]:
    """Everything that the key is made of, in words. A mounted checkout counts by its place: its edits are what `cache
    why` and `clear --changed` are for, and each edit would otherwise start an empty cache."""
    base = lock.base if lock else None
    found = {
        "base": f"{profile.base.image}" + (f"@{base.digest}" if base is not None else ""),
        "cuda_home": profile.cuda.home.path,
        "archs": profile.cuda.arch_list.flashinfer,
        "flashinfer": _source(profile, lock),
    }
    patches = series.get(CACHE)
    if patches is not None and patches.patches:
        digest = hashlib.sha256(b"\0".join(patch.content for patch in patches.patches)).hexdigest()
        found["patches"] = digest[:LENGTH]
    torch = [word for word in (*profile.pip.tools, *profile.pip.deps) if _TORCH.match(word)]
    if torch:
        found["torch"] = " ".join(torch)
    return found


def _source(profile: Profile, lock: ProfileLock | None) -> str:
    source = profile.sources.get(CACHE)
    if source is None:
        words = [word for word in (*profile.pip.tools, *profile.pip.deps) if word.lower().startswith("flashinfer")]
        return " ".join(words) or "of the base image"
    origin = source.origin
    if origin.checkout is not None:
        return f"checkout at {source.mount.path}"
    if origin.folder is not None:
        return f"folder {origin.folder}"
    if origin.pypi is not None:
        return str(origin.pypi)
    if origin.wheel is not None:
        return str(origin.wheel)
    locked = lock.git.get(CACHE) if lock else None
    return f"{origin.git} {locked.commit if locked else origin.git_ref}"


def key_of(made: Mapping[str, str]) -> str:
    """Twelve hexadecimal digits."""
    return hashlib.sha256(json.dumps(dict(made), sort_keys=True).encode()).hexdigest()[:LENGTH]


def series_of(profile: Profile, root: Path | None) -> dict[str, Series]:
    """The patches of each source that has some, without those for other versions (`envgen patch list` shows them)."""
    named = {name: s for name, s in profile.sources.items() if s.patches and s.origin.kind != "checkout"}
    if not named:
        return {}
    if root is None:
        raise EnvgenError(f"profile {profile.name} has patches; rendering it needs the project's folder")
    found = {name: load_series(root, source.patches or "") for name, source in named.items()}
    return {name: series.for_version(version_of(named[name].origin)) for name, series in found.items()}


def namespace_here(profile: Profile, root: Path, labels: Mapping[str, str] | None) -> str:
    """The key as `envgen up` renders it: by the project's lock, unless the image (its ``labels``) has none."""
    cache = profile.caches.get(CACHE)
    if cache is None or not cache.namespace:
        return ""
    return namespace(profile, lock_of_image(profile, root, labels), series_of(profile, root))


def namespace(profile: Profile, lock: ProfileLock | None, series: Mapping[str, Series]) -> str:
    """The key of this profile's cache; empty where it has none, or wants one place for everything."""
    cache = profile.caches.get(CACHE)
    return key_of(made_of(profile, lock, series)) if cache is not None and cache.namespace else ""


def volume_of(profile: Profile, cache: str, key: str) -> str:
    """The Docker volume of a cache that has no folder on the host; ``key`` counts for FlashInfer's alone."""
    name = cache_volume(profile, cache)
    return f"{name}-{key}" if key and cache == CACHE else name


def folder_of(cache: str, key: str) -> str:
    """What follows the host's folder: ``/envgen-KEY``, or nothing."""
    return f"/envgen-{key}" if key and cache == CACHE else ""


def mounts_of(profile: Profile, root: Path, labels: Mapping[str, str] | None) -> Iterator[tuple[str, str, str]]:
    """``places_of`` without folders that are not there: a throw-away container must not make them."""
    for place, target, kind in places_of(profile, root, labels):
        if kind == "volume" or Path(place).is_dir():
            yield place, target, kind


def places_of(profile: Profile, root: Path, labels: Mapping[str, str] | None) -> Iterator[tuple[str, str, str]]:
    """Source, target and kind (volume, bind) of each cache, as `envgen up` mounts it on this machine."""
    key = namespace_here(profile, root, labels)
    machine = compose_environment(profile, root)
    for name, cache in profile.caches.items():
        if cache.host is None:
            yield volume_of(profile, name, key), cache.path.path, "volume"
            continue
        yield machine[cache_variable(name)] + folder_of(name, key), cache.path.path, "bind"
