"""What pip knows and what is on disk: console scripts, metadata, leftovers, and what FlashInfer's JIT needs."""

from __future__ import annotations

from packaging.utils import canonicalize_name

from envgen.doctor import remedies
from envgen.doctor.checks.imports import below
from envgen.doctor.checks.versions import numbers
from envgen.doctor.model import (
    Context,
    Distribution,
    Finding,
    KnownVariable,
    Probe,
    Remedy,
    Root,
    Script,
    UnknownFlag,
    Where,
    check,
    error,
    info,
    ok,
    warning,
)
from envgen.profile.model import Source
from envgen.text import counted

UNKNOWN = "0.0.0+unknown"
# The name that the package itself gives to importlib.metadata when it starts, whatever the profile calls it.
ASKED = {"vllm": "vllm"}


def named(probe: Probe, name: str) -> list[Distribution]:
    """Distributions of this name, the one that importlib.metadata takes first."""
    return [one for one in probe.distributions if canonicalize_name(one.name) == canonicalize_name(name)]


def active_root(probe: Probe, package: str) -> Root | None:
    """The folder that most ways of starting Python import."""
    origins = [cell.origin for cell in probe.cells(package) if cell.kind == "regular"]
    folders = [origin.rsplit("/", 1)[0] for origin in origins]
    top = max(folders, key=folders.count) if folders else None
    return next((root for root in probe.roots if root.package == package and root.root == top), None)


# --- console scripts -------------------------------------------------------------------------------------------------


@check("import.scripts", Where.INSIDE, needs="probe")
def console_scripts(context: Context) -> list[Finding]:
    """Each console script is there, and starts the interpreter that `python3` starts."""
    owners = {script: name for name, source in context.profile.sources.items() for script in source.console_scripts}
    scripts = [script for script in context.inside.scripts if script.name in owners]
    return [_console_script(script, owners[script.name], context, context.inside) for script in scripts]


def _console_script(script: Script, name: str, context: Context, probe: Probe) -> Finding:
    source = context.profile.sources[name]
    cure = remedies.install(context, name, source)
    if script.path is None:
        needed = any(service.command[:1] == (script.name,) for service in context.profile.services.values())
        title = f"{script.name}: the command isn't installed"
        wanted = f"a console script of {source.distribution}"
        make, case = (error, "needed") if needed else (warning, "not-installed")
        return make(title, f"no {script.name} on PATH", wanted, cure, case=case, script=script.name)
    if script.interpreter is None:
        return info(f"{script.name} is not a Python script", script.path, script=script.name)
    if not script.same:
        starts = " ".join((script.interpreter, *script.flags, script.version and f"(Python {script.version})")).rstrip()
        title = f"{script.name} starts another Python than python3 does"
        seen = f"{script.path} starts {starts}"
        return warning(title, seen, probe.python.executable, cure, case="other-python", script=script.name)
    return ok(f"{script.name} is {script.path}, of the same Python", script=script.name)


@check("import.leftovers", Where.INSIDE, needs="probe")
def leftovers(context: Context) -> list[Finding]:
    """Folders without __init__.py in site-packages: a namespace package as soon as nothing stands in front of them."""
    probe, found = context.inside, []
    sources = {source.package for source in context.profile.sources.values()}
    for portion in probe.portions:
        if portion.regular or not portion.site or portion.package not in sources:
            continue
        if any(portion.path in cell.portions for cell in probe.cells(portion.package) if cell.kind == "namespace"):
            continue  # import truth says it already, as an error
        holds = ", ".join(portion.holds[:4]) or "nothing"
        cure = remedies.inside(context, "rm", "-r", portion.path)
        title = f"{portion.package}: leftovers of an uninstalled wheel"
        seen = f"{portion.path} has no __init__.py and holds {holds}"
        found.append(warning(title, seen, "no such folder", cure, case="waiting"))
    return found


# --- metadata --------------------------------------------------------------------------------------------------------


@check("import.metadata", Where.INSIDE, needs="probe")
def metadata(context: Context) -> list[Finding]:
    """importlib.metadata finds each source, once, under its own name, installed from where it is mounted."""
    found = []
    for name, source in context.profile.sources.items():
        if any(cell.kind == "regular" for cell in context.inside.cells(source.package)):
            found += _metadata(name, source, context, context.inside)
    return found


def _metadata(name: str, source: Source, context: Context, probe: Probe) -> list[Finding]:
    asked = ASKED.get(source.package, source.distribution)
    mine = named(probe, asked)
    if not mine:
        return [_no_metadata(name, source, asked, context, probe)]
    findings = _several(name, source, mine, context, probe)
    first, mounted = mine[0], source.origin.kind == "checkout"
    folder = first.url.removeprefix("file://").rstrip("/")
    if mounted and first.editable and folder and folder != str(source.mount):
        title, cure = (
            f"{source.distribution} was installed from another folder",
            remedies.install(context, name, source),
        )
        findings.append(error(title, f"editable, from {folder}", str(source.mount), cure,
                              case="other-folder", metadata=first.metadata))  # fmt: skip
    elif mounted and not any(one.editable or below(one.location, str(source.mount)) for one in mine):
        title = f"{source.distribution} {first.version}: the metadata is a wheel's, the code is the checkout's"
        findings.append(info(title, first.metadata, version=first.version))
    return findings or [ok(f"{source.distribution} {first.version} is installed", version=first.version)]


def _no_metadata(name: str, source: Source, asked: str, context: Context, probe: Probe) -> Finding:
    """Nothing of that name: is it there under another one?"""
    cells = [cell for cell in probe.cells(source.package) if cell.kind == "regular"]
    places = {cell.origin.rsplit("/", 2)[0] for cell in cells}
    for other in probe.distributions:
        claims = source.package in other.top_level or canonicalize_name(other.name).startswith(
            canonicalize_name(source.package) + "-"
        )
        if claims and other.location in places:
            title = f"{source.package} belongs to a distribution with another name: {other.name}"
            call = f"importlib.metadata.version({asked!r})"
            seen = f"{other.name} {other.version}; {call} fails, and so does every program that asks for it"
            if canonicalize_name(other.name) == canonicalize_name(source.distribution) and not _starts_by_script(
                context
            ):
                # The profile says so itself, and starts nothing that stumbles over it.
                return info(title, seen, distribution=other.name)
            cure = _cure_for_name(name, source, context)
            return error(title, seen, asked, cure, case="other-name", distribution=other.name)
    make, case = (warning, "none") if source.origin.kind == "checkout" else (error, "none-baked-in")
    cure = remedies.install(context, name, source)
    return make(f"{asked} has no metadata", "PackageNotFoundError", "an installed distribution", cure, case=case)


def _starts_by_script(context: Context) -> bool:
    """Does a service start vLLM's console script, which asks for its own version first?"""
    return any(service.command[:1] == ("vllm",) for service in context.profile.services.values())


def _cure_for_name(name: str, source: Source, context: Context) -> Remedy:
    """vLLM's server can be started without its console script; for others, call the distribution by its name."""
    for service, described in context.profile.services.items():
        if described.command[:2] == ("vllm", "serve"):
            module = "[python3, -m, vllm.entrypoints.openai.api_server, --model]"
            return remedies.line(f"services: {{{service}: {{command: {module}}}}}")
    return remedies.install(context, name, source)


def _several(name: str, source: Source, mine: list[Distribution], context: Context, probe: Probe) -> list[Finding]:
    """Two sets of metadata under one name. A checkout's own egg-info beside its editable install is not a problem."""
    others = [one for one in mine[1:] if one.version != mine[0].version or (one.location == mine[0].location)]
    own = str(source.mount)
    installed = [one for one in mine if not below(one.location, own)]
    if len(installed) > 1:
        others = others or installed[1:]
    if not others:
        return []
    both = "; ".join(f"{one.version or '?'} in {one.metadata}" for one in mine)
    # What goes: metadata that no pip wrote, else the checkout's stale one, else the one that is read first.
    stale = [one for one in mine if one.kind == "dist-info" and not one.record]
    stale += [one for one in mine if one.kind == "egg-info" and below(one.location, own)]
    drop = (stale or mine)[0]
    cure = remedies.inside(context, "rm", "-r", drop.metadata)
    versions = len({one.version for one in mine}) > 1
    make, case = (error, "two-versions") if versions and len(installed) > 1 else (warning, "twice")
    title, wanted = f"{source.distribution} is installed {len(mine)} times", "one distribution of that name"
    return [make(title, both, wanted, cure, case=case)]


IGNORES = (0, 7)  # the first release that ignores companions of other versions instead of raising


@check("flashinfer.data", Where.INSIDE, needs="probe")
def flashinfer_data(context: Context) -> list[Finding]:
    """What FlashInfer's JIT compiles from (data/csrc and its neighbours), and the version that names its cache."""
    found = []
    for name, source in context.profile.sources.items():
        root = active_root(context.inside, source.package) if source.package == "flashinfer" else None
        if root is not None:
            found.append(_flashinfer_root(name, source, root, context))
    return found


def _flashinfer_root(name: str, source: Source, root: Root, context: Context) -> Finding:
    dangling = [link for link in root.data if link.state == "dangling"]
    missing = [link for link in root.data if link.state == "missing" or link.empty]
    cure = remedies.install(context, name, source)
    facts = {"root": root.root, "version": root.version, "data": {link.name: link.state for link in root.data}}
    if dangling:
        where = "; ".join(f"{link.path} -> {link.target}" for link in dangling)
        title = "flashinfer: its data links dangle, so nothing can be compiled"
        return error(
            title, where, f"links into {source.mount}, where the checkout is mounted", cure, case="dangling", **facts
        )
    if missing and source.origin.kind == "checkout":
        title = "flashinfer: a raw checkout, never installed: it imports, but can't compile anything"
        seen = f"version {root.version or UNKNOWN}; {', '.join(link.path for link in missing)} missing"
        wanted = "an editable install, which makes data/csrc and its neighbours"
        return error(title, seen, wanted, cure, case="raw-checkout", **facts)
    if missing:
        empty = ", ".join(link.path for link in missing)
        title = "flashinfer: sources for its JIT are missing"
        return error(title, empty, "csrc, include, cutlass and spdlog", cure, case="missing", **facts)
    if root.version is None or root.version == UNKNOWN:
        title = f"flashinfer reports {UNKNOWN} as its version"
        seen = f"{root.root}/_build_meta.py " + ("is missing" if root.version is None else "says so")
        wanted = "its version, which names the cache folder"
        return warning(title, seen, wanted, cure, case="unknown-version", **facts)
    return ok(f"flashinfer {root.version} has what its JIT compiles from", **facts)


@check("flashinfer.set", Where.INSIDE, needs="probe")
def flashinfer_set(context: Context) -> list[Finding]:
    """flashinfer, its cubins and its prebuilt kernels are of one version: FlashInfer refuses or ignores others.

    Read in ``flashinfer/jit/env.py``: 0.5.3 and 0.6.18 raise RuntimeError at import, 0.7.2 warns.
    """
    core = named(context.inside, "flashinfer-python")
    root = active_root(context.inside, "flashinfer")
    version = (root.version if root else None) or (core[0].version if core else "")
    found = []
    for name in ("flashinfer-cubin", "flashinfer-jit-cache"):
        for one in named(context.inside, name)[:1]:
            if version and one.version.split("+")[0] != version.split("+")[0]:
                # Not `pip install`: no index that pip knows has the jit-cache, nor the cubins of releases after 0.6.13.
                cure = remedies.inside(context, "python3", "-m", "pip", "uninstall", "-y", name)
                title = f"{name} is of another version than flashinfer"
                seen = f"{name} {one.version}, flashinfer {version}"
                if numbers(version) >= IGNORES:
                    found.append(warning(title, seen, f"{version}, or none", cure, case="ignored"))
                else:
                    found.append(error(title, seen, f"{version}, or none", cure, case="mismatch"))
            else:
                found.append(ok(f"{name} {one.version} fits flashinfer {version}"))
    return found


@check("flashinfer.prebuilt", Where.INSIDE, needs="probe")
def prebuilt(context: Context) -> list[Finding]:
    """Prebuilt kernels win over the JIT: with a mounted checkout, edits would never be compiled."""
    mounted = [source for source in context.profile.mounted_sources.values() if source.package == "flashinfer"]
    if not mounted:
        return []
    if any(cell.kind != "missing" for cell in context.inside.cells("flashinfer_jit_cache")):
        cure = remedies.inside(context, "python3", "-m", "pip", "uninstall", "-y", "flashinfer-jit-cache")
        title, seen = "prebuilt kernels mask your edits", "flashinfer-jit-cache is installed"
        return [warning(title, seen, "no such package", cure, case="masked")]
    root = active_root(context.inside, "flashinfer")
    if root and root.aot:
        folder = f"{root.root}/data/aot"
        cure = remedies.inside(context, "rm", "-r", folder)
        some = ", ".join(root.aot[:4])
        title, seen = "prebuilt kernels mask your edits", f"{folder} holds {len(root.aot)}: {some}"
        return [warning(title, seen, "none", cure, case="masked")]
    return [ok("no prebuilt kernels mask your edits")]


@check("patches.files", Where.INSIDE, needs="probe")
def patched_files(context: Context) -> list[Finding]:
    """What the image's Python-only patches changed is still so: nothing was installed over it."""
    files = context.inside.patched
    if not files:
        return []
    lost = [file for file in files if file.state != "same"]
    if lost:
        seen = ", ".join(f"{file.path} {file.state}" for file in lost[:3])
        title = f"{len(lost)} of {len(files)} patched files are not as the build left them"
        name = context.profile.name
        cure = remedies.command(f"envgen down -p {name} && envgen up -p {name} {context.service}")
        return [warning(title, seen, "the patched bytes", cure, case="changed")]
    names = ", ".join(sorted({file.package for file in files}))
    are = "patched file is" if len(files) == 1 else "patched files are"
    return [ok(f"{len(files)} {are} as the patches left them: {names}", files=[file.path for file in files])]


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
