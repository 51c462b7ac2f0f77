"""Settings without effect: values of a file, a variable or an option that no output has, each with the reason.

The profile in use is judged, with its chosen variant; of its values, those that no other profile shares.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from envgen.errors import Place, Problem
from envgen.profile import layers
from envgen.profile.caches import FLASHINFER
from envgen.profile.flags import RANKS, plain_name, takes_no_prompt
from envgen.profile.load import Loaded, with_variant
from envgen.profile.model import GpuMode, Origin, Profile, Source
from envgen.profile.service import Service
from envgen.profile.shape import fields_of
from envgen.profile.tree import DEFAULT, ENVIRONMENT, MAP, NULL, PROJECT, SET, VARIANT, YamlNode, join_path

Path_ = tuple[str, ...]
NONE: Mapping[str, str] = MappingProxyType({})
# Variables of plain `docker compose`, and of scripts/ and tests/ of this repository, besides `layers.RESERVED`.
ELSEWHERE = re.compile(
    r"ENVGEN_(HF_OFFLINE|NODE_[A-Z]+|HEAD_ADDRESS|CA|EXAMPLES|RECORD|DEBIAN_MIRROR|(TEST|ENGINE|PROOF)_.*)"
)


Row = tuple[Path_, str, str]  # the path of a value without effect, the reason, and what to do


def warnings(loaded: Loaded, environ: Mapping[str, str] = NONE) -> tuple[Problem, ...]:
    """A warning for each setting of the profile in use without effect, in the order of the files.

    ``environ``: the variables that were laid over it.
    """
    problems = [*unread(environ), *_unused(loaded)]
    problems += _idle(loaded, {problem.place.file for problem in problems if problem.place})

    def rank(problem: Problem) -> tuple[str, int, int]:
        place = problem.place or Place("")
        return (place.file, place.line, place.column)

    return tuple(dict.fromkeys(sorted(problems, key=rank)))


def _unused(loaded: Loaded) -> list[Problem]:
    tree, profile = loaded.trees[loaded.chosen], loaded.project.profiles[loaded.chosen]
    problems = dict[Path_, Problem]()
    for path, message, hint in _rows(profile, tree):
        node = tree.at(path)
        if node is None or node.source.layer == DEFAULT or path in problems:
            continue
        of_files = node.source.layer not in (ENVIRONMENT, SET, VARIANT)
        if of_files and (profile.variant or _serves_others(loaded, path, node)):
            continue
        above = ("variants", profile.variant.split("+")[-1]) if node.source.layer == VARIANT else ()
        problems[path] = Problem(message, node.key_place(join_path((*above, *path))), hint)
    return list(problems.values())


def _serves_others(loaded: Loaded, path: Path_, node: YamlNode) -> bool:
    """Whether another profile has the value of the same place, or a variant, which may use it, changes its service."""
    trees = [other.at(path) for name, other in loaded.trees.items() if name != loaded.chosen]
    same = (node.source.label, node.line, node.column)
    if any(other is not None and (other.source.label, other.line, other.column) == same for other in trees):
        return True
    variants = loaded.trees[loaded.chosen].at(("variants",))
    changed = [one.at(path[:2]) for one in variants.elements] if variants is not None else []
    return path[0] == "services" and any(one is not None for one in changed)


def _idle(loaded: Loaded, warned: set[str]) -> Iterator[Problem]:
    """Each --set without which the profile in use is the same."""
    profile, before = loaded.project.profiles[loaded.chosen], loaded.before
    if before is None:
        return
    below = (with_variant(before, profile.variant) if profile.variant else None) or before
    for override in loaded.overrides:
        others = [other for other in loaded.overrides if other is not override]
        label = override.node.source.label
        if override.from_environment or label in warned or loaded.bound(layers.overridden(below, others)) != profile:
            continue
        yield Problem("changes nothing: the profile is the same without it", Place(label))


def unread(environ: Mapping[str, str]) -> Iterator[Problem]:
    """A warning for each ENVGEN_... variable that is neither a key nor a variable of envgen's own."""
    for variable in sorted(environ):
        words = variable.removeprefix(layers.PREFIX).lower()
        known = "__" in words or words in fields_of(Profile) or variable in layers.RESERVED
        if not variable.startswith(layers.PREFIX) or known or not environ[variable].strip():
            continue
        if ELSEWHERE.fullmatch(variable):
            continue
        key = next((key for key in fields_of(Profile) if words.startswith(f"{key}_") and words != f"{key}_"), "")
        whole = f"{layers.PREFIX}{key.upper()}__{words[len(key) + 1 :].upper()}"
        similar = difflib.get_close_matches(variable, sorted(layers.RESERVED), 1)
        hint = f"did you mean {similar[0]}?" if similar else ""
        hint = f"two underscores separate the parts: {whole}" if key else hint
        yield Problem("nothing reads this variable", Place(variable), hint)


# --- values of one profile without effect ---------------------------------------------------------------------------


def _rows(profile: Profile, tree: YamlNode) -> Iterator[Row]:
    yield from _nulls(tree, ())
    yield from _image(profile)
    yield from _bygone(profile)
    yield from _namespaces(profile)
    for name, source in profile.sources.items():
        yield from (((*("sources", name), *path), message, hint) for path, message, hint in _source(source))
    for name, service in profile.services.items():
        rows = _service(profile, service)
        yield from (((*("services", name), *path), message, hint) for path, message, hint in rows)
    yield from _machine(profile)


def _nulls(node: YamlNode, path: Path_) -> Iterator[Row]:
    """A null that removes nothing, in the shared file: below it, each profile is merged once."""
    for name, child in node.items.items() if node.kind == MAP else ():
        if name == "binaries" and path[:1] == ("sources",):  # it has a default: the wheel of the extended profile
            continue
        if child.kind == NULL and child.source.layer in (PROJECT, SET) and path[:1] != ("variants",):
            yield (*path, name), "null removes nothing: no weaker layer sets it", 'remove it; an empty text is ""'
        yield from _nulls(child, (*path, name))


def _image(profile: Profile) -> Iterator[Row]:
    if not profile.cuda.arch_list.archs and profile.gpu is GpuMode.NONE:
        yield ("cuda", "home"), "nothing is compiled for a GPU: cuda.arch_list is empty", ""
    if not any(source.origin.is_built for source in profile.sources.values()):
        hint = "a cache named `ccache` is for what services compile"
        yield ("build", "ccache"), "no source of this profile is built in its image", hint


def _namespaces(profile: Profile) -> Iterator[Row]:
    """Checkouts that Python takes for an empty namespace package in the working directory, above their packages."""
    places = {profile.working_dir, *(one.working_dir for one in profile.services.values() if one.working_dir)}
    wanted = ", ".join(map(str, (*profile.python_path, *(one.mount for one in profile.mounted_sources.values()))))
    for name, source in profile.mounted_sources.items():
        above, _, folder = source.mount.path.rpartition("/")
        if folder == source.package and above in map(str, places) and source.mount not in profile.python_path:
            message = f"in {above}, `import {source.package}` may give an empty namespace package, the folder {folder}"
            yield ("sources", name, "origin", "checkout"), message, f"write `python_path: [{wanted}]`"


def _source(source: Source) -> Iterator[Row]:
    if source.origin.kind == "checkout":
        yield ("submodule_origins",), "a checkout brings its own submodules", "set them in the checkout"
        yield ("install", "inputs"), "only image builds fetch them, and this source is mounted", ""
        if source.binaries is not None:
            yield ("install", "dependencies"), "its dependencies are those of `binaries`", ""
    else:
        what = "built from git" if source.origin.is_built else "a wheel"
        yield ("mount",), f"only a checkout is mounted, and this source is {what}", ""
    for key in ("requires", "env", "prepare", "inputs") if source.origin.kind == "wheel" else ():
        yield ("install", key), "a wheel is installed as it is, not built", ""


# Variables of earlier vLLM releases, and what replaces each. 0.14.0 reads all but VLLM_USE_CUDA_GRAPH, 0.30.0 none.
DEAD = {
    "VLLM_ATTENTION_BACKEND": "write `args: {attention-config: {backend: ...}}`",
    "VLLM_USE_CUDA_GRAPH": "graphs are on by default; `args: {enforce-eager: true}` turns them off",
    "VLLM_FLASHINFER_MOE_BACKEND": "write `args: {moe-backend: ...}`, such as flashinfer_cutlass",
    "VLLM_MXFP4_USE_MARLIN": "write `args: {moe-backend: marlin}`",
}


def _bygone(profile: Profile) -> Iterator[Row]:
    """Variables that the profile's vLLM no longer reads; nothing is said of a fork, whose release is not known."""
    source = profile.sources.get("vllm")
    origin = source.origin if source is not None else Origin()
    pin = (source and source.binaries) or origin.wheel
    text = re.match(r"v?(\d+)\.(\d+)", pin.version if pin else origin.ref or "")
    release = (int(text[1]), int(text[2])) if text else (0, 0)
    places: list[tuple[Path_, Mapping[str, str]]] = [(("env", group), names) for group, names in profile.env.items()]
    places += [(("services", name, "env"), service.env) for name, service in profile.services.items()]
    for path, name in ((path, name) for path, names in places for name in DEAD if name in names):
        if release >= (0, 30) or (name == "VLLM_USE_CUDA_GRAPH" and source is not None):
            why = f"vLLM {text[1]}.{text[2]} does not read it" if text else "no release of vLLM reads it"
            yield (*path, name), why, DEAD[name]


def _service(profile: Profile, service: Service) -> Iterator[Row]:
    health, ready = service.health, service.ready
    gpus = len(service.gpu) if service.gpu else 1 if profile.cuda.arch_list.shares_memory else 0
    if service.is_vllm and service.cluster is None and 0 < gpus < service.ranks:
        flag = next((key for name in RANKS for key in service.args if plain_name(key) == name), "tensor-parallel-size")
        message = f"{service.ranks} ranks need as many GPUs, and one machine has {gpus} for this service"
        yield ("args", flag), message, "write `cluster: {nodes: [...]}` for several machines, or a smaller size"
    if health is not None and (ready is None or ready.model is None):
        hint = "add ready.model: the name that /v1/models lists"
        yield ("health", "complete"), "no token is asked for without ready.model", hint
    if ready is not None:
        if service.is_vllm and takes_no_prompt(service.flag):
            message = "a model that embeds, ranks or classifies completes no text"
            yield from ((path, message, "") for path in (("ready", "expect_text"), ("health", "complete")))
        if service.http_port is None:
            message = "nothing is asked: no port is known to answer HTTP (ready.port)"
            yield ("ready", "prompt"), message, ""
    if profile.ipc == "host":
        yield ("shm_size",), *_SHM
    if service.gpu is not None and profile.gpu is GpuMode.NONE:
        yield ("gpu",), "the profile has gpu: none", ""


_SHM = ("with ipc: host, /dev/shm is the machine's", "leave one of the two out")


def _machine(profile: Profile) -> Iterator[Row]:
    if profile.ipc == "host":
        yield ("shm_size",), *_SHM
    for name in (name for name in profile.caches if name != FLASHINFER.name):
        yield ("caches", name, "namespace"), "only the cache `flashinfer` has namespaces", ""
        yield ("caches", name, "warm"), "only kernels of the cache `flashinfer` are compiled ahead", ""
    shared = {node for service in profile.services.values() if service.cluster for node in service.cluster.nodes}
    for name, machine in profile.nodes.items():
        if name not in shared:
            yield ("nodes", name), "no service runs there: none has it in `cluster.nodes`", ""
        for cache in (cache for cache in machine.caches if cache in profile.caches):
            if profile.caches[cache].host is None:
                hint = f"a volume has no folder: write caches.{cache}.host, too"
                yield ("nodes", name, "caches", cache), f"the cache {cache} is a volume", hint
