"""Checks on sources, PYTHONPATH and Python packages."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envgen.profile.model import ORIGIN_KINDS, Mode, Origin
from envgen.profile.report import Report
from envgen.profile.values import LONGEST, ContainerPath, HostPath

# Names that mean something else where a source's name is used: stages of a Dockerfile, words of the command line.
RESERVED_SOURCES = frozenset(("all", "base", "context", "scratch", "scripts", "wheelhouse"))


def check(report: Report) -> None:
    """Note what is wrong with the sources and with what surrounds them."""
    for name, source in report.profile.sources.items():
        if name in RESERVED_SOURCES:
            report.problem(("sources", name), f"{name!r} is a reserved name", "choose another", at_key=True)
        _origin(report, name, source.origin)
        if source.submodule_origins and (source.origin.kind in ("pypi", "wheel", "folder") or not source.submodules):
            path = ("sources", name, "submodule_origins")
            hint = "give it a git origin, and leave `submodules` on"
            report.problem(path, "there are no submodules to replace", hint, at_key=True)
    _between(report)
    _python_path(report)
    _packages(report)


def _origin(report: Report, name: str, origin: Origin) -> None:
    path = ("sources", name, "origin")
    kinds = [kind for kind in ORIGIN_KINDS if getattr(origin, kind) is not None]
    if len(kinds) > 1:
        report.problem(path, f"names {' and '.join(kinds)}: a source has one origin", "keep one of them", whole=True)
    elif not kinds:
        hint = "write one of git (with ref or pull), pypi, wheel, folder, checkout"
        report.problem(path, "names no origin", hint, at_key=True, whole=True)
    if origin.git is not None:
        if origin.ref is None and origin.pull is None:
            hint = "add ref (a branch, tag or commit) or pull (a number)"
            report.problem(path, "git without ref or pull", hint, at_key=True, whole=True)
        if origin.git.startswith("file://") and report.is_shared((*path, "git")):
            report.problem((*path, "git"), "is a place on one machine", _LOCAL_HINT.format("a file:// address"))
    if origin.ref is not None and origin.pull is not None:
        report.problem((*path, "pull"), "ref and pull exclude each other", "keep one of them", at_key=True)
    for key in ("ref", "pull"):
        if getattr(origin, key) is not None and origin.git is None and not report.is_broken(".".join((*path, "git"))):
            report.problem((*path, key), f"{key} without git", "add the address: git: https://...", at_key=True)
    ref = origin.ref or ""
    if ".." in ref or "//" in ref or ref.endswith(("/", ".", ".lock")):
        report.problem((*path, "ref"), f"{ref!r} is not a branch, tag or commit")
    if origin.checkout is not None:
        if report.profile.mode is Mode.PRODUCTION and not report.is_broken("mode"):
            hint = "give it a git ref, a pypi or a wheel version; or set mode: development"
            report.problem((*path, "checkout"), "a production profile mounts no checkouts", hint, at_key=True)
        host_path(report, (*path, "checkout"), origin.checkout)


_LOCAL_HINT = "{} belongs into envgen.local.yaml, an ENVGEN_... variable or --set"


def host_path(report: Report, path: tuple[str, ...], value: HostPath) -> None:
    """A path of the machine: the shared file may not name places that only one machine has."""
    if value.is_machine_specific and report.is_shared(path):
        message = f"{str(value)!r} is a place on one machine; this file is shared"
        report.problem(path, message, _LOCAL_HINT.format("an absolute path"))
    if value.path.startswith("~") and not value.path.startswith("~/") and value.path != "~":
        report.problem(path, f"{str(value)!r} names another user's home", "write ~/... or an absolute path")
    if "$" in value.path:
        message = f"{str(value)!r} contains a $, but variables are not expanded here"
        report.problem(path, message, "write ~/... for your home")
    elif "{" in value.path or "}" in value.path:
        message = f"{str(value)!r} contains a brace, which a default of a Compose variable cannot carry"
        report.problem(path, message, "rename the folder, or reach it through a link")


def _between(report: Report) -> None:
    """Two sources that claim the same thing."""
    sources = report.sources("mount", "package", "distribution")
    for position, (name, source) in enumerate(sources):
        path = ("sources", name)
        for other, earlier in sources[:position]:
            if source.mount == earlier.mount:
                report.problem((*path, "mount"), f"{source.mount} is already the mount of {other}")
            elif source.mount.is_parent_of(earlier.mount) or earlier.mount.is_parent_of(source.mount):
                report.problem((*path, "mount"), f"{source.mount} and {earlier.mount} (of {other}) lie in each other")
            if source.package == earlier.package:
                report.problem((*path, "package"), f"{source.package} is already the package of {other}")
            if canonicalize_name(source.distribution) == canonicalize_name(earlier.distribution):
                report.problem((*path, "distribution"), f"{source.distribution} is already the distribution of {other}")


def _python_path(report: Report) -> None:
    entries = report.profile.python_path
    report.repeated(("python_path",), entries)
    mounted = {name: source for name, source in report.sources("mount", "package") if source.origin.kind == "checkout"}
    for number, entry in enumerate(entries):
        path = ("python_path", str(number))
        for name, source in mounted.items():
            if _parent(source.mount) == entry:
                message = (
                    f"{entry} is the parent folder of the checkout {source.mount}: from there Python sees the folder "
                    f"`{source.mount.path.rsplit('/', 1)[1]}`, which has no __init__.py, as a namespace package, and "
                    f"`import {source.package}` gives an empty module"
                )
                report.problem(path, message, f"name the checkout itself: {source.mount} (source {name})")
            elif entry.path == f"{source.mount.path}/{source.package}":
                message = f"{entry} is the package {source.package} itself: its modules would shadow others by name"
                report.problem(path, message, f"name the folder above it: {source.mount}")


def _parent(path: ContainerPath) -> ContainerPath:
    return ContainerPath(path.path.rsplit("/", 1)[0] or "/")


def _requirements(report: Report, path: tuple[str, ...], requirements: Sequence[str]) -> None:
    """What pip would refuse in mid-build."""
    for number, text in enumerate(requirements):
        try:
            Requirement(text)
        except InvalidRequirement as error:
            reason = str(error).split("\n", 1)[0]
            report.problem(
                (*path, str(number)), f"{text!r} is not a requirement: {reason}", "write it like cmake>=3.26"
            )


def _one_line(report: Report, path: tuple[str, ...], words: Sequence[str]) -> None:
    """Words that are printed into one line of a Dockerfile, each in quotes."""
    length = sum(len(word.encode()) + 3 + 4 * word.count("'") for word in words)
    if length > LONGEST:
        message = f"{length} bytes of words are more than one line of a Dockerfile carries ({LONGEST})"
        report.problem(path, message, "put the commands into a script of the source")


def _packages(report: Report) -> None:
    pip = report.profile.pip
    protected = {canonicalize_name(name) for name in pip.protect}
    sources = {canonicalize_name(source.distribution): name for name, source in report.sources("distribution")}
    for name, source in report.profile.sources.items():
        _requirements(report, ("sources", name, "install", "requires"), source.install.requires)
        _one_line(report, ("sources", name, "install", "prepare"), source.install.prepare)
    for number, name in enumerate(pip.remove):
        if canonicalize_name(name) in protected:
            message = f"{name} is in pip.protect: it can't be kept and removed"
            report.problem(("pip", "remove", str(number)), message, "remove it from one of the two")
    for key in ("tools", "deps"):
        _requirements(report, ("pip", key), getattr(pip, key))
        for number, requirement in enumerate(getattr(pip, key)):
            rest = requirement.lstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
            distribution = canonicalize_name(requirement.removesuffix(rest))
            path = ("pip", key, str(number))
            if distribution in protected:
                message = f"{distribution} is in pip.protect: it may not be installed"
                report.problem(path, message, "remove it from one of the two")
            if distribution in sources:
                message = f"{distribution} is what the source {sources[distribution]} installs; a wheel would hide it"
                report.problem(path, message, "remove it here")
