"""Semantic checks of a bound profile, which types and patterns cannot express. All of them run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name

from envgen.errors import Problem
from envgen.profile import caches, check_services
from envgen.profile.bind import LOCAL_HINT, Binding, Path_
from envgen.profile.bound import BoundProfile
from envgen.profile.model import ORIGIN_KINDS, GpuMode, Mode, Origin, Profile, Source
from envgen.profile.names import NAMES
from envgen.profile.tree import LIST, LOCAL, MAP, TEXT, YamlNode, below, suggestion
from envgen.redact import is_secret_value, secret_in, secret_like, secret_word

# Names with another meaning: stages of a Dockerfile, words of the command line.
RESERVED_SOURCES = frozenset(("all", "base", "context", "scratch", "scripts", "wheelhouse"))
OWN_VARIABLES: Mapping[str, str] = NAMES["own_variables"]
OWN_BIN = "/opt/envgen/bin"  # of the image, first in its PATH
GATE: Mapping[str, Mapping[str, str]] = NAMES["gate_variables"]


def check_profile(profile: Profile, tree: YamlNode, binding: Binding, root: Path) -> None:
    """Add all problems of ``profile`` to ``binding``."""
    report = BoundProfile(profile, tree, binding, root)
    _image(report)
    _sources(report)
    _python_path(report)
    _packages(report)
    _env(report)
    _secrets(report)
    check_services.check(report)
    _own(report)
    _variants(report)
    _targets(report)


def check_project(profiles: Mapping[str, Profile], trees: Mapping[str, YamlNode]) -> list[Problem]:
    """Problems between the profiles of one project."""
    problems = []
    writers: dict[str, str] = {}
    for name, profile in profiles.items():
        first = writers.setdefault(
            profile.dockerfile.lower(), name
        )  # the same file where case does not count
        if first != name:
            place = trees[name].key_place(f"profiles.{name}")
            message = f"profiles {first} and {name} both write {profile.dockerfile}"
            problems.append(
                Problem(message, place, f"give one of them another name, such as Dockerfile.{name}")
            )
    return problems


def _image(report: BoundProfile) -> None:
    profile = report.profile
    if not profile.cuda.arch_list.archs and profile.gpu is not GpuMode.NONE and not report.partial:
        hint = "write `cuda: {arch_list: 12.1a}`; without a GPU: gpu: none"
        report.problem("cuda.arch_list", "is required", hint)
    bare = [str(arch) for arch in profile.cuda.arch_list.archs if arch.needs_suffix_for_fp4]
    if bare:
        better = " ".join(
            str(a) + ("a" if a.needs_suffix_for_fp4 else "") for a in profile.cuda.arch_list.archs
        )
        message = f"{', '.join(bare)} has no FP4 instructions without the suffix a or f"
        report.problem("cuda.arch_list", message, f"write {better}")
    if profile.image is not None and profile.image == profile.base.image:
        report.problem(
            "image",
            "is the base image itself, which a build would overwrite",
            "choose another name",
        )


def _targets(report: BoundProfile) -> None:
    for name, target in report.profile.targets.items():
        for figure, text in target.figures.items():
            if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", text) or not float(text):
                where = ("targets", name, "figures", figure)
                report.problem(where, f"{text!r} is not a speed", "write a number, such as 57.85")


def _variants(report: BoundProfile) -> None:
    """Check that variants change existing services."""
    services = list(report.profile.services)
    for name in report.profile.variants:
        section = report.at("variants", name)
        for service in section.names("services"):
            if service not in services and not section.is_broken(""):
                message = f"this profile has no service {service!r} to change"
                section.problem(("services", service), message, suggestion(service, services))


# --- sources and packages
# -------------------------------------------------------------------------------------------


def _sources(report: BoundProfile) -> None:
    for name, source in report.profile.sources.items():
        section = report.at("sources", name)
        if name in RESERVED_SOURCES:
            section.problem("", f"{name!r} is a reserved name", "choose another")
        _origin(section, source.origin)
        if source.submodule_origins and source.origin.kind == "wheel":
            hint = "give it a git origin"
            section.problem("submodule_origins", "there are no submodules to replace", hint)
        _binaries(section, source)
    # Two sources that claim the same thing.
    sources = report.sources("mount", "package", "distribution")
    taken: dict[str, dict[object, str]] = {"mount": {}, "package": {}, "distribution": {}}
    for name, source in sources:
        section = report.at("sources", name)
        names = (source.mount, source.package, canonicalize_name(source.distribution))
        for value, (key, owners) in zip(names, taken.items(), strict=True):
            section.once(owners, value, name, key, f"the {key} of {{}}")


def _binaries(section: BoundProfile, source: Source) -> None:
    """Check that `binaries` are for a mounted source, and of its distribution."""
    if source.binaries is None:
        return
    if source.origin.kind != "checkout":
        message = "binaries are only for a mounted checkout"
        section.problem("binaries", message, "remove it, or write `origin: {checkout: FOLDER}`")
    if canonicalize_name(source.binaries.name) != canonicalize_name(source.distribution):
        hint = f"write {replace(source.binaries, name=source.distribution)}"
        section.problem(
            "binaries",
            f"names {source.binaries.name}, but the distribution is {source.distribution}",
            hint,
        )


def _origin(source: BoundProfile, origin: Origin) -> None:
    section = source.at("origin")
    kinds = [kind for kind in ORIGIN_KINDS if getattr(origin, kind) is not None]
    if len(kinds) > 1:
        section.problem(
            "",
            f"names {' and '.join(kinds)}: a source has one origin",
            "keep one of them",
            whole=True,
        )
    elif not kinds:
        hint = "write one of git (with ref), wheel, checkout"
        section.problem("", "names no origin", hint, whole=True)
    if origin.git is not None:
        if origin.ref is None:
            hint = "add ref: a branch, tag or commit"
            section.problem("", "git without ref", hint, whole=True)
        if origin.git.startswith("file://") and section.is_shared("git"):
            section.problem(
                "git", "is an address on one machine", LOCAL_HINT.format("a file:// address")
            )
    if origin.ref is not None and origin.git is None and not section.is_broken("git"):
        section.problem("ref", "ref without git", "add the address: git: https://...")
    if origin.checkout is not None:
        if section.profile.mode is Mode.PRODUCTION and not section.top.is_broken("mode"):
            hint = "give it a git ref or a wheel version; or set mode: development"
            node = section.node("checkout")
            if node is not None and node.source.layer == LOCAL:
                hint = "write it below `profiles:`, for those that mount it"
            section.problem("checkout", "a production profile cannot mount checkouts", hint)
        section.host_path("checkout", origin.checkout, checkout=True)


def _python_path(report: BoundProfile) -> None:
    entries = report.profile.python_path
    mounted = [
        source
        for _, source in report.sources("mount", "package")
        if source.origin.kind == "checkout"
    ]
    for number, entry in enumerate(entries):
        for source in mounted:
            parent, _, folder = source.mount.path.rpartition("/")
            if (parent or "/") == entry.path:
                message = f"from {entry}, `import {source.package}` gives a namespace package, the folder {folder}"
                report.problem(
                    ("python_path", number), message, f"name the checkout itself: {source.mount}"
                )
            elif entry.path == f"{source.mount.path}/{source.package}":
                message = f"{entry} is the package {source.package} itself: its modules would shadow others by name"
                report.problem(
                    ("python_path", number), message, f"name the folder above it: {source.mount}"
                )


def _packages(report: BoundProfile) -> None:
    section = report.at("pip")
    pip = report.profile.pip
    protected = {canonicalize_name(name) for name in pip.protect}
    sources = {
        canonicalize_name(source.distribution): name
        for name, source in report.sources("distribution")
    }
    for number, name in enumerate(pip.remove):
        if canonicalize_name(name) in protected:
            message = f"{name} is also in pip.protect"
            section.problem(("remove", number), message, "remove it from one of the two")
    for key, requirements in (("tools", pip.tools), ("deps", pip.deps)):
        for number, text in enumerate(requirements):
            name = canonicalize_name(re.split(r"[^\w.-]", text, maxsplit=1)[0])
            if name in protected:
                message = f"{name} is also in pip.protect, which keeps the base image's"
                section.problem((key, number), message, "remove it from one of the two")
            if name in sources:
                message = f"{name} is what the source {sources[name]} installs, and a wheel would replace it"
                section.problem((key, number), message, "remove it here")


# --- variables
# ------------------------------------------------------------------------------------------------------


def _env(report: BoundProfile) -> None:
    profile = report.profile
    secrets = report.profile.secrets
    places: dict[Path_, Mapping[str, str]] = {("env",): profile.env}
    for name, service in profile.services.items():
        places["services", name, "env"] = service.env
    for name, source in profile.sources.items():
        places["sources", name, "install", "env"] = source.install.env
    for path, variables in places.items():
        for name, value in variables.items():
            cache = caches.SETS.get(name)
            hint = OWN_VARIABLES.get(name, "")
            if cache in profile.caches:
                hint = f"use the key caches.{cache}.path"
            if hint:
                report.problem((*path, name), f"envgen sets {name} itself", hint)
            elif name == "PATH" and path[0] != "sources" and OWN_BIN not in value.split(":"):
                message = f"without {OWN_BIN} no container would find envgen-install, envgen-env and compile-gate"
                report.problem((*path, name), message, f"PATH: {OWN_BIN}:{value}")
            elif name in GATE:
                switch = GATE[name]
                if not re.fullmatch(switch["pattern"], value):
                    message = f"compile-gate would ignore {value!r}"
                    report.problem((*path, name), message, f"write {switch['meaning']}")
            elif name.startswith("ENVGEN_"):
                message = f"{name}: names that begin with ENVGEN_ are reserved"
                report.problem((*path, name), message, "choose another")
            if name in secrets:
                hint = "leave it in `secrets` alone: its value comes from your shell when a service starts"
                report.problem((*path, name), f"{name} is also in `secrets`", hint)
    for number, name in enumerate(secrets):
        if name in OWN_VARIABLES:
            report.problem(("secrets", number), f"envgen sets {name} itself", OWN_VARIABLES[name])


# --- secrets
# --------------------------------------------------------------------------------------------------------

_PROSE = frozenset(("description", "prompt", "expect_text", "expect", "forbid"))


def _secrets(report: BoundProfile) -> None:
    """Refuse secrets in every text of the merged profile, since rendered files are committed and
    images are shared.
    """
    for path, _ in below(report.tree):
        if kind := secret_in(path[-1]):
            message = f"this name looks like a secret ({kind}); rendered files are not secret"
            report.problem(path, message, "choose another name", hidden=True)
    for path, node in _texts(report.tree, ()):
        if path[-1:] and path[-1] in report.profile.secrets and "env" in path:
            continue  # a problem of _env
        if node.kind == LIST:
            words = [child.text for child in node.elements]
            before = 0
            if path[-2:-1] == ("args",):  # the words behind a flag
                words.insert(0, f"--{path[-1]}")
                before = 1
            kind = ""
            secret = secret_word(words)
            if secret:
                number, kind = secret
                path = (*path, str(max(number - before, 0)))
        else:
            kind = _secret_text(path, node.text)
        if kind:
            what = "a login in an address" if kind == "login" else f"a secret ({kind})"
            message = f"{_subject(path)}looks like {what}; rendered files are not secret"
            report.problem(path, message, _instead(path), hidden=True)


def _texts(node: YamlNode, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], YamlNode]]:
    """Each text, and each list of words, with its path."""
    is_text = node.kind == TEXT
    match path:
        case (*_, "command" | "prepare") | (*_, "args", _):
            is_text = node.kind in (TEXT, LIST)
    if is_text:
        yield path, node
    elif node.kind in (MAP, LIST):
        for key, child in node.items.items():
            yield from _texts(child, (*path, key))


def _name(path: tuple[str, ...]) -> str:
    return next((part for part in reversed(path) if not part.isdigit()), "")


def _secret_text(path: tuple[str, ...], text: str) -> str:
    prose = bool(_PROSE.intersection(path))
    kind = secret_in(text, prose=prose)
    if kind or prose or not {"env", "args"} & set(path):
        return kind
    name = _name(path)
    is_secret = secret_like(name.replace("-", "_")) and is_secret_value(text)
    return f"value of {name}" if is_secret else ""


def _subject(path: tuple[str, ...]) -> str:
    if path[-2:-1] == ("env",):
        return f"the value of {_name(path)} "
    return f"--{path[path.index('args') + 1]} " if "args" in path[:-1] else ""


def _instead(path: tuple[str, ...]) -> str:
    """The hint: where to put this secret."""
    if path[0] == "sources":
        return "builds get no secrets: use ssh, git's credential helper, or for package indexes pip.netrc"
    if path[-2:-1] == ("env",):
        return f"write `secrets: [{path[-1]}]` and export it in your shell"
    if "args" in path or "command" in path:
        return "write `secrets: [VLLM_API_KEY]` (the variable that the server reads) and export it in your shell"
    return "keep it out of this file: `secrets` passes variables of your shell to services"


# --- files of the project
# --------------------------------------------------------------------------------------------


def _own(report: BoundProfile) -> None:
    profile = report.profile
    if profile.build.wheelhouse is not None:
        report.host_path("build.wheelhouse", profile.build.wheelhouse)
    if profile.pip.netrc is not None:
        report.host_path("pip.netrc", profile.pip.netrc)
    if profile.network.ca_certificates is not None:
        report.host_path("network.ca_certificates", profile.network.ca_certificates)
    for place, lines in (
        ("base", profile.dockerfile_extra.base),
        ("end", profile.dockerfile_extra.end),
    ):
        for number, line in enumerate(lines):
            path = ("dockerfile_extra", place, number)
            for copied in line.sources:
                report.in_project(path, copied)
    if profile.compose is not None:
        report.own_path("compose", profile.compose.path)
