"""What pip knows and what is on disk: console scripts, metadata, leftovers, and what FlashInfer's JIT needs."""

from __future__ import annotations

from packaging.utils import canonicalize_name

from envgen.doctor import remedies
from envgen.doctor.checks.imports import below
from envgen.doctor.evidence import Distribution, Probe, Root, Script
from envgen.doctor.model import Context, Finding, Remedy, Where, check, error, info, ok, warning
from envgen.profile.model import Source

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
