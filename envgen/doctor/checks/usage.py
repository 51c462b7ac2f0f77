"""What the profile asks of the installed releases: variables, flags, patches, vocabulary. Their own sources judge."""

from __future__ import annotations

from packaging.utils import canonicalize_name

from envgen.doctor import remedies
from envgen.doctor.evidence import KnownVariable, UnknownFlag
from envgen.doctor.model import Context, Finding, Remedy, Where, check, error, info, ok, warning
from envgen.text import counted


def release(context: Context, package: str) -> str:
    """`vllm 0.14.0`: the installed release in words."""
    for name, source in context.profile.sources.items():
        if source.package == package:
            wanted = canonicalize_name(source.distribution)
            versions = [one.version for one in context.inside.distributions
                        if canonicalize_name(one.name) in (wanted, package)]  # fmt: skip
            return f"{name} {versions[0]}" if versions else name
    return package


def group_of(context: Context, name: str) -> str:
    """Which key of the profile sets a variable: `env.moe`, `services.serve.env`; empty: none does."""
    service = context.profile.services.get(context.service)
    if service and name in service.env:
        return f"services.{context.service}.env"
    return next((f"env.{group}" for group, values in context.profile.env.items() if name in values), "")


@check("env.known", Where.INSIDE, needs="probe")
def variables(context: Context) -> list[Finding]:
    """Every VLLM_* and FLASHINFER_* variable is one that the installed release reads: its sources are asked."""
    # envgen-install and others put variables of their own there; MAX_JOBS and CUDA's are not these packages'.
    asked = context.inside.known
    found = [finding for one in asked for finding in _variable(one, context)]
    if found or not asked:
        return found
    return [ok(f"{counted(len(asked), 'variable is', 'variables are')} known to the releases that read them")]


def _variable(one: KnownVariable, context: Context) -> list[Finding]:
    who, where = release(context, one.package), group_of(context, one.name)
    facts = {"variable": one.name, "package": one.package, "similar": list(one.similar)}
    if not one.known:
        seen = f"{who} never reads it" + (f"; set by {where}" if where else "; the profile doesn't set it")
        if one.similar:
            title = f"{one.name}: {who} reads {one.similar[0]}"
            return [
                warning(title, seen, " or ".join(one.similar), _rename(one, where, context), case="renamed", **facts)
            ]
        title = f"{one.name} is unknown to {who}"
        return [warning(title, seen, "a variable that it reads", _remove(one, where, context), case="unknown", **facts)]
    if one.note:
        title = f"{one.name} is on its way out of {who}"
        return [warning(title, one.note, "what the message says", _remove(one, where, context), case="bygone", **facts)]
    if one.assigned:
        seen = f"set at {', '.join(one.assigned[:3])}, in some cases whatever you set"
        return [info(f"{one.name} may be overridden by {who}", seen, case="overridden", **facts)]
    return []


def _remove(one: KnownVariable, where: str, context: Context) -> Remedy:
    group = context.profile.env.get(where.partition("env.")[2], {})
    return _set(where, [f"{name}: {value!r}" for name, value in group.items() if name != one.name], context)


def _rename(one: KnownVariable, where: str, context: Context) -> Remedy:
    return _set(where, [f"{one.similar[0]}: {context.inside.variables.get(one.name, '')!r}"], context)


def _set(where: str, settings: list[str], context: Context) -> Remedy:
    if not where:
        return remedies.renew(context)  # the container has what no profile gives it: it is older, or made by hand
    env = f"{{{', '.join(settings)}}}"
    group = where.removeprefix("env.")
    return remedies.line(
        f"env: {{{group}: {env}}}" if group != where else f"services: {{{context.service}: {{env: {env}}}}}"
    )


@check("serve.flags", Where.INSIDE, needs="probe")
def flags(context: Context) -> list[Finding]:
    """Every flag of the service is one that the sources of the installed vLLM name."""
    flags = context.inside.flags
    if not flags.asked:
        return []
    who = release(context, "vllm")
    if not flags.read or flags.count < 20:
        return [info("the flags were not checked", f"{flags.folder} is laid out in a way that is not known here")]
    if not flags.unknown:
        return [ok(f"{who} knows every flag of the service ({flags.asked})", parsers=list(flags.read))]
    return [_flag(one, who, context) for one in flags.unknown]


def _flag(one: UnknownFlag, who: str, context: Context) -> Finding:
    name = one.flag.lstrip("-")
    line = f"{name}: false"
    service = next((key for key, each in context.profile.services.items() if one.flag in each.argv), context.service)
    expected = " or ".join(one.similar) or "a flag that `vllm serve --help=all` lists"
    cure = remedies.line(f"services: {{{service}: {{args: {{{line}}}}}}}")
    return error(
        f"{one.flag} is unknown to {who}", f"services.{service}", expected, cure, case="unknown", flag=one.flag
    )


@check("patches.claimed", Where.INSIDE, needs="probe")
def claimed(context: Context) -> list[Finding]:
    """What the patches that the image's label names add to Python files stands in the files that are imported."""
    claims = context.inside.claimed
    lost = [claim for claim in claims if claim.state != "there"]
    if lost:
        names = ", ".join(sorted({claim.patch for claim in lost}))
        seen = ", ".join(f"{claim.path}: {claim.state}" for claim in lost[:3])
        title, cure = f"patches that the image claims are not in the code: {names}", remedies.build(context)
        return [error(title, seen, "their added lines", cure, case="missing")]
    names = ", ".join(sorted({claim.patch for claim in claims}))
    return [ok(f"seen in the imported files: {names}")] if claims else []


@check("tiktoken.load", Where.INSIDE, needs="probe")
def harmony(context: Context) -> list[Finding]:
    """openai-harmony itself loads the vocabulary with the network off. Asked for by `--deep`: it takes a second."""
    found: list[Finding] = []
    for load in context.inside.loads:
        if load.state == "loaded":
            found.append(ok(f"{load.name} loads without a network", seconds=load.seconds))
        elif load.state == "no-harmony":
            found.append(info("openai-harmony isn't installed: its vocabulary was not loaded", load.said))
        else:
            title, cure = f"{load.name} can't be loaded without a network", remedies.build(context)
            found.append(error(title, load.said or "no answer", "an encoding", cure, case="failed"))
    return found
