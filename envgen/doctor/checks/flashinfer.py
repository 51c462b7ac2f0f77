"""What FlashInfer's JIT needs, what masks it, and whether the patched files are still so."""

from __future__ import annotations

from envgen.doctor import remedies
from envgen.doctor.checks.packages import UNKNOWN, active_root, named
from envgen.doctor.checks.versions import numbers
from envgen.doctor.evidence import Root
from envgen.doctor.model import Context, Finding, Where, check, error, ok, warning
from envgen.profile.model import Source

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
