"""Checks of versions: the lock, the base image's packages, CUDA, and drivers."""

from __future__ import annotations

import re

from packaging.utils import canonicalize_name

from envgen.doctor import remedies
from envgen.doctor.checks.imports import below
from envgen.doctor.model import (
    Context,
    Findings,
    Remedy,
    Section,
    check,
    error,
    info,
    ok,
)
from envgen.doctor.probed import CompilerFacts, Probe, Promised
from envgen.inside.jit.libraries import runs
from envgen.render.environment import OVERLAY
from envgen.text import counted

BLACKWELL = 10  # major number of its first compute capability
NEWEST = remedies.line("base: {image: nvcr.io/nvidia/pytorch:25.12-py3}")


def numbers(version: str) -> tuple[int, ...]:
    """`9.15.1.9` as numbers; empty if it doesn't begin with one."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def listed(differ: tuple[Promised, ...]) -> str:
    some = ", ".join(
        f"{one.name} {one.installed or 'missing'} (not {one.promised})" for one in differ[:4]
    )
    return some + (f", and {len(differ) - 4} more" if len(differ) > 4 else "")


def _fresh(context: Context, differ: tuple[Promised, ...]) -> Remedy:
    """Get rid of packages that somebody installed: caches stay.

    In the overlay of mounted sources they hide the image's, so they are removed. A new container
    has the image's.
    """
    inside = [one.name for one in differ if below(one.location, OVERLAY)]
    if inside:
        return remedies.inside(context, "pip", "uninstall", "-y", *inside)
    return remedies.anew(context)


@check("packages.locked", Section.INSIDE, needs="probe")
def locked(context: Context, probe: Probe) -> Findings:
    """Locked packages, and torch and others of the base image, have the versions of the build."""
    count = probe.locked.count
    of_base = probe.protected.count
    if differ := tuple(
        one for one in probe.locked.differ if canonicalize_name(one.name) not in context.build_needs
    ):
        title = f"{len(differ)} of {count} locked packages have the wrong version"
        yield error(
            title, listed(differ), "the locked versions", _fresh(context, differ), case="differ"
        )
    if differ := probe.protected.differ:
        title = f"packages of the base image were replaced: {', '.join(one.name for one in differ)}"
        yield error(
            title,
            listed(differ),
            "the base image's versions",
            _fresh(context, differ),
            case="replaced",
        )
    there = f"{counted(count, 'locked package')} and {of_base} of the base image have the versions of the build"
    return ok(there) if count or of_base else None


@check("cuda.compilers", Section.INSIDE, needs="probe")
def compilers(context: Context, probe: Probe) -> Findings:
    """nvcc, ptxas and Triton's ptxas support the profile's architectures."""
    tools = probe.cuda.tools
    home = f"{context.profile.cuda.HOME}/"
    lacking = [tool.path for tool in tools if tool.error and tool.path.startswith(home)]
    has_nvcc = any(tool.name == "nvcc" for tool in tools)
    if lacking and not probe.gpus and not has_nvcc:
        tools = tuple(tool for tool in tools if tool.path not in lacking)
        yield info("the image has no CUDA toolkit, and no GPU needs one", f"no {lacking[0]}")
    split = any(is_for_blackwell(tool) for tool in tools)
    for tool in tools:
        cure = _other_compiler(tool, context)
        if tool.error:
            evidence = f"{tool.path} {tool.error}"
            title = f"{tool.name} can't be used"
            yield error(title, evidence, "a working compiler", cure, case="broken")
            continue
        wanted = wanted_of(tool, context, split)
        lacks = sorted(wanted - {*tool.archs})
        if lacks:
            by_age = sorted(tool.archs, key=lambda arch: (len(arch.rstrip("af")), arch))
            title = f"{tool.name} doesn't know {', '.join(lacks)}"
            evidence = f"{tool.path}; its newest: {', '.join(by_age[-3:])}"
            yield error(title, evidence, ", ".join(sorted(wanted)), cure, case="arch")
    if not tools or not context.profile.cuda.arch_list.archs:
        return None
    names = ", ".join(tool.name for tool in tools)
    return ok(f"{names}: compile for {context.profile.cuda.arch_list}")


def is_for_blackwell(tool: CompilerFacts) -> bool:
    return "blackwell" in tool.name.lower()


def wanted_of(tool: CompilerFacts, context: Context, split: bool) -> set[str]:
    """The architectures that a compiler must support. ``split``: Triton has one ptxas for Blackwell
    and one for older GPUs.
    """
    archs = context.profile.cuda.arch_list.archs
    if tool.name == "nvcc":  # it lists no suffixes
        return {arch.sm.rstrip("af") for arch in archs}
    names = {arch.sm for arch in archs}
    if split and "triton" in tool.name.lower():
        is_new = is_for_blackwell(tool)
        names = {arch.sm for arch in archs if (arch.major >= BLACKWELL) == is_new}
    return names


def _other_compiler(tool: CompilerFacts, context: Context) -> Remedy:
    own = f"{context.profile.cuda.HOME}/bin/ptxas"
    if "triton" not in tool.name.lower() or tool.path == own:
        return NEWEST
    variable = "TRITON_PTXAS_BLACKWELL_PATH" if is_for_blackwell(tool) else "TRITON_PTXAS_PATH"
    return remedies.line(f"env: {{{variable}: {own}}}")


@check("gpu.arch", Section.INSIDE, needs="probe")
def gpu_arch(context: Context, probe: Probe) -> Findings:
    """The profile's architectures run on the container's GPUs."""
    listed = context.profile.cuda.arch_list
    codes = [arch.sm.removeprefix("sm_") for arch in listed.archs]
    for gpu in {one.capability: one for one in probe.gpus}.values():
        major, minor, *_ = (*numbers(gpu.capability), 0, 0)
        if any(runs(code, f"{major}{minor}") for code in codes):
            continue
        arch = f"{major}.{minor}"
        if major >= 9:
            arch += "a"
        title = f"kernels are not built for this GPU: {gpu.name}"
        evidence = f"compute capability {gpu.capability}; cuda.arch_list: {listed}"
        cure = remedies.line(f"cuda: {{arch_list: {arch}}}")
        yield error(title, evidence, arch, cure, case="other")
    names = sorted({f"{one.name} ({one.capability})" for one in probe.gpus})
    return ok(f"{listed} runs on {', '.join(names)}") if names else None
