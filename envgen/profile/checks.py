"""Semantic checks over a bound profile: what types and patterns cannot say. All run, whatever the others found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from envgen.errors import Problem
from envgen.profile import check_env, check_nodes, check_own, check_secrets, check_services, check_sources
from envgen.profile.bind import Binding
from envgen.profile.model import Profile
from envgen.profile.report import Report
from envgen.profile.tree import DEFAULT, LIST, Node, near


def check_profile(profile: Profile, tree: Node, binding: Binding, root: Path) -> None:
    """Note everything that is wrong with ``profile``."""
    report = Report(profile, tree, binding, root)
    _image(report)
    check_sources.check(report)
    check_env.check(report)
    check_secrets.check(report)
    check_services.check(report)
    check_nodes.check(report)
    check_own.check(report)
    _variants(report)


def _image(report: Report) -> None:
    profile = report.profile
    bare = [str(arch) for arch in profile.cuda.arch_list.archs if arch.needs_suffix_for_fp4]
    if profile.cuda.fp4 and bare:
        better = " ".join(str(a) + ("a" if a.needs_suffix_for_fp4 else "") for a in profile.cuda.arch_list.archs)
        report.problem(
            ("cuda", "arch_list"),
            f"{', '.join(bare)} has no FP4 instructions without the suffix a or f",
            f"write {better}; or cuda.fp4: false when no FP4 kernel is ever built",
        )
    if profile.image is not None and profile.image.digest:
        report.problem(("image",), "names a digest, which only a finished image has", "leave the @sha256:... out")
    if profile.image is not None and profile.image == profile.base.image:
        message = "is the base image itself, which a build would overwrite"
        report.problem(("image",), message, "choose a name of your own")
    if profile.dockerfile.lower().endswith(".dockerignore"):
        report.problem(("dockerfile",), "ends with .dockerignore, which means something else to Docker")
    if profile.ipc == "host" and profile.shm_size is not None:
        message = "has no effect with ipc: host, which shares the machine's /dev/shm"
        report.problem(("shm_size",), message, "remove one of them")
    for name, limit in profile.ulimits.items():
        infinite = 1 << 62
        if (infinite if limit.soft < 0 else limit.soft) > (infinite if limit.hard < 0 else limit.hard):
            report.problem(("ulimits", name), f"the soft limit {limit.soft} is above the hard limit {limit.hard}")


def _variants(report: Report) -> None:
    """Note variants that change a service or choose a group of variables that the profile does not have."""
    services = list(report.profile.services)
    for name in report.profile.variants:
        for service in report.names(("variants", name, "services")):
            if service not in services and not report.is_broken(f"variants.{name}"):
                message = f"this profile has no service {service!r} to change"
                report.problem(("variants", name, "services", service), message, near(service, services), at_key=True)
        _groups(report, name)


def _groups(report: Report, name: str) -> None:
    path = ("variants", name, "env_groups")
    node = report.node(path)
    if node is None or node.kind != LIST:
        return
    known = [*report.names(("env",)), *report.names(("variants", name, "env"))]
    for number, child in node.items.items():
        if child.text not in known:
            report.problem((*path, number), f"there is no group {child.text!r} in env", near(child.text, known))


def check_project(profiles: Mapping[str, Profile], trees: Mapping[str, Node]) -> list[Problem]:
    """What is wrong between the profiles of one project."""
    problems = []
    writers: dict[str, str] = {}
    for name, profile in profiles.items():
        file = profile.dockerfile.lower()  # one file on a file system that folds case
        first = writers.setdefault(file, name)
        if first != name:
            node = trees[name].items["dockerfile"]
            written = node.source.layer != DEFAULT
            place = node.place("dockerfile") if written else trees[name].key_place(f"profiles.{name}")
            message = f"profiles {first} and {name} both write {profile.dockerfile}"
            problems.append(Problem(message, place, f"give one of them another name, such as Dockerfile.{name}"))
    return problems
