"""Checks of installed packages, and of what FlashInfer's JIT needs."""

from __future__ import annotations

from packaging.utils import canonicalize_name

from envgen.doctor import remedies
from envgen.doctor.checks.imports import below
from envgen.doctor.model import Context, Finding, Findings, Section, check, error, info, ok, warning
from envgen.doctor.probed import Distribution, Probe, Root
from envgen.profile.model import Source

UNKNOWN = "0.0.0+unknown"


def named(probe: Probe, *names: str) -> list[Distribution]:
    """Distributions with these names, in the order of importlib.metadata."""
    wanted = [canonicalize_name(name) for name in names]
    return [
        distribution
        for distribution in probe.distributions
        if canonicalize_name(distribution.name) in wanted
    ]


def active_root(probe: Probe, package: str) -> Root | None:
    """The package's folder that most ways of starting Python import."""
    regular = [cell for cell in probe.cells(package) if cell.kind == "regular"]
    folders = [cell.origin.rsplit("/", 1)[0] for cell in regular]
    if not folders:
        return None
    top = max(folders, key=folders.count)
    for root in probe.roots:
        if root.package == package and root.root == top:
            return root
    return None


@check("import.scripts", Section.INSIDE, needs="probe")
def console_scripts(context: Context, probe: Probe) -> Findings:
    """Each console script is installed, and starts the interpreter that `python3` starts."""
    scripts = {script.name: script for script in probe.scripts}
    mounted = context.profile.mounted_sources
    for name, source in context.profile.sources.items():
        for script in (scripts[one] for one in source.console_scripts if one in scripts):
            cure = remedies.install(context, name, source)
            if script.path is None:
                needed = any(
                    service.command[:1] == (script.name,)
                    for service in context.profile.services.values()
                )
                title = f"{script.name}: the command isn't installed"
                evidence = f"no {script.name} on PATH"
                make, case = (error, "needed") if needed else (warning, "not-installed")
                yield make(
                    title, evidence, f"a console script of {source.distribution}", cure, case=case
                )
            elif script.interpreter is None or script.same:
                yield ok(f"{script.name} is {script.path}" + ", with the same Python" * script.same)
            else:
                evidence = f"{script.path} starts {' '.join((script.interpreter, *script.flags))}"
                title = f"{script.name} and python3 start different Pythons"
                # only the overlay's Python has both: the base's packages, and what the checkouts
                # need
                if mounted:
                    title = f"{script.name} starts a Python that does not see what {', '.join(mounted)} needs"
                    cure = remedies.inside(context, "envgen-install")
                yield error(title, evidence, probe.python.executable, cure, case="other-python")
    return None


# --- metadata
# --------------------------------------------------------------------------------------------------------


@check("import.metadata", Section.INSIDE, needs="probe")
def metadata(context: Context, probe: Probe) -> Findings:
    """importlib.metadata finds each source under its own name, installed from where it is mounted."""
    for name, source in context.profile.sources.items():
        if any(cell.kind == "regular" for cell in probe.cells(source.package)):
            yield _metadata(name, source, context, probe)
    return None


def _metadata(name: str, source: Source, context: Context, probe: Probe) -> Finding:
    cure = remedies.install(context, name, source)
    mounted = source.origin.kind == "checkout"
    first = next(iter(named(probe, source.distribution)), None)
    if first is None:
        make, case = (warning, "none") if mounted else (error, "none-baked-in")
        title = f"{source.distribution} has no metadata"
        return make(title, "PackageNotFoundError", "an installed distribution", cure, case=case)
    folder = first.url.removeprefix("file://").rstrip("/")
    if mounted and first.editable and folder and folder != str(source.mount):
        title = f"{source.distribution} was installed from another folder"
        evidence = f"editable, from {folder}"
        return error(title, evidence, str(source.mount), cure, case="other-folder")
    if mounted and not (first.editable or below(first.location, str(source.mount))):
        # Without PYTHONPATH its code would be imported, too.
        title = f"{source.distribution} {first.version} is installed as a wheel, beside the mounted checkout"
        evidence = first.metadata
        wanted = f"an editable installation of {source.mount}"
        if context.is_temporary:  # without the service's first step, which installs the checkout
            return info(title, evidence)
        return error(title, evidence, wanted, cure, case="second")
    return ok(f"{source.distribution} {first.version} is installed")


# --- FlashInfer and patches
# ------------------------------------------------------------------------------------------


@check("flashinfer.data", Section.INSIDE, needs="probe")
def flashinfer_data(context: Context, probe: Probe) -> Findings:
    """FlashInfer has the sources that its JIT compiles (data/csrc and others), and the version that
    names its cache.
    """
    for name, source in context.profile.sources.items():
        root = active_root(probe, source.package) if source.package == "flashinfer" else None
        if root is None:
            continue
        lacks = [
            f"{link.path} -> {link.target}" if link.target else link.path
            for link in root.data
            if not link.there
        ]
        cure = remedies.install(context, name, source, force=True)
        if lacks:
            title = "flashinfer: sources for its JIT are missing, so nothing can be compiled"
            wanted = "csrc, include, cutlass and spdlog"
            yield error(title, ", ".join(lacks), wanted, cure, case="missing")
        elif root.version in (None, UNKNOWN):
            evidence = f"{root.root}/_build_meta.py {'says so' if root.version else 'is missing'}"
            title = f"flashinfer reports {UNKNOWN} as its version"
            wanted = "its version, which names the cache folder"
            yield warning(title, evidence, wanted, cure, case="unknown-version")
        else:
            yield ok(f"flashinfer {root.version} has what its JIT compiles from")
    return None


@check("flashinfer.prebuilt", Section.INSIDE, needs="probe")
def prebuilt(context: Context, probe: Probe) -> Finding | None:
    """No prebuilt kernels: they take precedence over the JIT, so edits of a mounted checkout would
    never compile.
    """
    if not any(
        source.package == "flashinfer" for source in context.profile.mounted_sources.values()
    ):
        return None
    title = "prebuilt kernels mask your edits"
    root = active_root(probe, "flashinfer")
    if any(cell.kind != "missing" for cell in probe.cells("flashinfer_jit_cache")):
        cure = remedies.inside(
            context, "python3", "-m", "pip", "uninstall", "-y", "flashinfer-jit-cache"
        )
        return warning(
            title, "flashinfer-jit-cache is installed", "no such package", cure, case="masked"
        )
    if root and root.aot:
        folder = f"{root.root}/data/aot"
        evidence = f"{folder} has {len(root.aot)}: {', '.join(root.aot[:4])}"
        return warning(
            title, evidence, "none", remedies.inside(context, "rm", "-r", folder), case="masked"
        )
    return ok("no prebuilt kernels mask your edits")


@check("patches.claimed", Section.INSIDE, needs="probe")
def claimed(context: Context, probe: Probe) -> Finding | None:
    """The files that patches of the image changed are as the patches left them, and Python imports
    them.
    """
    missing = [claim for claim in probe.claimed if claim.state != "there"]
    names = sorted({claim.patch for claim in missing or probe.claimed})
    if missing:
        evidence = ", ".join(f"{claim.path}: {claim.state}" for claim in missing[:3])
        title = f"patches of the image are not in the imported code: {', '.join(names)}"
        return error(
            title,
            evidence,
            "the files as the patches left them",
            remedies.build(context),
            case="missing",
        )
    places = {
        name: [
            one.path.rpartition(f"/{one.package}/")[2] for one in probe.claimed if one.patch == name
        ]
        for name in names
    }
    shown = ", ".join(
        f"{name} ({', '.join(files[:2])}{' ...' * (len(files) > 2)})"
        for name, files in places.items()
    )
    return ok(f"patches in the imported code: {shown}") if names else None


@check("packages.binaries", Section.INSIDE, needs="probe")
def binaries(_context: Context, probe: Probe) -> Findings:
    """The compiled modules of a checkout with `binaries` are a wheel's: its sources of them are
    that release's.
    """
    for checkout in probe.binaries:
        release = "-".join(checkout.wheel.split("-")[1:2])
        if checkout.compiled == "differs":
            title = f"{checkout.source}: edits of compiled sources have no effect, its modules are of {release}"
            evidence = (
                f"`git diff v{release} -- csrc cmake CMakeLists.txt rust setup.py` shows them"
            )
            cure = remedies.line(f"sources: {{{checkout.source}: {{binaries: null}}}}")
            yield warning(
                title, evidence, "sources as released, or your own build", cure, case="csrc"
            )
        else:
            yield ok(f"{checkout.source}: its compiled modules come from {checkout.wheel}")
    return None
