"""Patched sources and their unpatched code, for `envgen patch` and for the dry run before a build."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from packaging.utils import canonicalize_name

from envgen import files
from envgen.app.session import Session
from envgen.deployment import Deployment
from envgen.engine.git import Mirror
from envgen.errors import BuildError, EnvgenError, Problem, UsageError
from envgen.lock.pyproject import build_requires
from envgen.patches.dry_run import DryRun, GitTree, State, dry_run, report_lines
from envgen.patches.series import Series, load_series, version_of, version_of_ref
from envgen.profile.model import REPOSITORIES, Profile, Project, Source
from envgen.redact import without_login
from envgen.text import progress

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class PatchedSource:
    """A source with patches, as a profile builds it."""

    name: str
    profile: str
    source: Source
    root: Path
    commit: str = ""  # the ref's commit in envgen.lock; "" if it is not locked
    deployment: Deployment | None = field(default=None, compare=False, repr=False)  # has read its patches

    @property
    def folder(self) -> str:
        """The folder of its patches, relative to the project."""
        return f"patches/{self.source.patches}"

    @property
    def version(self) -> str:
        """The version that the profile builds; "" if the origin names none."""
        return version_of(self.source.origin)

    def series(self) -> Series:
        """Its patches. ProjectError with everything that is wrong with them."""
        if self.deployment is not None:
            return self.deployment.series[self.name]
        return load_series(self.root, self.source.patches or "")


def targets_of(deployment: Deployment) -> list[PatchedSource]:
    """The sources of a profile that a build patches, at their locked commits."""
    commits = {name: git.commit for name, git in deployment.lock.git.items()} if deployment.lock else {}
    return [
        PatchedSource(name, deployment.profile.name, source, deployment.root, commits.get(name, ""), deployment)
        for name, source in deployment.profile.sources.items()
        if source.patches and source.origin.kind != "checkout"
    ]


def find_targets(session: Session, names: Sequence[str] = ()) -> list[PatchedSource]:
    """The patched sources of the chosen profile; if none was chosen, of all profiles, each origin once."""
    project = session.loaded().project
    profiles = [session.profile()] if session.profile_name else list(project.profiles.values())
    found: dict[tuple[str, str, str], PatchedSource] = {}
    for profile in profiles:
        for target in targets_of(Deployment(profile, project.root).to_build()):
            found.setdefault((target.name, target.folder, repr(target.source.origin)), target)
    known = sorted({target.name for target in found.values()})
    if not known:
        where = f"profile {profiles[0].name}" if session.profile_name else "any profile"
        hint = "write `patches: NAME` into a source that is not a mounted checkout (docs/lock.md)"
        raise UsageError(f"no source of {where} has patches", hint=hint)
    for name in names:
        if name not in known:
            raise UsageError(f"no source {name!r} with patches", hint=f"there is {', '.join(known)}")
    return [target for target in found.values() if not names or target.name in names]


def one_target(session: Session, name: str | None) -> PatchedSource:
    """The source that a command works on. UsageError if several could be meant."""
    found = find_targets(session, (name,) if name else ())
    kinds = {target.folder for target in found}
    if len(kinds) > 1:
        raise UsageError("more than one source has patches", hint=f"name one: {', '.join(t.name for t in found)}")
    return found[0]


def new_target(session: Session, name: str | None, title: str) -> tuple[PatchedSource, str]:
    """Where a new patch goes, and what the user must still write into the project file ("" if nothing).

    A source without `patches` gets a folder with its own name.
    """
    loaded = session.loaded()
    profiles = [session.profile()] if session.profile_name else list(loaded.project.profiles.values())
    sources = {(key, profile.name): source for profile in profiles for key, source in profile.sources.items()}
    built = {place[0]: place for place, source in reversed(sources.items()) if source.origin.kind != "checkout"}
    known = sorted({key for key, _ in sources})
    wanted = [name] if name is not None else known
    if name is None and title in known:
        raise UsageError(f"{title} is a source, and the patch has no name", hint=f"envgen patch new NAME {title}")
    if any(sources[place].patches for key, place in built.items() if key in wanted) or not set(wanted) & set(known):
        return one_target(session, name), ""
    if len(wanted) > 1:
        raise UsageError("more than one source could be patched", hint=f"name one: {', '.join(known)}")
    key, profile_name = place = built.get(wanted[0]) or next(one for one in sources if one[0] == wanted[0])
    source = replace(sources[place], patches=sources[place].patches or key)
    at = loaded.trees[profile_name].items["sources"].items[key].key_place()
    written = f"write `patches: {source.patches}` into sources.{key} ({at.file}:{at.line}), so that builds apply it"
    lines = [] if sources[place].patches else [written]
    if key not in built:
        lines.append(f"no profile builds {key} yet, and a mounted checkout is not patched")
    return PatchedSource(key, profile_name, source, loaded.project.root), "; ".join(lines)


def unpatched(target: PatchedSource, ref: str = "", *, seconds: float = 300) -> GitTree:
    """A source without its patches, from its git repository: at ``ref``, else as the profile builds it.

    That is the locked commit, the ref of the origin, or the tag of the release that comes from the package index. Only
    the files that are read are downloaded. ``seconds``: the limit of the download.
    """
    origin, version = target.source.origin, target.version
    url = origin.git or REPOSITORIES.get(target.source.distribution, "")
    wanted = ref or target.commit or (origin.git_ref if origin.git else f"v{version}" if version else "")
    if not url or not wanted:
        lacks = "git repository" if wanted else "version"
        hint = "the build applies its patches; to test them before: git apply --check, in a checkout of the release"
        raise UsageError(f"the {lacks} of {target.name} is not known", hint=hint)
    mirror = Mirror(files.cache_dir() / "git" / hashlib.sha256(url.encode()).hexdigest()[:24])
    if not _has(mirror, wanted):
        mirror = Mirror.at(mirror.folder, url)
        progress(f"fetching {wanted} of {without_login(url)}")
        options = ["--quiet", "--depth=1", "--filter=blob:none", "--no-tags"]
        mirror.git(["fetch", *options, "origin", f"+{wanted}:{_name(wanted)}"], timeout=seconds)
    commit = mirror.git(["rev-parse", f"{_name(wanted)}^{{commit}}"]).text
    if target.commit and not ref:
        label = f"{origin.git_ref} of {without_login(url)}, locked at {commit[:12]}"
        return GitTree(mirror, commit, label, version)
    shown = wanted[:12] if _COMMIT.fullmatch(wanted) else wanted
    return GitTree(mirror, commit, f"{shown} of {without_login(url)}", version_of_ref(wanted))


def _has(mirror: Mirror, ref: str) -> bool:
    """Whether a tag or commit is in the cache. A branch never counts: it may have moved."""
    if not (version_of_ref(ref) or _COMMIT.fullmatch(ref)) or not (mirror.folder / "HEAD").is_file():
        return False
    return not mirror.git(["rev-parse", "--verify", "--quiet", f"{_name(ref)}^{{commit}}"], check=False).code


def _name(ref: str) -> str:
    """The local name of a fetched ref."""
    return f"refs/envgen/{hashlib.sha256(ref.encode()).hexdigest()[:24]}"


def _folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    return folder


def checkout_of(project: Project, name: str, given: Path | None) -> Path:
    """The folder of a source's mounted checkout on this machine."""
    if given is not None:
        return _folder(given)
    for profile in project.profiles.values():
        source = profile.sources.get(name)
        if source is not None and source.origin.checkout is not None:
            path = Path(source.origin.checkout.path).expanduser()
            return _folder(path if path.is_absolute() else (project.root / path).resolve())
    raise UsageError(f"no profile mounts a checkout of {name}", hint="name one with --checkout DIR")


# A slower download is not worth waiting for: the build fetches and patches the source anyway.
SECONDS = 60.0


@dataclass
class _Tried:
    """The outcome of all dry runs. ``complete``: no source was left out, and none can change."""

    passed: list[DryRun] = field(default_factory=list)
    failed: list[DryRun] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    complete: bool = True


def try_patches(deployment: Deployment) -> None:
    """Try each series on the unpatched source, and look there for what the build needs.

    BuildError if a patch does not fit, or the source lacks the script that prepares it.

    The source is the one that will be built: its locked commit if there is one. A digest covers patches, origins and
    commits, so what passed once is not tried again; a branch that is not locked may move and is tried every time. A
    source that can't be downloaded is reported and left to the build.
    """
    profile = deployment.profile
    if not any(source.patches and source.origin.kind != "checkout" for source in profile.sources.values()):
        return
    # Not in the project, where a commit could switch the dry run off.
    record = files.cache_dir() / "tried-patches" / hashlib.sha256(f"1 {deployment.digest}".encode()).hexdigest()
    if record.is_file():
        for warning in files.read(record).decode("utf-8", "replace").splitlines():
            progress(warning)
        return
    started, found = time.monotonic(), _Tried()
    for target in targets_of(deployment):
        _try(target, profile, found)
    _refuse(found)
    for warning in found.warnings:
        progress(warning)
    if found.passed:
        progress(f"tried in {time.monotonic() - started:.1f} s: {'; '.join(map(_summary, found.passed))}")
    if found.complete:
        with contextlib.suppress(OSError):  # only saves time
            record.parent.mkdir(parents=True, exist_ok=True)
            files.write(record, "\n".join(found.warnings).encode())


def _try(target: PatchedSource, profile: Profile, found: _Tried) -> None:
    series = target.series()
    if not series.patches:
        found.warnings.append(f"note: {series.folder} has no patches, so {target.name} is built as it comes")
        return
    try:
        tree = unpatched(target, seconds=SECONDS)
        run = dry_run(tree, series)
        stops, notes = ([], []) if target.source.origin.wheel else examine(target.name, profile, tree)
    except EnvgenError as error:
        progress(f"{series.folder} is not tried: {error}")
        found.complete = False
        return
    (found.passed if run.ok else found.failed).append(run)
    found.warnings += _left_out(run, tree, series)
    found.problems += stops
    for note in notes:
        progress(f"note: {note}")
    found.complete = found.complete and bool(target.version or target.commit)


def _refuse(found: _Tried) -> None:
    """BuildError if the build would fail."""
    for run in found.failed:
        progress(f"{run.series} does not fit {run.tree}:")
        for line in report_lines(run, only_bad=True):
            progress(line)
    if bad := [verdict for run in found.failed for verdict in run.verdicts if not verdict.ok]:
        names = ", ".join(f"{verdict.path} ({verdict.state.value})" for verdict in bad)
        raise BuildError(
            f"patches do not fit, so nothing was built: {names}", hint="`envgen patch check` shows it again"
        )
    if found.problems:
        raise BuildError(problems=(Problem("nothing was built:"), *found.problems))


def _left_out(run: DryRun, tree: GitTree, series: Series) -> list[str]:
    """A warning for each patch that is not for this version, so that none is dropped silently."""
    if all(verdict.state is not State.OUT_OF_RANGE for verdict in run.verdicts):
        return []
    lines = []
    for verdict in dry_run(tree, series, beyond_range=True).verdicts:
        if verdict.state is State.OUT_OF_RANGE and verdict.measured is not None:
            fits = verdict.measured is State.FITS
            would = (
                "it would still fit: widen its Applies-To" if fits else f"it would not fit ({verdict.measured.value})"
            )
            left = f"warning: {verdict.path} is left out: it is for {verdict.applies_to}, not {run.version}"
            lines.append(f"{left}; {would}")
    return lines


def _summary(run: DryRun) -> str:
    fitting = sum(verdict.state is State.FITS for verdict in run.verdicts)
    skipped = len(run.verdicts) - fitting
    words = f"{fitting} patch{'es' * (fitting != 1)} fit{'s' * (fitting == 1)} {run.tree}"
    return words + (f" ({skipped} skipped, not for this version)" if skipped else "")


PYPROJECT = "pyproject.toml"


def unnamed(profile: Profile, source: Source, pyproject: str) -> list[str]:
    """The packages that the source's build needs and the profile neither installs nor protects."""
    given = (*source.install.requires, *profile.pip.protect, *profile.pip.deps, *profile.pip.tools, "pip", "torch")
    names = {canonicalize_name(match[0]) for text in given if (match := re.match(r"[A-Za-z0-9._-]+", text))}
    return [name for name in dict.fromkeys(build_requires(pyproject)) if name not in names]


def script_of(source: Source) -> str:
    """The file of the source that ``install.prepare`` runs; "" if it runs something else."""
    words = source.install.prepare
    interpreted = len(words) > 1 and re.fullmatch(r"(?:ba)?sh|python[0-9.]*", PurePosixPath(words[0]).name) is not None
    return words[1].removeprefix("./") if interpreted and not words[1].startswith(("-", "/")) else ""


def examine(name: str, profile: Profile, tree: GitTree) -> tuple[list[Problem], list[str]]:
    """What certainly stops the build of a source, and what may stop it. Patches are not considered."""
    source = profile.sources[name]
    script = script_of(source)
    there = tree.read({PYPROJECT, script} if script else {PYPROJECT})
    problems, notes = list[Problem](), list[str]()
    if script and script not in there:
        moved = sorted(one for one in tree.names() if PurePosixPath(one).name == PurePosixPath(script).name)
        words = ", ".join((source.install.prepare[0], *moved[:1], *source.install.prepare[2:]))
        hint = f"sources: {{{name}: {{install: {{prepare: [{words}]}}}}}}" if moved else "take install.prepare out"
        problems.append(Problem(f"{tree.label} has no {script}, which sources.{name}.install.prepare runs", hint=hint))
    if PYPROJECT in there:
        missing = unnamed(profile, source, there[PYPROJECT].data.decode("utf-8", "replace"))
        if missing:
            wanted, place = ", ".join(missing), f"sources.{name}.install.requires"
            notes.append(
                f"the build of {tree.label} asks for {wanted}: name it in {place}, or have it in the base image"
            )
    return problems, notes
