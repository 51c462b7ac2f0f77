"""What state a module is in, and the evidence for it.

``building`` its lock is held · ``partial`` no library yet · ``masked`` a prebuilt library wins · ``foreign`` of another
version or arch than this environment uses · ``stale`` compiled from something else than there is now · ``debug``
compiled without optimisation · ``fresh`` ·
``unknown`` nothing tells. Without a recorded baseline stale and fresh are guesses: a file that changed after the
library was linked may have other bytes, or the same again. Times of change (ctime) can't be set to the past, as
mtimes can.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Iterator, List, Optional, Tuple

from envgen.inside.jit.layout import OURS, Cache, Entry, Shelf, asked, choose, root_of
from envgen.inside.jit.libraries import Package, package_of, runs
from envgen.inside.jit.locks import BATCH, Held, acquire_inside, enter, holders, leftovers, own_as
from envgen.inside.jit.ninja import Reader, Recipe, library_of
from envgen.inside.jit.tree import (
    GONE,
    LISTED,
    Fault,
    Files,
    Measure,
    descend,
    digest_of_text,
    measure,
    note,
    open_folder,
    opened,
    read_file,
    reason,
)

# One module as it is now: what its folder takes, how old it is, and whether it is being built.

NAMED = 40  # files named for one reason; the rest are counted


@dataclass
class Holder:
    """A process that holds a lock. ``where`` = the service or container it runs in; empty: where the agent ran."""

    pid: int
    command: str
    where: str = ""


@dataclass
class Reason:
    """One thing that speaks against a module. ``stale``: it makes it stale; else it is worth knowing. ``files``: which
    files, the first of them; ``more``: how many others."""

    kind: str
    message: str
    stale: bool
    files: List[str]
    more: int


@dataclass
class Module:
    """One folder in ``cached_ops``.

    ``kind``: ninja (has a build.ninja), cute_dsl (from 0.6.16: meta.json, objects), link or other (kda_ptx, ...).
    ``built``: its .so is there. ``modified``: when that was linked, else its youngest file. ``locked``: None when it
    can't be told; ``lock``: device and inode of the lock that is held. ``unread``: parts that stay unseen. ``state``:
    see docs/jit-cache.md; ``guess``: no baseline proves it. ``baseline``: none, recorded or outdated (of an earlier
    build). ``checked``: how many files were compared.
    """

    version: str
    arch: str
    name: str
    kind: str = "link"
    bytes: int = 0
    files: int = 0
    objects: int = 0
    built: bool = False
    modified: float = 0.0
    locked: Optional[bool] = False
    lock: List[int] = field(default_factory=list)
    holders: List[Holder] = field(default_factory=list)
    unread: int = 0
    state: str = "unknown"
    guess: bool = False
    baseline: str = "none"
    reasons: List[Reason] = field(default_factory=list)
    checked: int = 0

    def add(self, kind: str, message: str, files: list[str] | None = None, *, stale: bool = True) -> None:
        """Add a reason. ``stale`` ones make a module stale; others (a needless rebuild ahead) don't."""
        names = files or []
        self.reasons.append(Reason(kind, message, stale, names[:NAMED], max(0, len(names) - NAMED)))

    @property
    def stale(self) -> bool:
        return any(reason.stale for reason in self.reasons)


def describe(shelf: Shelf, entry: Entry, problems: list[str]) -> Module | None:
    """None: it is gone."""
    found = Module(shelf.version, shelf.arch, entry.name)
    if entry.kind == "link":
        return found
    found.kind = "other"
    try:
        with opened(entry.name, shelf.fd) as fd:
            total, names = measure(fd, Measure()), os.listdir(fd)
    except OSError as error:
        if error.errno in GONE:
            return None
        note(problems, shelf.shown + "/" + entry.name + ": " + reason(error))
        found.unread = 1
        return found
    for text in total.unread:
        note(problems, shelf.shown + "/" + entry.name + "/" + text)
    if "build.ninja" in names:
        found.kind = "ninja"
    elif "meta.json" in names or entry.name.endswith("_cute_dsl"):
        found.kind = "cute_dsl"
    found.bytes, found.files, found.objects, found.unread = total.bytes, total.files, total.objects, len(total.unread)
    linked = [time for name, _, time in total.libraries if name == entry.name + ".so"]
    found.built, found.modified = bool(linked), linked[0] if linked else total.newest
    found.locked, found.lock = lock_of(shelf, entry.name + ".lock", problems)
    return found


def lock_of(shelf: Shelf, name: str, problems: list[str]) -> Tuple[Optional[bool], List[int]]:
    """Is this lock of the shelf held (None: it can't be told), and which file that is."""
    try:
        acquire_inside("tmp/" + name, shelf.fd, shelf.shown + "/tmp/" + name, dry=True)
    except Held as held:
        return True, [held.device, held.inode]
    except Fault as fault:
        note(problems, fault.message)
        return None, []
    return False, []


# What every file was when a module was compiled: ``<root>/.envgen/baseline/<version>/<arch>/<module>.json``.
#
# Beside FlashInfer's folders, never in them: its own clear-cache removes those whole. A record counts only as long as
# the library is the one that it was made for.

FORMAT = 1
RECORDS = (OURS, "baseline")
# Flags that FlashInfer appends from the environment of the compiling process.
ENV_FLAGS = ("FLASHINFER_EXTRA_CFLAGS", "FLASHINFER_EXTRA_CUDAFLAGS", "FLASHINFER_EXTRA_LDFLAGS")


def read_record(cache: Cache, shelf: Shelf, name: str) -> dict[str, object] | None:
    """The record of this module; None where there is none that can be read."""
    try:
        with _folder(cache, shelf, create=False) as fd:
            document = json.loads(read_file(file_name(name), fd))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and _is_sound(document) else None


def _is_sound(document: dict[str, object]) -> bool:
    """It may have been edited: whatever is read from it later has the type that it must have."""
    files = document.get("files")
    return (
        document.get("format") == FORMAT
        and isinstance(document.get("library"), list)
        and isinstance(files, dict)
        and all(isinstance(entry, list) and len(entry) == 5 for entry in files.values())
        and all(isinstance(document.get(key), dict) for key in ("flags", "env"))
        and all(isinstance(document.get(key), str) for key in ("ninja", "cuda_home", "root"))
    )


def record_of(recipe: Recipe, files: Files, environ: dict[str, str], now: float) -> dict[str, object]:
    """The record of a module as it is now."""
    known: dict[str, list[object]] = {}
    for path in recipe.inputs:
        stamp = files.stamp(path)
        known[path] = [files.digest(path), *(stamp or (0, 0, 0, 0))]
    return {"format": FORMAT, "module": recipe.name, "recorded": now, "library": list(recipe.library or ()),
            "ninja": recipe.ninja, "root": recipe.package_root(), "cuda_home": recipe.cuda_home,
            "flags": recipe.flags, "env": {name: environ[name] for name in ENV_FLAGS if environ.get(name)},
            "files": known}  # fmt: skip


def write_record(cache: Cache, shelf: Shelf, name: str, text: str) -> None:
    """Put the record in its place, whole or not at all."""
    temporary = ".new-" + os.urandom(8).hex()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with _folder(cache, shelf, create=True) as fd:
            with os.fdopen(os.open(temporary, flags, 0o644, dir_fd=fd), "w", encoding="ascii") as file:
                file.write(text)
                own_as(file.fileno(), fd)
            os.rename(temporary, file_name(name), src_dir_fd=fd, dst_dir_fd=fd)
    except OSError as error:
        raise Fault("refused", "/".join(RECORDS) + " can't be written: " + reason(error)) from None


def file_name(name: str) -> str:
    """A file name of at most 255 bytes, whatever the module's."""
    if len(os.fsencode(name)) <= 200:
        return name + ".json"
    return os.fsdecode(os.fsencode(name)[:150]) + "-" + digest_of_text(os.fsencode(name))[:16] + ".json"


@contextmanager
def _folder(cache: Cache, shelf: Shelf, *, create: bool) -> Iterator[int]:
    """The open folder of this shelf's records. Links on the way are not followed."""
    fd = descend(cache.fd, (*RECORDS, shelf.version, shelf.arch or "none"), enter if create else open_folder)
    try:
        yield fd
    finally:
        os.close(fd)


# From here on FlashInfer writes build.ninja again when it would be another one; before, only when it was missing.
REWRITES = (0, 6, 11, 1)


def rewrites(version: str) -> bool:
    """Does this release compile again by itself when its flags change? A version that says nothing: yes."""
    numbers = re.match(r"\d+(\.(post)?\d+)*", version)
    parts = numbers.group().replace("post", "").split(".") if numbers else ()
    return version.startswith("0.0.0") or tuple(map(int, parts)) >= REWRITES


class Judge:
    """Judges the modules of one cache. ``thorough``: read every byte, whatever the recorded stamps say."""

    def __init__(self, cache: Cache, request: Dict[str, Any], package: Package, *, thorough: bool = False) -> None:
        self.cache = cache
        self.package = package
        self.thorough = thorough
        self.files = Files()
        self.reader = Reader()
        self.archs: list[str] | None = request.get("expected_archs")
        # In a throw-away container what services mount isn't there: a missing file says nothing then.
        self.blind = bool(request.get("blind"))
        self.environ = {**(request.get("environ") or {}), **os.environ}

    def judge(self, shelf: Shelf, module: Module) -> None:
        """Find the state of one module. Everything that speaks against it is collected, not only the first."""
        recipe, masking = None, ""
        if module.kind == "ninja":
            masking = self.package.masking(module.name, shelf.arch.split("_") if shelf.arch else [])
            if self.thorough or not module.locked:
                recipe = self.reader.read(shelf, module.name)
                self._compare(recipe, module)
        foreign = self.foreign(shelf)
        if module.locked:
            module.state = "building"
        elif module.kind == "ninja" and not module.built:
            module.state = "partial"
        elif masking:
            module.state = "masked"
            module.add("masked", "the prebuilt library " + masking + " is loaded instead", stale=False)
        elif foreign:
            module.state = "foreign"
            module.add("foreign", foreign, stale=False)
        elif module.stale:
            module.state = "stale"
        elif recipe is not None and recipe.library is not None and recipe.is_debug():
            module.state = "debug"
        module.guess = module.guess and module.state in ("fresh", "stale")

    def foreign(self, shelf: Shelf) -> str:
        """Why this environment will never use what is there; empty when it will, or when nothing tells."""
        if self.package.version and shelf.version != self.package.version:
            return "FlashInfer " + self.package.version + " is imported here, not " + shelf.version
        if self.archs is not None and shelf.arch not in self.archs:
            return "this environment compiles for " + " or ".join(self.archs) + ", not " + (shelf.arch or "any GPU")
        return ""

    def _compare(self, recipe: Recipe, module: Module) -> None:
        if recipe.library is None:
            return
        if recipe.problem:
            module.add("record", recipe.problem, stale=False)
        record = read_record(self.cache, recipe.shelf, recipe.name)
        current = record is not None and record.get("library") == list(recipe.library)
        if record is not None:
            module.baseline = "recorded" if current else "outdated"
        module.state = "fresh"
        if record is not None and current:
            self._against_record(recipe, record, module)
        elif not recipe.inputs or not recipe.recorded:
            module.state = "unknown"
        else:
            self._guess(recipe, module)
        if not self.foreign(recipe.shelf):
            self._surroundings(recipe, module)

    def _against_record(self, recipe: Recipe, record: dict[str, object], module: Module) -> None:
        """Bytes now against bytes then. An unchanged stamp (with its ctime) spares reading, except when thorough."""
        changed = []
        gone = []
        touched = []
        linked = recipe.library[1] if recipe.library else 0
        files: dict[str, list[object]] = record["files"]  # type: ignore[assignment]
        for path, entry in files.items():
            stamp = self.files.stamp(path)
            if stamp is None:
                if entry[0]:
                    gone.append(path)
            elif (self.thorough or list(stamp) != entry[1:]) and self.files.digest(path) != entry[0]:
                changed.append(path)
            elif stamp[2] > linked:
                touched.append(path)
        module.checked = len(files)
        if changed:
            module.add("bytes", "has other bytes than when it was compiled", changed)
        elif touched:
            message = "was touched since it was compiled; its bytes are the same, and yet FlashInfer will compile again"
            module.add("touched", message, touched, stale=False)
        self._missing(gone, module)
        if record["ninja"] != recipe.ninja:
            self._flags(recipe, record, module)
        environment: dict[str, str] = record["env"]  # type: ignore[assignment]
        for name in ENV_FLAGS:
            then, now = environment.get(name, ""), self.environ.get(name, "")
            if then and then != now:
                module.add("flags", name + " was " + repr(then) + " and is " + (repr(now) if now else "not set"))

    def _flags(self, recipe: Recipe, record: dict[str, object], module: Module) -> None:
        flags: dict[str, str] = record["flags"]  # type: ignore[assignment]
        changed = []
        for name in sorted(set(flags) | set(recipe.flags)):
            then, now = str(flags.get(name, "")).split(), recipe.flags.get(name, "").split()
            less = [word for word in then if word not in now]
            more = [word for word in now if word not in then]
            if less or more:
                changed.append(name + ": " + " ".join(["-" + word for word in less] + ["+" + word for word in more]))
        module.add("flags", "build.ninja is not what it was compiled with", changed)

    def _guess(self, recipe: Recipe, module: Module) -> None:
        linked = recipe.library[1] if recipe.library else 0
        newer = []
        gone = []
        for path in recipe.inputs:
            stamp = self.files.stamp(path)
            if stamp is None:
                gone.append(path)
            elif stamp[3] >= linked:  # a tick of the clock is some milliseconds
                newer.append(path)
        module.guess = True
        module.checked = len(recipe.inputs)
        if newer:
            module.add("ctime", "changed after it was compiled; without a baseline its bytes may be the same", newer)
        self._missing(gone, module)

    def _missing(self, gone: list[str], module: Module) -> None:
        if gone and self.blind:
            module.state = "unknown"
            module.add("unseen", "can't be seen from here: start a service of the profile", gone, stale=False)
        elif gone:
            module.guess = False
            module.add("missing", "is gone since it was compiled", gone)

    def _surroundings(self, recipe: Recipe, module: Module) -> None:
        """What FlashInfer up to 0.6.10 never notices: another package, other flags; and the spelling of CUDA's path."""
        root = recipe.package_root()
        if root and self.package.root and self.files.real(root) != self.files.real(self.package.root):
            module.add("root", "was compiled from " + root + "; Python imports " + self.package.root)
            module.guess = False
        words = recipe.words("cuda_cflags", "cflags", "common_cflags", "ldflags")
        for name in ENV_FLAGS:
            missing = [word for word in self.environ.get(name, "").split() if word not in words]
            if missing:
                module.add("flags", name + " asks for " + " ".join(missing) + "; it was compiled without")
                module.guess = False
        self._cuda(recipe, module)
        self._switches(recipe, module)
        self._arch(recipe, module)

    def _arch(self, recipe: Recipe, module: Module) -> None:
        """Code that no GPU of its folder can run, where FlashInfer would not notice (up to 0.6.10).

        Some generators fix their archs, whatever the list says, and name them: fp4_quantization_121 is sm_121a in a
        folder 121f, fused_moe_90 is sm_90a in any. Such a module is as it should be.
        """
        codes, folders = recipe.archs(), recipe.shelf.arch.split("_")
        if not codes or not recipe.shelf.arch or any(runs(code, folder) for code in codes for folder in folders):
            return
        tokens = {part[2:] if part.startswith("sm") else part for part in recipe.name.split("_")}
        named = {code for code in codes if code in tokens or code.rstrip("af") in tokens}
        if not named and not rewrites(recipe.shelf.version):
            module.add("arch", "was compiled for " + ", ".join(codes) + ", in a folder for " + ", ".join(folders))
            module.guess = False

    def _switches(self, recipe: Recipe, module: Module) -> None:
        """FlashInfer's own switches of how it compiles: what they made of this module, and what they say now."""
        asked = self.environ.get("FLASHINFER_JIT_DEBUG", self.environ.get("FLASHINFER_JIT_VERBOSE", "0")) == "1"
        again = rewrites(recipe.shelf.version)
        if recipe.is_debug():
            message = "was compiled for a debugger (-O0, device debug): 10 to 100 times slower"
            if asked:
                message += "; FLASHINFER_JIT_DEBUG asks for it, or FLASHINFER_JIT_VERBOSE where the former is not set"
            elif again:
                message += "; nothing asks for that any more, so FlashInfer will compile it again"
            else:
                message += "; nothing asks for that any more, but it stays so until it is cleared"
            module.add("debug", message, stale=False)
            return
        changed = ["FLASHINFER_JIT_DEBUG"] if asked else []
        words = recipe.words("cuda_cflags")
        if (self.environ.get("FLASHINFER_JIT_LINEINFO", "0") == "1") != ("-lineinfo" in words):
            changed.append("FLASHINFER_JIT_LINEINFO")
        threads = [word[10:] for word in words if word.startswith("--threads=")]
        if threads and threads[-1] != self.environ.get("FLASHINFER_NVCC_THREADS", "1"):
            changed.append("FLASHINFER_NVCC_THREADS")
        if changed and again:
            names = ", ".join(changed)
            module.add("switches", names + " is not what it was: FlashInfer will compile everything again", stale=False)

    def _cuda(self, recipe: Recipe, module: Module) -> None:
        then, now = recipe.cuda_home, self.environ.get("CUDA_HOME") or self.environ.get("CUDA_PATH") or ""
        if not then or not now or then == now:
            return
        if os.path.realpath(then) == os.path.realpath(now):
            message = "cuda_home is spelled " + then + " in build.ninja and " + now + " here: the same folder, and yet"
            module.add("cuda_home", message + " FlashInfer will compile again where it compares the text", stale=False)
        else:
            module.add("cuda_home", "was compiled with the CUDA in " + then + "; here it is in " + now)
            module.guess = False


# Operation ``baseline``: remember what modules are made of.


def run_baseline(request: Dict[str, Any]) -> Dict[str, Any]:
    """Record the chosen modules. One whose files changed after it was linked is refused unless ``force``."""
    cache, patterns = asked(request)
    try:
        reader, files = Reader(), Files()
        done = []
        for one in choose(cache, patterns, not patterns):
            for name in (entry.name for entry in one.entries if entry.kind == "folder"):
                outcome = _record(cache, one.shelf, name, reader, files, request)
                done.append({"version": one.shelf.version, "arch": one.shelf.arch, "name": name, **outcome})
        return {"root": root_of(request), "modules": done, "problems": cache.problems}
    finally:
        cache.close()


def _record(
    cache: Cache, shelf: Shelf, name: str, reader: Reader, files: Files, request: Dict[str, Any]
) -> Dict[str, Any]:
    recipe = reader.read(shelf, name)
    refusal, changed = _refusal(recipe, files, bool(request.get("force")), request.get("since") or 0)
    if lock_of(shelf, name + ".lock", cache.problems)[0]:
        refusal = "it is being built"
    if refusal:
        return {"recorded": False, "files": 0, "reason": refusal, "changed": changed[:40]}
    environ = {**(request.get("environ") or {}), **os.environ}
    text = json.dumps(record_of(recipe, files, environ, time.time()))
    with opened(name, shelf.fd) as fd:
        if library_of(name, fd) != recipe.library:
            return {"recorded": False, "files": 0, "reason": "it was built again meanwhile", "changed": []}
    write_record(cache, shelf, name, text)
    return {"recorded": True, "files": len(recipe.inputs), "reason": "", "changed": []}


def _refusal(recipe: Recipe, files: Files, force: bool, since: int) -> tuple[str, list[str]]:
    """Why the record would be worth nothing: it must show what the library was made of, not what came later.

    ``since``: when a compilation that we started began, in ns; 0: it isn't known.
    """
    if recipe.library is None:
        return "it has no library yet", []
    if not recipe.inputs or not recipe.recorded:
        return recipe.problem or "ninja's record of what it was compiled from is missing", []
    if force:
        return "", []
    # What changed while the compiler ran may have been read before or after.
    limit = min(since, recipe.library[1]) if since else recipe.library[1]
    changed = []
    for path in recipe.inputs:
        stamp = files.stamp(path)
        made_here = "/generated/" in path and path.startswith(recipe.shelf.root)
        if stamp is None or (stamp[3] >= (recipe.library[1] if made_here else limit)):
            changed.append(path)
    return ("files changed after it was compiled" if changed else ""), changed


# Operation ``list``: every module with what it takes, how old it is, its state and the evidence for that.


def run_list(request: Dict[str, Any]) -> Dict[str, Any]:
    """List the modules that the request's patterns, version and archs choose (none: all).

    ``thorough``: read every byte that they were compiled from, and name the files that speak against them.
    """
    root, thorough = root_of(request), bool(request.get("thorough"))
    answer: Dict[str, Any] = {"root": root, "exists": True, "modules": [], "building": [], "package": {},
                              "leftovers": {"count": 0, "bytes": 0}, "problems": []}  # fmt: skip
    if not request.get("patterns") and not os.path.exists(root):
        return {**answer, "exists": False}
    cache, patterns = asked(request)
    try:
        package = package_of(request)
        judge = Judge(cache, request, package, thorough=thorough)
        modules: list[Dict[str, Any]] = []
        building: list[Dict[str, Any]] = []
        for choice in choose(cache, patterns, not patterns):
            shelf, entries = choice.shelf, choice.entries
            left = len(modules) + len(entries) - LISTED
            if left > 0:
                note(cache.problems, shelf.shown + ": " + str(left) + " more modules; name those that you want")
            for entry in entries[: LISTED - len(modules)]:
                module = describe(shelf, entry, cache.problems)
                if module is not None:
                    judge.judge(shelf, module)
                    for reason in () if thorough else module.reasons:  # thousands of modules have a million files
                        reason.files, reason.more = [], reason.more + len(reason.files)
                    modules.append(asdict(module))
            locked, lock = lock_of(shelf, BATCH, cache.problems)
            if locked:
                building.append({"version": shelf.version, "arch": shelf.arch, "locked": locked, "lock": lock})
        held = [one for one in modules + building if one["locked"]]
        known = holders(sorted({tuple(one["lock"]) for one in held}))
        for one in held:
            one["holders"] = known[tuple(one["lock"])]
        answer.update(modules=modules, building=building, leftovers=leftovers(cache.fd), problems=cache.problems,
                      package={"root": package.root, "version": package.version})  # fmt: skip
        return answer
    finally:
        cache.close()
