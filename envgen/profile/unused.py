"""Settings without effect: values of a file, a variable or an option that no output has, each with the reason.

The profile in use is judged, with its chosen variant. A value that another profile shares and uses is no mistake.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from envgen.errors import Place, Problem
from envgen.profile import layers
from envgen.profile.caches import FLASHINFER
from envgen.profile.checks import GATE
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
_PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


Row = tuple[Path_, str, str]  # the path of a value without effect, the reason, and what to do


def warnings(loaded: Loaded, names: Iterable[str], environ: Mapping[str, str] = NONE) -> tuple[Problem, ...]:
    """A warning for each setting of the profiles ``names`` without effect, in the order of the files.

    ``environ``: the variables that were laid over the profile in use.
    """
    problems = unread(environ)
    for name in names:
        problems += [*_unused(loaded, name), *_namespaces(loaded, name)]
        if name == loaded.chosen:
            problems += _idle(loaded, {problem.place.file for problem in problems if problem.place})

    def rank(problem: Problem) -> tuple[str, int, int]:
        place = problem.place or Place("")
        return (place.file, place.line, place.column)

    return tuple(dict.fromkeys(sorted(problems, key=rank)))


def _unused(loaded: Loaded, name: str) -> list[Problem]:
    """A value of the files that others share counts where all that have it don't use it."""
    tree, profile = loaded.trees[name], loaded.project.profiles[name]
    others = [other for key, other in loaded.trees.items() if key != name]
    idle = [{path for path, _, _ in _rows(loaded.project.profiles[key], loaded.trees[key])}
            for key in loaded.trees if key != name]  # fmt: skip
    problems = dict[Path_, Problem]()
    for path, message, hint in _rows(profile, tree):
        node = tree.at(path)
        if node is None or node.source.layer == DEFAULT or path in problems:
            continue
        shared = any(_has(other, path, node) and path not in unused for other, unused in zip(others, idle, strict=True))
        of_files = node.source.layer not in (ENVIRONMENT, SET, VARIANT)
        if of_files and (profile.variant or shared or _in_a_variant(tree, path)):
            continue
        above = ("variants", profile.variant.split("+")[-1]) if node.source.layer == VARIANT else ()
        key = re.sub(r"^secrets\.(\d+)$", r"secrets[\1]", join_path((*above, *path)))
        problems[path] = Problem(message, node.key_place(key), hint)
    return list(problems.values())


def _namespaces(loaded: Loaded, name: str) -> Iterator[Problem]:
    """Checkouts that Python takes for an empty namespace package in the working directory, above their packages."""
    profile, tree = loaded.project.profiles[name], loaded.trees[name]
    places = {profile.working_dir, *(one.working_dir for one in profile.services.values() if one.working_dir)}
    wanted = [str(one.mount) for one in profile.mounted_sources.values()]
    for key, source in profile.mounted_sources.items():
        above, _, folder = source.mount.path.rpartition("/")
        node = tree.at(("sources", key))
        if folder == source.package and above in map(str, places) and source.mount not in profile.python_path and node:
            message = f"in {above}, `import {source.package}` may give an empty namespace package, the folder {folder}"
            hint = f"write `python_path: [{', '.join([*map(str, profile.python_path), *wanted])}]`"
            yield Problem(message, node.key_place(f"sources.{key}"), hint)


def _in_a_variant(tree: YamlNode, path: Path_) -> bool:
    """Whether a variant, which may use the value at ``path``, changes its service."""
    variants = tree.items["variants"].elements if "variants" in tree.items else ()
    return path[0] == "services" and any(variant.at(path[:2]) is not None for variant in variants)


def _has(tree: YamlNode, path: Path_, node: YamlNode) -> bool:
    """Whether ``tree`` has the value of the same place of a file."""
    other = tree.at(path)
    return other is not None and (other.source.label, other.line, other.column, other.text) == (
        node.source.label, node.line, node.column, node.text,
    )  # fmt: skip


def _idle(loaded: Loaded, warned: set[str]) -> Iterator[Problem]:
    """The chosen variant, and each --set, without which the profile in use is the same."""
    profile, before = loaded.project.profiles[loaded.chosen], loaded.before
    if before is None:
        return
    if profile.variant and loaded.bound(layers.overridden(before, loaded.overrides)) == profile:
        node = before.at(("variants", profile.variant.split("+")[-1]))
        message, hint = "it changes nothing: what it sets is what the profile has", "remove it, or correct its values"
        yield Problem(message, node.key_place(f"variants.{profile.variant}") if node else None, hint)
    below = (with_variant(before, profile.variant) if profile.variant else None) or before
    sets = [one for one in loaded.overrides if not one.from_environment]
    for one in sets:
        others = [other for other in loaded.overrides if other is not one]
        if one.node.source.label not in warned and loaded.bound(layers.overridden(below, others)) == profile:
            later = [other for other in sets[sets.index(one) + 1 :] if other.path == one.path]
            why = "a later --set replaces it" if later else "the profile has this value without it"
            yield Problem(f"changes nothing: {why}", Place(one.node.source.label))


def unread(environ: Mapping[str, str]) -> list[Problem]:
    """A warning for each ENVGEN_... variable that is neither a key nor a variable of envgen's own."""
    found = []
    for variable in sorted(environ):
        parts = variable.removeprefix(layers.PREFIX).split("__")
        known = len(parts) > 1 or parts[0].lower() in fields_of(Profile)
        if not variable.startswith(layers.PREFIX) or known or not environ[variable].strip():
            continue
        if variable in layers.RESERVED or ELSEWHERE.fullmatch(variable):
            continue
        found.append(Problem("nothing reads this variable", Place(variable), _meant(variable)))
    return found


def _meant(variable: str) -> str:
    """The hint for a variable that nothing reads: a key with one underscore instead of two, or a similar name."""
    words = variable.removeprefix(layers.PREFIX).lower()
    if variable in GATE:
        return (
            f"compile-gate reads it in the container: write it into a group of `env`, or --set env.gate.{variable}=..."
        )
    for key in fields_of(Profile):
        if words.startswith(f"{key}_") and words != f"{key}_":
            return f"two underscores separate the parts: {layers.PREFIX}{key.upper()}__{words[len(key) + 1 :].upper()}"
    if words in ("variant", "timeout", "service", "node"):
        return f"write --{words} on the command line"
    if words in ("name", "default_profile", "version", "extends"):
        return "this key has no variable: write it into the file"
    similar = difflib.get_close_matches(variable, sorted(layers.RESERVED), 1)
    return f"did you mean {similar[0]}?" if similar else ""


# --- values of one profile without effect ---------------------------------------------------------------------------


def _rows(profile: Profile, tree: YamlNode) -> Iterator[Row]:
    yield from _nulls(tree, ())
    yield from _image(profile)
    yield from _bygone(profile)
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
            yield (*path, name), "null removes nothing: no weaker layer sets it", "remove this line"
        yield from _nulls(child, (*path, name))


def _image(profile: Profile) -> Iterator[Row]:
    if not profile.tiktoken.encodings:
        yield ("tiktoken", "directory"), "no file is put there: tiktoken.encodings is empty", ""
    if not profile.cuda.arch_list.archs and profile.gpu is GpuMode.NONE:
        yield ("cuda", "home"), "nothing is compiled for a GPU: cuda.arch_list is empty", ""
    if not any(source.origin.is_built for source in profile.sources.values()):
        hint = "a cache named `ccache` is for what services compile"
        yield ("build", "ccache"), "no source of this profile is built in its image", hint
    for number, name in enumerate(profile.secrets):
        if name.upper() in _PROXY:
            yield ("secrets", str(number)), f"services get {name} of your shell anyway", "leave it out"


def _source(source: Source) -> Iterator[Row]:
    if source.origin.kind == "checkout":
        yield ("submodule_origins",), "a checkout brings its own submodules", "set them in the checkout"
        yield ("install", "inputs"), "only image builds fetch them, and this source is mounted", ""
        if source.binaries is not None:
            yield ("install", "dependencies"), "its dependencies are those of `binaries`", ""
    else:
        built = {"git": "built from git", "pypi": "built from the index", "wheel": "a wheel"}
        what = built.get(source.origin.kind, "a folder")
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
    pin = (source and source.binaries) or origin.wheel or origin.pypi
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
            message = "a model that embeds, ranks or classifies is asked for that instead"
            yield from ((("ready", asked), message, "") for asked in ("prompt", "expect_text"))
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
    elif profile.services and all(service.shm_size is not None for service in profile.services.values()):
        yield ("shm_size",), "each service has a shm_size of its own", ""
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
