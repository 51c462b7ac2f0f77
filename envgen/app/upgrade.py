"""`envgen upgrade`: another release of a source: what it changes for a profile, and the lines that name it.

Both releases are read as text and by `ast`; nothing of them is imported or run.
"""

from __future__ import annotations

import contextlib
import difflib
import email.parser
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envgen import files
from envgen.app.patch_sources import Sources, Target, examine
from envgen.app.predict import Prediction, place_on_host, predict, vllm_words
from envgen.app.session import Session
from envgen.doctor import collect
from envgen.doctor.collect import compose_env
from envgen.engine.git import ask_server
from envgen.errors import EnvgenError, Place, Problem, RefusedError, UsageError
from envgen.inside import run
from envgen.inside.common import read_bytes
from envgen.inside.probe import sources as probe
from envgen.patches.dry_run import DryRun, GitTree, Tree, dry_run, put
from envgen.patches.series import load_series, version_of, version_of_ref
from envgen.predict import gpus
from envgen.profile.model import GpuMode, Profile, Source
from envgen.profile.tree import LOCAL, MAP, PROJECT, SET, Node, decode, near
from envgen.redact import without_login
from envgen.render.locking import lock_of
from envgen.text import progress


@dataclass(frozen=True)
class Finding(Problem):
    """Something to know before the release is changed. ``stops``: with it, a build or a start would fail."""

    stops: bool = False


@dataclass(frozen=True)
class Use:
    """A flag, a variable or a log pattern, and where the project has it from."""

    kind: str
    name: str
    place: Place | None


def at(tree: Node, *keys: str) -> Node | None:
    """The value below ``keys``; dashes and underscores are the same, as in vLLM's flags."""
    node: Node | None = tree
    for key in keys:
        items = node.items if node is not None and node.kind == MAP else {}
        node = items.get(key) or next((v for k, v in items.items() if k.replace("_", "-") == key), None)
    return node


def uses(session: Session, package: str) -> list[Use]:
    """What services of the profile, and of its variants, use of a package's release."""
    profile, found = session.profile(), dict[tuple[str, str], Use]()

    def add(kind: str, name: str, *nodes: Node | None) -> None:
        node = next((one for one in nodes if one is not None), None)
        found.setdefault((kind, name), Use(kind, name, node.key_place() if node is not None else None))

    for variant in ("", *profile.variants):
        one = Session(session.file, profile.name, session.sets, variant)
        varied, tree = one.profile(), one.loaded().trees[profile.name]
        for service, described in varied.services.items():
            here = ("services", service)
            for name in compose_env(varied, service):
                if name.startswith(f"{package.upper()}_"):
                    groups = (at(tree, "env", group, name) for group in reversed(list(varied.env)))
                    add("variable", name, at(tree, *here, "env", name), *groups)
            if package != "vllm" or not collect.is_server(described):
                continue
            for flag in collect.flags(varied, service):
                add("flag", flag, at(tree, *here, "args", flag.lstrip("-")), at(tree, *here, "command"))
            for kind in ("expect", "forbid") if described.ready else ():
                for name, pattern in getattr(described.ready, kind).items():
                    add("pattern", pattern, at(tree, *here, "ready", kind, name))
    return list(found.values())


def compare(old: Tree, new: Tree, package: str, used: Sequence[Use]) -> list[Finding]:
    """What of ``used`` the new release treats in another way than the old one."""
    if not used:
        return []
    for tree in (old, new):
        if isinstance(tree, GitTree):  # which fetches each file by itself
            what = "flags, variables, log lines and requirements are not compared"
            return [Finding(f"{what}: the package index does not have {tree.label}")]
    with files.Scratch("upgrade") as scratch, ThreadPoolExecutor(2) as pool:
        folders = [Path(scratch, side) for side in ("old", "new")]
        before, after = texts = list(pool.map(lambda tree, folder: _unpack(tree, folder, package), (old, new), folders))
        if not all(texts):
            bare = (old, new)[texts.index({})].label
            return [Finding(f"flags, variables and log lines are not compared: {bare} has no folder {package}")]
        places = [str(folder / package) for folder in folders]
        found = _variables(package, places, new.label, [one for one in used if one.kind == "variable"])
        if package == "vllm":
            found += _flags(places, new.label, [one for one in used if one.kind == "flag"])
            found += _log(_messages(before), _messages(after), old.label, new.label, used)
    return found


# Of a path in an archive: no dots but the last, so it stays where it is unpacked.
_MODULE = re.compile(r"(?:\w[\w-]*/)+\w+\.py")


def _unpack(tree: Tree, folder: Path, package: str) -> dict[str, str]:
    """The Python files of a package, put below ``folder``; their texts."""
    names = {one for one in tree.names() if one.startswith(f"{package}/") and _MODULE.fullmatch(one)}
    found = tree.read(names)
    put(folder, found)
    return {name: file.data.decode("utf-8", "replace") for name, file in found.items()}


def _variables(package: str, places: Sequence[str], label: str, used: Sequence[Use]) -> list[Finding]:
    names = [one.name for one in used]
    before, after = ({f["name"]: f for f in probe.package_variables(package, place, names)} for place in places)
    found = []
    for one in used:
        was, fact = before[one.name], after[one.name]
        if not fact["known"]:
            hint = f"it knows {' and '.join(fact['similar'])}" if fact["similar"] else "take it out"
            again = " any more" if was["known"] else ", as before"
            found.append(Finding(f"{label} does not read {one.name}{again}", one.place, hint))
        elif fact["note"] and not was["note"]:
            found.append(Finding(f"{label} on {one.name}: {fact['note']}", one.place))
    return found


def _flags(places: Sequence[str], label: str, used: Sequence[Use]) -> list[Finding]:
    judged = probe.judged_flags([one.name for one in used], places[1])
    if used and "unknown" not in judged:
        return [Finding(f"flags are not compared: {label} lists them in a way that is not known here")]
    unknown = {one["flag"]: one["similar"] for one in judged.get("unknown", ())}
    found, facts = [], list[dict[str, dict[str, Any]]]()
    for place in places:
        facts.append({one.name: {"name": one.name, "known": False, "assigned": [], "note": ""} for one in used})
        for path in probe.python_files(place):
            data = read_bytes(path)
            if b"deprecated" in data and any(one.name.encode() in data for one in used):
                probe.look(path, data, facts[-1], path)
    for one in used:
        if one.name in unknown:
            near = " or ".join(unknown[one.name])
            hint = (
                f"did you mean {near}?" if near else f"services.X.args: {{{one.name.lstrip('-')}: null}} leaves it out"
            )
            found.append(Finding(f"{label} has no flag {one.name}", one.place, hint, stops=True))
        elif (note := facts[1][one.name]["note"]) and not facts[0][one.name]["note"]:
            found.append(Finding(f"{label} on {one.name}: {note}", one.place))
    return found


# --- the log ----------------------------------------------------------------------------------------------------------

# Strings that stand side by side, as Python joins them. vLLM is formatted with double quotes.
_STRINGS = re.compile(r'(?:[fFrR]{0,2}"(?:[^"\\\n]|\\.)+"\s*)+')
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)+)"')


def _messages(texts: Mapping[str, str]) -> str:
    found = {"".join(_STRING.findall(one)) for text in texts.values() for one in _STRINGS.findall(text) if " " in one}
    return "\n".join(found)


def _log(before: str, after: str, old: str, new: str, used: Iterable[Use]) -> list[Finding]:
    """Patterns whose text the old release spells and the new one doesn't. Where a value is filled in, none can tell."""
    found = []
    for one in used:
        texts = [text for text in samples(one.name) if len(text) > 5] if one.kind == "pattern" else ()
        if any(text in before for text in texts) and not any(text in after for text in texts):
            found.append(Finding(f"{one.name!r} finds a line of {old}, and nothing that {new} logs", one.place))
    return found


def samples(pattern: str) -> list[str]:
    """Of each alternative of a regular expression the longest text that it certainly wants."""
    text = re.sub(r"\\(\W)", lambda found: chr(0xE000 + ord(found[1])), pattern)  # what is escaped is text
    before = ""
    while before != text:  # groups, from the inside out: the first alternative, nothing optional
        before = text
        text = re.sub(r"\((?:\?:)?([^()|]*)[^()]*\)([?*]|\{0)?", lambda found: "" if found[2] else found[1], text)
    special = re.compile(r"\\\w[+*?]*|\[[^\]]*\][+*?]*|\.?[+*?]+|\.|\{[^}]*\}|[$^]")
    longest = (max(special.split(one), key=len) for one in text.split("|"))
    return ["".join(chr(ord(c) - 0xE000) if 0xE000 < ord(c) < 0xE100 else c for c in one) for one in longest]


NGC = "nvidia/pytorch"
# NVIDIA's image by month -> its torch, from its release notes. Only what was read there.
NGC_TORCH = {"25.12": "2.10"}
_ARCHS = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}


@dataclass(frozen=True)
class Row:
    """A source of a profile, its release, the newest one, and how many of its patches fit that."""

    profile: str
    source: str
    now: str
    newest: str
    patches: str
    note: str
    place: Place


@dataclass(frozen=True)
class Edit:
    """One value of the project file, and what is replaced in it."""

    key: str
    node: Node
    old: str
    new: str


@dataclass
class Plan:
    """What an upgrade would change. ``wanted``: source -> (release now, release then)."""

    profile: Profile
    wanted: dict[str, tuple[str, str]]
    newest: str
    torch: str = ""
    runs: list[DryRun] = field(default_factory=list)
    predictions: list[Prediction] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    file: Path = Path()
    before: bytes = b""
    after: bytes = b""

    @property
    def diff(self) -> str:
        """The change of the project file."""
        old, new = (text.decode("utf-8-sig").splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(old, new, self.file.name, self.file.name, n=1)).rstrip("\n")

    def write(self) -> None:
        """Change the project file, unless it was changed since it was read."""
        if files.read(self.file) != self.before:
            raise RefusedError(f"{self.file.name} has changed meanwhile, so nothing was written", hint="run it again")
        files.write(self.file.resolve(), self.after)


class _Asked:
    """What is asked of the package index and of git servers for one profile."""

    def __init__(self, profile: Profile, root: Path) -> None:
        self.profile, self.root = profile, root
        self.bare = Sources(say=progress)
        locked = lock_of(profile, root)
        pythons = locked.python if locked else {}
        platforms = {profile.base.platform.value} if profile.base.platform else set(pythons)
        versions = {one.python for one in pythons.values()}
        # What is not known of the target is taken from this machine, or not asked for.
        self.arch = _ARCHS[platforms.pop()] if len(platforms) == 1 else platform.machine()
        self.python = versions.pop() if len(versions) == 1 else ""
        self._trees = dict[tuple[str, str], Tree]()

    def releases(self, source: Source) -> set[Version]:
        """Those that the origin can name: tags of the repository, else what the index has for this machine."""
        origin, now = source.origin, version_of(source.origin)
        if origin.git is not None:
            lines = list[str]()
            with contextlib.suppress(EnvgenError):
                answer = ask_server(["ls-remote", "--tags", "--refs", "--", origin.git], timeout=60)
                lines = answer.text.splitlines() if not answer.code else lines
            tags = {line.rpartition("refs/tags/")[2] for line in lines}
            versions = {Version(found) for found in map(version_of_ref, tags) if found}
            if alike := {one for one in versions if origin.git_ref.replace(now, str(one)) in tags}:
                return alike
            progress(f"{without_login(origin.git)} names no releases: taking those of the package index")
        wheel = origin.wheel is not None
        return self.bare.index.fitting(source.distribution, wheel=wheel, arch=self.arch, python=self.python)

    def tree(self, name: str, version: str) -> Tree:
        """The sources of a release: what the index has, else the tag. Nothing of it is run."""
        if (name, version) not in self._trees:
            source = self.profile.sources[name]
            target = Target(name, self.profile.name, source, self.root)
            try:
                found = self.bare.release(target, version)
            except EnvgenError:
                if source.origin.git is None:
                    raise
                found = self.bare.ref(target, source.origin.git_ref.replace(version_of(source.origin), version))
            self._trees[name, version] = found
        return self._trees[name, version]

    def needs(self, tree: Tree) -> dict[str, Requirement]:
        """What a release asks for here, by name."""
        names = {one for one in tree.names() if one == "PKG-INFO" or re.fullmatch(r"[^/]+\.dist-info/METADATA", one)}
        here = {"platform_machine": self.arch, "sys_platform": "linux", "platform_system": "Linux", "extra": ""}
        found = dict[str, Requirement]()
        for data in tree.read(names).values():
            head = email.parser.HeaderParser().parsestr(data.data.decode("utf-8", "replace"))
            for line in head.get_all("Requires-Dist") or ():
                try:
                    one = Requirement(line)
                except InvalidRequirement:
                    continue
                if one.marker is None or one.marker.evaluate(here):
                    found[canonicalize_name(one.name)] = one
        return found


def _finished(versions: set[Version]) -> str:
    return str(max((one for one in versions if not one.is_prerelease), default=""))


# --- which releases there are -----------------------------------------------------------------------------------------


def rows(session: Session) -> list[Row]:
    """The sources of the chosen profile; without a choice of all profiles, each value of the file once."""
    loaded = session.loaded()
    profiles = [session.profile()] if session.profile_name else list(loaded.project.profiles.values())
    found, seen, troubles = list[Row](), set[str](), list[EnvgenError]()
    for profile in profiles:
        ask = _Asked(profile, loaded.project.root)
        for name, source in profile.sources.items():
            place = _origin(loaded.trees[profile.name], name, source).place()
            if str(place) in seen or source.origin.kind == "folder":
                continue
            seen.add(str(place))
            now, newest, patches = version_of(source.origin), "", ""
            note = _unmoved(name, profile, source) if not now else ""
            try:
                newest = _finished(ask.releases(source)) if now else ""
                if newest and newest != now and source.patches:
                    run = dry_run(ask.tree(name, newest), load_series(ask.root, source.patches))
                    patches = f"{sum(one.state.fits for one in run.verdicts)} of {len(run.verdicts)} fit"
            except EnvgenError as error:
                troubles.append(error)
                note = str(error).splitlines()[0]
            found.append(Row(profile.name, name, now, newest, patches, note, place))
    if troubles and not any(row.newest for row in found):
        raise troubles[0]
    return found


def _unmoved(name: str, profile: Profile, source: Source) -> str:
    """Why a source has no release to move from."""
    origin = source.origin
    if origin.checkout is not None:
        return f"a mounted checkout: git -C {origin.checkout.path} pull"
    return f"at {origin.git_ref[:12]}, which is not a release" if origin.git else "a folder of this project"


def _origin(tree: Node, name: str, source: Source) -> Node:
    """The value that names the release."""
    key = "ref" if source.origin.ref is not None else "pull" if source.origin.pull else source.origin.kind
    found = at(tree, "sources", name, "origin", key)
    assert found is not None  # bound from there
    return found


# --- one upgrade ------------------------------------------------------------------------------------------------------


def plan(session: Session, name: str, version: str | None, python: Path | None) -> Plan:
    """Everything about one upgrade; nothing is written."""
    profile, loaded = session.profile(), session.loaded()
    tree, ask = loaded.trees[profile.name], _Asked(profile, loaded.project.root)
    if name not in profile.sources:
        raise UsageError(f"profile {profile.name} has no source {name!r}", hint=near(name, list(profile.sources)))
    source = profile.sources[name]
    if not (now := version_of(source.origin)):
        every = loaded.project.profiles.values()
        others = [one.name for one in every if name in one.sources and version_of(one.sources[name].origin)]
        hint = f"with a release: envgen upgrade {name} -p {others[0]}" if others else "name a release there first"
        place = _origin(tree, name, source).place(f"sources.{name}.origin")
        raise UsageError(f"{name} is {_unmoved(name, profile, source)}", hint=hint, place=place)
    _check(_origin(tree, name, source), f"sources.{name}.origin")
    releases = ask.releases(source)
    then = _chosen(name, source, version, releases, ask)
    found = Plan(profile, {name: (now, then)}, _finished(releases))
    if then == now:
        return found
    new = ask.tree(name, then)
    _companions(found, ask, name, ask.needs(new))
    found.torch = _torch(profile, ask.needs(new).get("torch"))
    for one, (before, after) in found.wanted.items():
        _examine(found, session, ask, one, ask.tree(one, before), new if one == name else ask.tree(one, after))
    _ask_predict(found, profile, python)
    _edit(found, session)
    return found


def _chosen(name: str, source: Source, version: str | None, releases: set[Version], ask: _Asked) -> str:
    machine = f"{ask.arch}{f' and Python {ask.python}' if ask.python else ''}"
    if not (newest := _finished(releases)):
        raise EnvgenError(f"there is no release of {name} for {machine}")
    if version is None:
        return newest
    try:
        if Version(version) in releases:
            return str(Version(version))
    except InvalidVersion:
        raise UsageError(f"{version!r} is not a release", hint=f"as in: envgen upgrade {name} {newest}") from None
    close = difflib.get_close_matches(version, sorted(map(str, releases)), 3, 0.5)
    nearest = list(dict.fromkeys([*close, newest]))
    raise UsageError(f"there is no {name} {version} for {machine}", hint=f"there is {', '.join(nearest)}")


def _companions(found: Plan, ask: _Asked, name: str, needs: Mapping[str, Requirement]) -> None:
    """Other sources of the profile that the release pins move with it; where one pins this source, it is said."""
    for other, source in ask.profile.sources.items():
        need, now = needs.get(canonicalize_name(source.distribution)), version_of(source.origin)
        if other == name or not now:
            continue
        if need is not None and not need.specifier.contains(now, prereleases=True):
            pins = [one.version for one in need.specifier if one.operator == "==" and "*" not in one.version]
            if pins:
                found.wanted[other] = now, pins[0]
            else:
                message = f"{name} {found.wanted[name][1]} asks for {need}, and {other} is at {now}"
                found.findings.append(Finding(message, hint=f"envgen upgrade {other}", stops=True))
            continue
        back = ask.needs(ask.tree(other, now)).get(canonicalize_name(ask.profile.sources[name].distribution))
        if back is not None and not back.specifier.contains(found.wanted[name][1], prereleases=True):
            message = f"{other} {now} asks for {back}"
            found.findings.append(Finding(message, hint=f"envgen upgrade {other} moves both", stops=True))


def _torch(profile: Profile, need: Requirement | None) -> str:
    """Which torch a release asks for, and what is known of the base image's."""
    if need is None:
        return ""
    image = profile.base.image
    known = NGC_TORCH.get(image.tag[:5], "") if image.path == NGC else ""
    if known:
        return f"{need} is asked for; {image} has {known}"
    with_it = [f"nvcr.io/{NGC}:{tag}-py3" for tag, has in NGC_TORCH.items() if has in str(need.specifier)]
    other = f"; {with_it[0]} has it" if with_it else ""
    return f"{need} is asked for; not verified: which one {image} has{other}"


def _examine(found: Plan, session: Session, ask: _Asked, name: str, old: Tree, new: Tree) -> None:
    """One source: its patches, its build, and what the profile uses of it."""
    source, tree = ask.profile.sources[name], session.loaded().trees[ask.profile.name]
    before, after = found.wanted[name]
    found.edits.append(Edit(f"sources.{name}.origin", _origin(tree, name, source), before, after))
    if source.patches:
        run_ = dry_run(new, load_series(ask.root, source.patches))
        found.runs.append(run_)
        bad = [f"{one.path} ({one.state.value})" for one in run_.verdicts if not one.ok]
        hint = f"envgen patch refresh {name} --release {after}"
        found.findings += [Finding(f"patches do not fit: {', '.join(bad)}", hint=hint, stops=True)] if bad else []
    if source.origin.is_built:
        problems, notes = examine(name, ask.profile, new)
        found.findings += [Finding(one.message, one.place, one.hint, stops=True) for one in problems]
        found.findings += map(Finding, notes)
        for key, value in source.install.env.items():
            node = at(tree, "sources", name, "install", "env", key)
            if value == before and node is not None:
                found.edits.append(Edit(f"sources.{name}.install.env.{key}", node, before, after))
        _inputs(found, name, source, tree, old, new)
    found.findings += compare(old, new, source.package, uses(session, source.package))


def _inputs(found: Plan, name: str, source: Source, tree: Node, old: Tree, new: Tree) -> None:
    """What its CMake fetches: the line that named the old commit names the new one."""
    if not source.install.inputs:
        return
    scripts = {one for one in old.names() if re.fullmatch(r"CMakeLists\.txt|cmake/.*\.cmake", one)}
    before, after = ({k: f.data.decode("utf-8", "replace") for k, f in t.read(scripts).items()} for t in (old, new))
    for key, one in source.install.inputs.items():
        node = at(tree, "sources", name, "install", "inputs", key, "ref")
        lines = [(k, line.strip()) for k, text in before.items() for line in text.splitlines() if one.ref in line]
        moved = {
            ref
            for k, line in lines
            for ref in re.findall(re.escape(line).replace(re.escape(one.ref), r"([\w./-]+)"), after.get(k, ""))
        }
        if len(moved) == 1 and node is not None:
            found.edits += [
                Edit(f"sources.{name}.install.inputs.{key}", node, one.ref, ref) for ref in moved - {one.ref}
            ]
        else:
            message = f"which ref of input {key} {new.label} names was not found"
            found.findings.append(Finding(message, node.place() if node else None, "see its CMakeLists.txt and cmake/"))


def _ask_predict(found: Plan, profile: Profile, python: Path | None) -> None:
    servers = [name for name, one in profile.services.items() if vllm_words(one) is not None]
    version = next((then for name, (_, then) in found.wanted.items() if profile.sources[name].package == "vllm"), "")
    if not version or not servers or profile.gpu is GpuMode.NONE:
        return
    python = python or files.cache_dir() / "predict" / version / "bin" / "python"  # as in docs/recipes.md
    if not python.is_file():
        hint = f"`envgen predict {servers[0]}` after the build; before it, see docs/recipes.md, Upgrading vLLM"
        found.findings.append(Finding(f"vLLM {version} was not asked what it chooses: no {python}", hint=hint))
        return
    for name in servers:
        progress(f"asking {python} what it would choose for {name}")
        said = predict(profile, name, place_on_host(profile, name, python), gpus.target(profile), pretend=True)
        there = "" if isinstance(said.answer, run.Failure) else (said.answer.get("vllm") or {}).get("version", "")
        if there and there.partition("+")[0] != version:
            raise UsageError(f"{python} has vLLM {there}, not {version}", hint="name another one with --python")
        found.predictions.append(said)
        if not said.ends_well:
            words = f"{name}: {said.judgement.verdict.value}, says vLLM {version}"
            found.findings.append(Finding(words, hint="see what predict prints, above", stops=True))


# --- the project file -------------------------------------------------------------------------------------------------


def _edit(found: Plan, session: Session) -> None:
    loaded = session.loaded()
    found.file = loaded.project.file
    found.before = files.read(found.file)
    text = decode(found.before, found.file.name)
    after = edited(text, found.edits)
    mark = b"\xef\xbb\xbf" if found.before.startswith(b"\xef\xbb\xbf") else b""
    found.after = mark + after.encode()
    name, first = next(iter(found.wanted)), found.edits[0].node
    nodes = {
        one: _origin(loaded.trees[one], name, profile.sources[name])
        for one, profile in loaded.project.profiles.items()
        if one != found.profile.name and name in profile.sources
    }
    alike = (first.source.label, first.line, first.column)
    sharing = [one for one, node in nodes.items() if (node.source.label, node.line, node.column) == alike]
    if sharing:
        found.findings.append(Finding(f"the same lines are those of {', '.join(sharing)}: they move too"))
    for old, _ in found.wanted.values():
        number = rf"(?<![\w.]){re.escape(old)}(?![\w.]*\d)"
        if left := [str(place) for place, line in enumerate(after.splitlines(), 1) if re.search(number, line)]:
            found.findings.append(Finding(f"{found.file.name} still mentions {old}: line {', '.join(left)}"))


def _check(node: Node, key: str) -> None:
    """RefusedError where a value does not come from the project file."""
    if node.source.layer != PROJECT:
        hints = {LOCAL: "change it there", SET: "leave that option out"}
        hint = hints.get(node.source.layer, f"unset {node.source.label}")
        raise RefusedError("this decides the release, not the project file", hint=hint, place=node.place(key))


def edited(text: str, edits: Sequence[Edit]) -> str:
    """``text`` with the edits made in the values where they stand. RefusedError for one that can't be made there."""
    parsed = yaml.parse(text, yaml.BaseLoader)
    events: list[Any] = [one for one in parsed if isinstance(one, yaml.ScalarEvent) and one.value]
    scalars = {(one.start_mark.line + 1, one.start_mark.column + 1): one for one in events}
    made = dict[int, tuple[int, str]]()
    for edit in edits:
        node = edit.node
        _check(node, edit.key)
        found = scalars.get((node.line, node.column))
        start, end = (found.start_mark.index, found.end_mark.index) if found is not None else (0, 0)
        if text[start:end].count(edit.old) != 1:
            message, hint = f"can't be changed by envgen: {edit.old} must be in it once", "change it by hand"
            raise RefusedError(message, hint=hint, place=node.place(edit.key))
        made[start] = end, text[start:end].replace(edit.old, edit.new)
    for start, (end, new) in sorted(made.items(), reverse=True):
        text = text[:start] + new + text[end:]
    return text
