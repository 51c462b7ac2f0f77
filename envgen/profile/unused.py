"""Settings without effect: values of a file, a variable or an option that no output has, each with
the reason.

The profile in use is judged, with its chosen variant; of its values, those that no other profile
shares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from envgen.binding import JsonObject
from envgen.errors import Place, Problem
from envgen.profile import layers
from envgen.profile.caches import FLASHINFER
from envgen.profile.flags import RANKS, plain_name, takes_no_prompt
from envgen.profile.load import Loaded
from envgen.profile.model import GpuMode, Profile, Source
from envgen.profile.names import NAMES
from envgen.profile.service import Service
from envgen.profile.tree import (
    DEFAULT,
    ENVIRONMENT,
    NULL,
    PROJECT,
    SET,
    YamlNode,
    below,
    join_path,
)

Path_ = tuple[str, ...]
NONE: Mapping[str, str] = MappingProxyType({})
# Variables of envgen, of plain `docker compose`, and of scripts/ and tests/ of this repository,
# besides `layers.OF_COMPOSE`.
KNOWN = re.compile(
    r"ENVGEN_(FILE|PROFILE|MEMORY_FLOOR|UID|GID|HF_OFFLINE|NODE_[A-Z]+|HEAD_ADDRESS|CA|EXAMPLES|RECORD"
    r"|DEBIAN_MIRROR|(TEST|ENGINE|PROOF)_.*)"
)
DEAD: JsonObject = NAMES["dead_variables"]
HOST_IPC = "with ipc: host, /dev/shm is the machine's", "leave one of the two out"
_Reason = tuple[str, str] | None


def warnings(loaded: Loaded, environ: Mapping[str, str] = NONE) -> tuple[Problem, ...]:
    """A warning for each setting of the profile in use without effect. ``environ``: the variables
    laid over it.
    """
    return tuple(dict.fromkeys([*unread(environ), *_unused(loaded)]))


def unread(environ: Mapping[str, str]) -> Iterator[Problem]:
    """A warning for each ENVGEN_... variable that nothing reads."""
    for name in sorted(environ):
        is_known = layers.OF_COMPOSE.fullmatch(name) or KNOWN.fullmatch(name)
        if name.startswith("ENVGEN_") and environ[name].strip() and not is_known:
            hint = "--set KEY=VALUE or envgen.local.yaml changes a key of the profile"
            yield Problem("nothing reads this variable", Place(name), hint)


# --- values without effect
# --------------------------------------------------------------------------------------------


def _unused(loaded: Loaded) -> Iterator[Problem]:
    profile = loaded.project.profiles[loaded.chosen]
    for path, node in below(loaded.trees[loaded.chosen]):
        found = _reason(profile, path, node)
        if not found or node.source.layer == DEFAULT or _shared(loaded, path, node):
            continue
        message, hint = found
        yield Problem(message, node.key_place(join_path(path)), hint)


def _shared(loaded: Loaded, path: Path_, node: YamlNode) -> bool:
    """Whether a value of a file may have its effect elsewhere: in another profile, or with another
    variant.
    """
    if node.source.layer in (ENVIRONMENT, SET):
        return False
    own = loaded.trees[loaded.chosen]
    chosen = loaded.project.profiles[loaded.chosen].variant
    if chosen:  # its own values are judged
        return all(own.at(("variants", one, *path)) is not node for one in chosen.split("+"))
    variants = own.at(("variants",))
    for variant in variants.elements if variants else ():
        if path[0] == "services" and variant.at(path[:2]):
            return True
    for name, tree in loaded.trees.items():
        other = tree.at(path)
        if name != loaded.chosen and other and other.place() == node.place():
            return True
    return False


def _reason(profile: Profile, path: Path_, node: YamlNode) -> _Reason:
    """Why a value of a profile has no effect, and what to do; None if it has one."""
    match path:
        case ("variants", *_):
            return None
        case ("sources", _, "binaries"):  # a null takes away a default of `binaries`
            return None
    # Below a project's own values, each profile is merged once.
    if node.kind == NULL and node.source.layer in (PROJECT, SET):
        return "null removes nothing: no weaker layer sets it", 'remove it; an empty text is ""'
    match path:
        case ("sources", name, *keys) if keys:
            return _of_source(profile, profile.sources[name], keys)
        case ("services", name, *keys) if keys:
            return _of_service(profile, profile.services[name], keys)
        case ("env", name):
            return _of_variable(profile, name)
        case ("build", "ccache") if not any(
            source.origin.is_built for source in profile.sources.values()
        ):
            hint = "a cache named `ccache` is for what services compile"
            return "no source is built in the image", hint
        case ("shm_size",) if profile.ipc == "host":
            return HOST_IPC
        case ("caches", name, "namespace") if name != FLASHINFER.name:
            return "only the cache `flashinfer` has namespaces", ""
        case ("nodes", name) if not any(
            name in service.cluster.nodes
            for service in profile.services.values()
            if service.cluster is not None
        ):
            return "no service runs there: none has it in `cluster.nodes`", ""
        case ("nodes", _, "caches", name) if name in profile.caches:
            if profile.caches[name].host is None:
                hint = f"a volume has no folder: write caches.{name}.host, too"
                return f"the cache {name} is a volume", hint
    return None


def _of_source(profile: Profile, source: Source, keys: Sequence[str]) -> _Reason:
    match keys:
        case ("origin", "checkout") if above := _above_package(profile, source):
            why = f"in {above}, `import {source.package}` may give an empty namespace package, the checkout"
            return why, f"add {source.mount} to `python_path`"
        case ("mount",) if source.origin.kind != "checkout":
            return "only a checkout is mounted", ""
        case ("submodule_origins",) if source.origin.kind == "checkout":
            return "a checkout brings its own submodules", "set them in the checkout"
        case ("install", "inputs") if not source.origin.is_built:
            return "only an image build fetches them, and this source is not built there", ""
        case ("install", "requires" | "env" | "prepare") if source.origin.kind == "wheel":
            return "a wheel is installed as it is, not built", ""
        case ("install", "dependencies") if source.binaries is not None:
            return "its dependencies are those of `binaries`", ""
    return None


def _of_service(profile: Profile, service: Service, keys: Sequence[str]) -> _Reason:
    match keys:
        case ("env", name):
            return _of_variable(profile, name)
        case ("args", flag) if _lacks_gpus(profile, service, flag):
            why = f"{service.ranks} ranks need as many GPUs, and one machine has fewer for this service"
            return why, "write `cluster: {nodes: [...]}` for several machines, or a smaller size"
        case ("health", "complete" | "wedged") if not (service.ready and service.ready.model):
            hint = "add ready.model: the name that /v1/models lists"
            return "no token is asked for without ready.model", hint
        case ("health" | "ready", "complete" | "wedged" | "expect_text") if takes_no_prompt(
            service.flag
        ):
            return "a model that embeds, ranks or classifies completes no text", ""
        case ("ports",) if service.flag("host") in ("127.0.0.1", "localhost"):
            why = "the server listens on its container's own loopback, where nothing reaches it"
            return why, "write `args: {host: 0.0.0.0}`; `ports` say who reaches it"
        case ("ready", "prompt") if service.http_port is None:
            return "nothing is asked: no port is known to answer HTTP (ready.port)", ""
        case ("gpu",) if profile.gpu is GpuMode.NONE:
            return "the profile has gpu: none", ""
        case ("shm_size",) if profile.ipc == "host":
            return HOST_IPC
    return None


def _of_variable(profile: Profile, name: str) -> _Reason:
    dead = DEAD.get(name)
    if dead is None or _vllm(profile) < dead["since"]:
        return None
    return "vLLM no longer reads it", dead["instead"]


def _vllm(profile: Profile) -> list[int]:
    """Major and minor version of the profile's vLLM; zeros where they are not known, as of a fork."""
    source = profile.sources.get("vllm")
    pin = source and (source.binaries or source.origin.wheel)
    text = re.match(r"v?(\d+)\.(\d+)", pin.version if pin else (source and source.origin.ref) or "")
    return [int(text[1]), int(text[2])] if text else [0, 0]


def _above_package(profile: Profile, source: Source) -> str:
    """The working directory above a checkout with the name of its package, whose packages Python
    does not find.
    """
    above, _, folder = source.mount.path.rpartition("/")
    places = [profile.working_dir, *(service.working_dir for service in profile.services.values())]
    hidden = folder == source.package and source.mount not in profile.python_path
    return above if hidden and above in map(str, places) else ""


def _lacks_gpus(profile: Profile, service: Service, flag: str) -> bool:
    """Whether vLLM has more ranks than one machine has GPUs for it; reported at the first flag of
    ``RANKS``.
    """
    if not service.is_vllm or service.cluster is not None:
        return False
    first = next((key for key in service.args if plain_name(key) in RANKS), "")
    if service.gpu:
        gpus = len(service.gpu)
    elif profile.cuda.arch_list.shares_memory:
        gpus = 1
    else:
        return False
    return flag == first and gpus < service.ranks
