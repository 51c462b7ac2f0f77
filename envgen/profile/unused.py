"""Settings without effect: values of a file, a variable or an option that no output has, each with the reason.

A value counts as used where any profile, with any of its variants, uses it: what `defaults` hold for one profile is no
mistake in the others. A value of ENVGEN_... and --set must reach the profile in use.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from envgen.errors import Place, Problem
from envgen.profile import layers
from envgen.profile.bind import Binding
from envgen.profile.caches import FLASHINFER
from envgen.profile.checks import GATE
from envgen.profile.load import Loaded, in_use, with_variant
from envgen.profile.model import GpuMode, Origin, Phases, Profile, Service, Source
from envgen.profile.shape import fields_of
from envgen.profile.tree import (
    DEFAULT,
    ENVIRONMENT,
    LIST,
    MAP,
    NULL,
    PROJECT,
    SET,
    VARIANT,
    ValueText,
    YamlNode,
    join_path,
    label_of,
    parse,
    text_of,
)
from envgen.profile.values import own_path
from envgen.text import first_of

Path_ = tuple[str, ...]
NONE: Mapping[str, str] = MappingProxyType({})
# Variables of plain `docker compose`, and of scripts/ and tests/ of this repository, besides `layers.RESERVED`.
ELSEWHERE = re.compile(
    r"ENVGEN_(HF_OFFLINE|NODE_[A-Z]+|HEAD_ADDRESS|CA|EXAMPLES|RECORD|DEBIAN_MIRROR|(TEST|ENGINE|PROOF)_.*)"
)
_PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_MOST = 4  # names in one line


@dataclass(frozen=True)
class Unused:
    """A value without effect. ``path``: in the profile's tree."""

    path: Path_
    message: str
    hint: str = ""


@dataclass(frozen=True)
class _Case:
    """A profile with one of its variants, or without (""), and its values without effect."""

    name: str
    profile: Profile
    tree: YamlNode
    variant: str
    found: Mapping[Path_, Unused]

    def uses(self, path: Path_, node: YamlNode) -> bool:
        """Whether the value at ``path`` is this one, and reaches somebody."""
        own = self.tree.at(path)
        return own is not None and _same_place(own, node) and path not in self.found


def warnings(loaded: Loaded, names: Iterable[str], environ: Mapping[str, str] = NONE) -> tuple[Problem, ...]:
    """A warning for each setting of the profiles ``names`` without effect, in the order of the files.

    ``environ``: the variables that were laid over the profile in use.
    """
    actual = {name: _case(loaded, name, tree) for name, tree in loaded.trees.items()}
    cases = {name: list(_cases(loaded, actual[name])) for name in actual}
    users = [*actual.values(), *(case for some in cases.values() for case in some)]
    idle = _idle_variants(cases)
    used: dict[object, bool] = {}
    warned = list[Problem]()
    for name in names:
        own = [actual[name]] if actual[name].variant else [actual[name], *cases[name]]
        problems = [problem for case in own for problem in _unused(case, users, used, is_actual=case is actual[name])]
        lines = {(one.place.file, one.place.line) for one in problems if one.place}
        problems = _merged(problems)
        problems += [one for one, inside in idle[name] if not inside & lines]
        warned += problems + _idle_options(loaded, actual[name], problems)
        warned += _overlay(loaded, actual[name].profile)
    return tuple(dict.fromkeys(sorted([*warned, *unread(environ)], key=_rank)))


def _unused(case: _Case, users: Iterable[_Case], used: dict[object, bool], *, is_actual: bool) -> Iterator[Problem]:
    """The values of ``case`` that no case of ``users`` uses; those of options only of the profile in use.

    ``used``: what is known already.
    """
    for found in case.found.values():
        node = case.tree.at(found.path)
        if node is None or node.source.layer == DEFAULT or (_of_option(node) and not is_actual):
            continue
        where = (node.source.label, node.line, node.column, found.path)
        if where not in used:  # many profiles share a line of the file
            used[where] = not _of_option(node) and any(one.uses(found.path, node) for one in users)
        if _of_option(node) or not used[where]:
            above = ("variants", case.variant) if node.source.layer == VARIANT else ()
            key = re.sub(r"^secrets\.(\d+)$", r"secrets[\1]", join_path((*above, *found.path)))
            yield Problem(found.message, node.key_place(key), found.hint)


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


# --- the cases ------------------------------------------------------------------------------------------------------


def _bound(loaded: Loaded, name: str, tree: YamlNode, variant: str = "") -> Profile:
    """The profile of a valid tree."""
    given = {"name": name, "project": loaded.project.name, "variant": variant}
    profile: Profile = Binding(partial=True).record(Profile, layers.filled(tree), "", **given)
    return profile


def _case(loaded: Loaded, name: str, tree: YamlNode, variant: str | None = None) -> _Case:
    if variant is None:
        variant = loaded.project.profiles[name].variant
    profile = _bound(loaded, name, tree, variant)
    found: dict[Path_, Unused] = {}
    for one in _rules(profile, tree):
        found.setdefault(one.path, one)
    return _Case(name, profile, tree, variant, found)


def _cases(loaded: Loaded, actual: _Case) -> Iterator[_Case]:
    """A profile without overrides: alone first, then with each of its variants."""
    tree = actual.tree
    if loaded.before is not None and actual.name == loaded.chosen:
        tree = loaded.before
        yield _case(loaded, actual.name, tree, "")
    else:
        yield actual
    for variant in actual.profile.variants:
        if (varied := with_variant(tree, variant)) is not None:
            yield _case(loaded, actual.name, varied, variant)


def _of_option(node: YamlNode) -> bool:
    return node.source.layer in (ENVIRONMENT, SET)


def _same_place(one: YamlNode, other: YamlNode) -> bool:
    if one.source.label != other.source.label:
        return False
    return (one.line, one.column, one.text) == (other.line, other.column, other.text)


def _rank(problem: Problem) -> tuple[str, int, int]:
    place = problem.place or Place("")
    return (place.file, place.line, place.column)


def _merged(problems: Iterable[Problem]) -> list[Problem]:
    """Variables of one group from one file in one warning."""
    found = list[Problem]()
    groups: dict[object, list[Problem]] = {}
    for problem in problems:
        place = problem.place or Place("")
        if re.match(r"(variants\.[^.]+\.)?env\.[^.]+\.", place.key):
            groups.setdefault((place.file, place.key.rpartition(".")[0], problem.message), []).append(problem)
        else:
            found.append(problem)
    for members in groups.values():
        first = min(members, key=_rank)
        place = first.place or Place("")
        names = list(dict.fromkeys((one.place or place).key.rpartition(".")[2] for one in members))
        if len(names) > 1:
            message = f"{', '.join(first_of(names, _MOST))}: {first.message}"
            first = replace(first, message=message, place=replace(place, key=place.key.rpartition(".")[0]))
        found.append(first)
    return found


# --- layers that change nothing -------------------------------------------------------------------------------------


def _idle_variants(cases: Mapping[str, list[_Case]]) -> dict[str, list[tuple[Problem, set[tuple[str, int]]]]]:
    """For each profile: variants that change no profile that has them, and the lines in them."""
    busy = set[tuple[str, int, int]]()
    idle: dict[str, list[tuple[YamlNode, str]]] = {}
    for name, (plain, *varied) in cases.items():
        for case in varied:
            node = case.tree.at(("variants", case.variant))
            assert node is not None
            if replace(in_use(case.profile), variant="") == in_use(plain.profile):
                idle.setdefault(name, []).append((node, case.variant))
            else:
                busy.add((node.source.label, node.line, node.column))
    message, hint = "it changes nothing: what it sets is what the profile has", "remove it, or correct its values"
    return {
        name: [
            (
                Problem(message, node.key_place(f"variants.{variant}"), hint),
                {(leaf.source.label, leaf.line) for leaf in _leaves(node)},
            )
            for node, variant in idle.get(name, ())
            if (node.source.label, node.line, node.column) not in busy
        ]
        for name in cases
    }


def _idle_options(loaded: Loaded, actual: _Case, warned: Iterable[Problem]) -> list[Problem]:
    """A warning for each --set without which the profile is the same."""
    sets = [one for one in loaded.overrides if not one.from_environment]
    keys = [one.place.file for one in warned if one.place]
    if loaded.before is None or not sets or actual.name != loaded.chosen:
        return []
    variant, name, found = actual.variant, actual.name, list[Problem]()
    below = (with_variant(loaded.before, variant) if variant else None) or loaded.before
    for one in sets:
        others = [other for other in loaded.overrides if other is not one]
        tree = layers.overridden(below, others)
        if one.node.source.label not in keys and in_use(_bound(loaded, name, tree, variant)) == in_use(actual.profile):
            later = [other for other in sets[sets.index(one) + 1 :] if other.path == one.path]
            why = "a later --set replaces it" if later else "the profile has this value without it"
            found.append(Problem(f"changes nothing: {why}", Place(one.node.source.label)))
    return found


def _overlay(loaded: Loaded, profile: Profile) -> list[Problem]:
    """What of the user's own Compose file is merged into nothing; the file itself is valid."""
    if profile.compose is None:
        return []
    path = loaded.project.root / own_path(profile.compose.path)
    label = label_of(path)
    top, _ = parse(ValueText(label, PROJECT, text_of(path, label)), foreign=True)
    assert top is not None
    services = top.items.get("services")
    names = services.names if services is not None else []
    if not names and not {one for one in top.names if not one.startswith("x-")} - {"services", "version"}:
        return [Problem("it adds nothing to the rendered file", top.place(), "remove it, and `compose` of the profile")]
    found = list[Problem]()
    for name in names:
        assert services is not None
        near = difflib.get_close_matches(name, profile.services, 1)
        if name not in profile.services and near:
            place = services.items[name].key_place(f"services.{name}")
            message = f"profile {profile.name} has no service {name}: this would be one of its own"
            found.append(Problem(message, place, f"did you mean `{near[0]}`?"))
    return found


def _leaves(node: YamlNode) -> Iterator[YamlNode]:
    if node.kind in (MAP, LIST) and node.items:
        for child in node.elements:
            yield from _leaves(child)
    else:
        yield node


# --- rules: values of one profile without effect ---------------------------------------------------------------------


def _rules(profile: Profile, tree: YamlNode) -> Iterator[Unused]:
    yield from _nulls(tree, ())
    yield from _groups(profile, tree)
    yield from _image(profile)
    for name, source in profile.sources.items():
        for one in _source(source):
            yield replace(one, path=("sources", name, *one.path))
    for name, service in profile.services.items():
        for one in _service(profile, service):
            yield replace(one, path=("services", name, *one.path))
    yield from _machine(profile)


def _nulls(node: YamlNode, path: Path_) -> Iterator[Unused]:
    """A null that removes nothing, in the shared file: below it, each profile is merged once."""
    for name, child in node.items.items() if node.kind == MAP else ():
        if name == "binaries" and path[:1] == ("sources",):  # it has a default: the wheel of the extended profile
            continue
        if child.kind == NULL and child.source.layer in (PROJECT, SET) and path[:1] != ("variants",):
            yield Unused((*path, name), "null removes nothing: no weaker layer sets it", "remove this line")
        yield from _nulls(child, (*path, name))


def _groups(profile: Profile, tree: YamlNode) -> Iterator[Unused]:
    groups = profile.env_groups
    env = tree.items.get("env")
    if groups is None or env is None:
        return
    chosen = f"[{', '.join(groups)}]"
    for group in env.names:
        if group in groups:
            continue
        hint = f"name {group} in env_groups of the profile or of a variant, or write them into services.NAME.env"
        for variable in env.items[group].names:
            yield Unused(("env", group, variable), f"no service gets it: env_groups is {chosen}", hint)


def _image(profile: Profile) -> Iterator[Unused]:
    if not profile.tiktoken.encodings:
        yield Unused(("tiktoken", "directory"), "no file is put there: tiktoken.encodings is empty")
    if not profile.cuda.arch_list.archs and profile.gpu is GpuMode.NONE:
        yield Unused(("cuda", "home"), "nothing is compiled for a GPU: cuda.arch_list is empty")
    if not any(source.origin.is_built for source in profile.sources.values()):
        hint = "a cache named `ccache` is for what services compile"
        yield Unused(("build", "ccache"), "no source of this profile is built in its image", hint)
    for number, name in enumerate(profile.secrets):
        if name.upper() in _PROXY:
            message = f"services get {name} of your shell anyway"
            yield Unused(("secrets", str(number)), message, "leave it out")


def _source(source: Source) -> Iterator[Unused]:
    origin, kind = source.origin, source.origin.kind
    if kind == "checkout":
        yield Unused(("submodule_origins",), "a checkout brings its own submodules", "set them in the checkout")
        yield Unused(("install", "inputs"), "only image builds fetch them, and this source is mounted")
        if source.binaries is not None:
            yield Unused(("install", "dependencies"), "its dependencies are those of `binaries`")
    else:
        yield Unused(("mount",), f"only a checkout is mounted, and this source is {_said(origin)}")
    if kind == "wheel":
        for key in ("requires", "env", "prepare", "inputs"):
            yield Unused(("install", key), "a wheel is installed as it is, not built")


def _said(origin: Origin) -> str:
    return {"git": "built from git", "pypi": "built from the index", "wheel": "a wheel"}.get(origin.kind, "a folder")


def _service(profile: Profile, service: Service) -> Iterator[Unused]:
    health, ready = service.health, service.ready
    if health is not None and health.http is None:
        for key in ("port", "complete"):
            yield Unused(("health", key), "only a check with `http` uses it")
    elif health is not None and (ready is None or ready.model is None):
        hint = "add ready.model: the name that /v1/models lists"
        yield Unused(("health", "complete"), "no token is asked for without ready.model", hint)
    if ready is not None:
        if service.http_port is None:
            message = "nothing is asked: no port is known to answer HTTP (ready.port)"
            yield Unused(("ready", "phases", "answer"), message)
            yield Unused(("ready", "prompt"), message)
        for phase in fields_of(Phases):
            limit = getattr(ready.phases, phase)
            if limit is not None and limit.seconds >= ready.timeout.seconds:
                message = f"{limit} is never reached: ready.timeout ends the wait after {ready.timeout}"
                yield Unused(("ready", "phases", phase), message)
    if profile.ipc == "host":
        yield Unused(("shm_size",), "with ipc: host, /dev/shm is the machine's", "leave one of the two out")
    if service.gpu is not None and profile.gpu is GpuMode.NONE:
        yield Unused(("gpu",), "the profile has gpu: none")


def _machine(profile: Profile) -> Iterator[Unused]:
    if profile.ipc == "host":
        yield Unused(("shm_size",), "with ipc: host, /dev/shm is the machine's", "leave one of the two out")
    elif profile.services and all(service.shm_size is not None for service in profile.services.values()):
        yield Unused(("shm_size",), "each service has a shm_size of its own")
    if profile.logging.driver in ("journald", "engine"):
        for one in ("max_size", "max_files"):
            yield Unused(("logging", one), f"logging.driver is {profile.logging.driver}, which has its own limits")
    for name in profile.caches:
        if name != FLASHINFER.name:
            yield Unused(("caches", name, "namespace"), "only the cache `flashinfer` has namespaces")
            yield Unused(("caches", name, "warm"), "only kernels of the cache `flashinfer` are compiled ahead")
    clusters = [service.cluster for service in profile.services.values() if service.cluster is not None]
    shared = {node for cluster in clusters for node in cluster.nodes}
    for name, machine in profile.nodes.items():
        if name not in shared:
            yield Unused(("nodes", name), "no service runs there: none has it in `cluster.nodes`")
        for cache in machine.caches:
            if cache in profile.caches and profile.caches[cache].host is None:
                hint = f"a volume has no folder: write caches.{cache}.host, too"
                yield Unused(("nodes", name, "caches", cache), f"the cache {cache} is a volume", hint)
