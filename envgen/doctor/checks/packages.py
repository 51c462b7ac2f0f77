"""What pip knows and what lies on disk: console scripts, metadata, leftovers, and what FlashInfer's JIT needs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envgen.doctor import remedies
from envgen.doctor.checks.imports import below
from envgen.doctor.evidence import Distribution, Probe, Root, Script
from envgen.doctor.model import Context, Finding, Remedy, error, info, ok, warning

if TYPE_CHECKING:
    from envgen.profile.model import Source

UNKNOWN = "0.0.0+unknown"
# The name that the package itself gives to importlib.metadata when it starts, whatever the profile calls it.
ASKED = {"vllm": "vllm"}


def normal(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def named(probe: Probe, name: str) -> list[Distribution]:
    """Distributions of this name, the one that importlib.metadata takes first."""
    return [one for one in probe.distributions if normal(one.name) == normal(name)]


def active_root(probe: Probe, package: str) -> Root | None:
    """The folder that most ways of starting Python import."""
    origins = [cell.origin for cell in probe.cells(package) if cell.kind == "regular"]
    folders = [origin.rsplit("/", 1)[0] for origin in origins]
    top = max(folders, key=folders.count) if folders else None
    return next((root for root in probe.roots if root.package == package and root.root == top), None)


# --- console scripts -------------------------------------------------------------------------------------------------


def console_scripts(context: Context) -> list[Finding]:
    """Each console script is there, and starts the interpreter that `python3` starts."""
    assert context.probe is not None
    owners = {script: name for name, source in context.profile.sources.items() for script in source.console_scripts}
    scripts = [script for script in context.probe.scripts if script.name in owners]
    return [_console_script(script, owners[script.name], context, context.probe) for script in scripts]


def _console_script(script: Script, name: str, context: Context, probe: Probe) -> Finding:
    source = context.profile.sources[name]
    cure = remedies.install(context, name, source)
    if script.path is None:
        needed = any(service.command[:1] == (script.name,) for service in context.profile.services.values())
        title = f"{script.name}: the command isn't installed"
        wanted = f"a console script of {source.distribution}"
        return (error if needed else warning)(title, f"no {script.name} on PATH", wanted, cure, script=script.name)
    if script.interpreter is None:
        return info(f"{script.name} is no Python script", script.path, script=script.name)
    if not script.same:
        starts = " ".join((script.interpreter, *script.flags, script.version and f"(Python {script.version})")).rstrip()
        title = f"{script.name} starts another Python than python3 does"
        return warning(title, f"{script.path} starts {starts}", probe.python.executable, cure, script=script.name)
    return ok(f"{script.name} is {script.path}, of the same Python", script=script.name)


def leftovers(context: Context) -> list[Finding]:
    """Folders without __init__.py in site-packages: a namespace package as soon as nothing stands in front of them."""
    assert context.probe is not None
    probe, found = context.probe, []
    sources = {source.package for source in context.profile.sources.values()}
    for portion in probe.portions:
        if portion.regular or not portion.site or portion.package not in sources:
            continue
        if any(portion.path in cell.portions for cell in probe.cells(portion.package) if cell.kind == "namespace"):
            continue  # import truth says it already, as an error
        holds = ", ".join(portion.holds[:4]) or "nothing"
        cure = remedies.inside(context, "rm", "-r", portion.path)
        title = f"{portion.package}: leftovers of an uninstalled wheel"
        found.append(warning(title, f"{portion.path} has no __init__.py and holds {holds}", "no such folder", cure))
    return found


# --- metadata --------------------------------------------------------------------------------------------------------


def metadata(context: Context) -> list[Finding]:
    """importlib.metadata finds each source, once, under its own name, installed from where it is mounted."""
    assert context.probe is not None
    found = []
    for name, source in context.profile.sources.items():
        if any(cell.kind == "regular" for cell in context.probe.cells(source.package)):
            found += _metadata(name, source, context, context.probe)
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
        findings.append(error(title, f"editable, from {folder}", str(source.mount), cure, metadata=first.metadata))
    elif mounted and not any(one.editable or below(one.location, str(source.mount)) for one in mine):
        title = f"{source.distribution} {first.version}: the metadata is a wheel's, the code is the checkout's"
        findings.append(info(title, first.metadata, version=first.version))
    return findings or [ok(f"{source.distribution} {first.version} is installed", version=first.version)]


def _no_metadata(name: str, source: Source, asked: str, context: Context, probe: Probe) -> Finding:
    """Nothing of that name: is it there under another one?"""
    cells = [cell for cell in probe.cells(source.package) if cell.kind == "regular"]
    places = {cell.origin.rsplit("/", 2)[0] for cell in cells}
    for other in probe.distributions:
        claims = source.package in other.top_level or normal(other.name).startswith(normal(source.package) + "-")
        if claims and other.location in places:
            title = f"{source.package} belongs to a distribution with another name: {other.name}"
            call = f"importlib.metadata.version({asked!r})"
            seen = f"{other.name} {other.version}; {call} fails, and so does every program that asks for it"
            if normal(other.name) == normal(source.distribution) and not _starts_by_script(context):
                # The profile says so itself, and starts nothing that stumbles over it.
                return info(title, seen, distribution=other.name)
            return error(title, seen, asked, _cure_for_name(name, source, context), distribution=other.name)
    make = warning if source.origin.kind == "checkout" else error
    cure = remedies.install(context, name, source)
    return make(f"{asked} has no metadata", "PackageNotFoundError", "an installed distribution", cure)


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
    """Two sets of metadata under one name. A checkout's own egg-info beside its editable install is no trouble."""
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
    make = error if versions and len(installed) > 1 else warning
    return [make(f"{source.distribution} is installed {len(mine)} times", both, "one distribution of that name", cure)]


# --- FlashInfer ------------------------------------------------------------------------------------------------------


def flashinfer_data(context: Context) -> list[Finding]:
    """What FlashInfer's JIT compiles from (data/csrc and its neighbours), and the version that names its cache."""
    assert context.probe is not None
    found = []
    for name, source in context.profile.sources.items():
        root = active_root(context.probe, source.package) if source.package == "flashinfer" else None
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
        return error(title, where, f"links into {source.mount}, where the checkout is mounted", cure, **facts)
    if missing and source.origin.kind == "checkout":
        title = "flashinfer: a raw checkout, never installed: it imports, but can't compile anything"
        seen = f"version {root.version or UNKNOWN}; {', '.join(link.path for link in missing)} missing"
        return error(title, seen, "an editable install, which makes data/csrc and its neighbours", cure, **facts)
    if missing:
        empty = ", ".join(link.path for link in missing)
        return error(
            "flashinfer: sources for its JIT are missing", empty, "csrc, include, cutlass and spdlog", cure, **facts
        )
    if root.version is None or root.version == UNKNOWN:
        title = f"flashinfer tells {UNKNOWN} as its version"
        seen = (
            f"{root.root}/_build_meta.py is missing" if root.version is None else f"{root.root}/_build_meta.py says so"
        )
        return warning(title, seen, "its version, which names the cache folder", cure, **facts)
    return ok(f"flashinfer {root.version} has what its JIT compiles from", **facts)


def flashinfer_set(context: Context) -> list[Finding]:
    """flashinfer, its cubins and its prebuilt kernels are of one version: FlashInfer refuses others at import."""
    assert context.probe is not None
    core = named(context.probe, "flashinfer-python")
    root = active_root(context.probe, "flashinfer")
    version = (root.version if root else None) or (core[0].version if core else "")
    found = []
    for name in ("flashinfer-cubin", "flashinfer-jit-cache"):
        for one in named(context.probe, name)[:1]:
            if version and one.version.split("+")[0] != version.split("+")[0]:
                cure = remedies.inside(context, "python3", "-m", "pip", "install", f"{name}=={version.split('+')[0]}")
                title = f"{name} is of another version than flashinfer"
                found.append(error(title, f"{name} {one.version}, flashinfer {version}", version, cure))
            else:
                found.append(ok(f"{name} {one.version} fits flashinfer {version}"))
    return found


def prebuilt(context: Context) -> list[Finding]:
    """Prebuilt kernels win over the JIT: with a mounted checkout, edits would never be compiled."""
    assert context.probe is not None
    mounted = [source for source in context.profile.mounted_sources.values() if source.package == "flashinfer"]
    if not mounted:
        return []
    if any(cell.kind != "missing" for cell in context.probe.cells("flashinfer_jit_cache")):
        cure = remedies.inside(context, "python3", "-m", "pip", "uninstall", "-y", "flashinfer-jit-cache")
        return [
            warning("prebuilt kernels mask your edits", "flashinfer-jit-cache is installed", "no such package", cure)
        ]
    root = active_root(context.probe, "flashinfer")
    if root and root.aot:
        folder = f"{root.root}/data/aot"
        cure = remedies.inside(context, "rm", "-r", folder)
        some = ", ".join(root.aot[:4])
        return [warning("prebuilt kernels mask your edits", f"{folder} holds {len(root.aot)}: {some}", "none", cure)]
    return [ok("no prebuilt kernels mask your edits")]


def patched_files(context: Context) -> list[Finding]:
    """What the image's Python-only patches changed is still so: nothing was installed over it."""
    assert context.probe is not None
    files = context.probe.patched
    if not files:
        return []
    lost = [file for file in files if file.state != "same"]
    if lost:
        seen = ", ".join(f"{file.path} {file.state}" for file in lost[:3])
        title = f"{len(lost)} of {len(files)} patched files are not as the build left them"
        name = context.profile.name
        cure = remedies.command(f"envgen down -p {name} && envgen up -p {name} {context.service}")
        return [warning(title, seen, "the patched bytes", cure)]
    names = ", ".join(sorted({file.package for file in files}))
    are = "patched file is" if len(files) == 1 else "patched files are"
    return [ok(f"{len(files)} {are} as the patches left them: {names}", files=[file.path for file in files])]
