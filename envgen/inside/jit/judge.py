"""Finds the state of a module (docs/jit-cache.md lists them), and the evidence.

Without a recorded baseline stale and fresh are guesses: a file that changed after the library was
linked may have the same bytes again. Unlike mtimes, ctimes can't be set to the past.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from functools import cached_property, lru_cache
from typing import Any, Callable

from envgen.inside.common import PATCHES, Doc, driver_of, number_in, read_bytes
from envgen.inside.jit import tree
from envgen.inside.jit.generators import generators, texts_of
from envgen.inside.jit.layout import OURS, Shelf, Shelves, asked, choose, root_of
from envgen.inside.jit.libraries import (
    InstalledPackage,
    backend_for,
    backends,
    package_of,
    runs,
)
from envgen.inside.jit.locks import (
    BATCH,
    Held,
    acquire_inside,
    enter,
    own_as,
)
from envgen.inside.jit.ninja import NinjaRecipe, RecipeReader, library_of
from envgen.inside.jit.shapes import (
    NAMED,
    BaselineRecord,
    ImportedPackage,
    Inventory,
    Module,
    RecordedBaseline,
)


def describe(shelf: Shelf, name: str, kind: str, problems: list[str]) -> Module | None:
    """The module ``name``; None where it no longer exists."""
    module = Module(shelf.version, shelf.arch, name)
    if kind == "link":
        return module
    module.kind = "other"
    shown = f"{shelf.shown}/{name}"
    try:
        with tree.opened(name, shelf.fd) as fd:
            total = tree.measure(fd, tree.Measure())
            names = os.listdir(fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        tree.note_unless_gone(problems, shown, error)
        module.unread = 1
        return module
    for text in total.unread:
        tree.note(problems, f"{shown}/{text}")
    if "build.ninja" in names:
        module.kind = "ninja"
    elif "meta.json" in names or name.endswith("_cute_dsl"):
        module.kind = "cute_dsl"
    module.bytes = total.bytes
    module.files = total.files
    module.objects = total.objects
    module.unread = len(total.unread)
    linked = [when for library, _, when in total.libraries if library == f"{name}.so"]
    module.built = bool(linked)
    module.modified = linked[0] if linked else total.newest
    module.locked = is_held(shelf, f"{name}.lock", problems)
    return module


def is_held(shelf: Shelf, name: str, problems: list[str]) -> bool | None:
    """Whether this lock of the shelf is held; None: unknown."""
    try:
        acquire_inside(f"tmp/{name}", shelf.fd, f"{shelf.shown}/tmp/{name}", dry=True)
    except Held:
        return True
    except tree.Fault as fault:
        tree.note(problems, fault.message)
        return None
    return False


# Baselines, the digests of a module's files:
# ``<root>/.envgen/baseline/<version>/<arch>/<module>.json``
#
# Outside of FlashInfer's folders, which its own clear-cache removes. A record is valid for one
# library.

FORMAT = 1
RECORDS = (OURS, "baseline")
# Flags that FlashInfer appends from the environment of the compiling process.
ENV_FLAGS = ("FLASHINFER_EXTRA_CFLAGS", "FLASHINFER_EXTRA_CUDAFLAGS", "FLASHINFER_EXTRA_LDFLAGS")
_SHAPE = {"library": list, "files": dict, "flags": dict, "env": dict, "ninja": str}


def _folder(cache: Shelves, shelf: Shelf, step: Callable[[int, str], int]) -> Any:
    """The open folder of this shelf's records, through no link."""
    parts = (*RECORDS, shelf.version, shelf.arch or "none")
    return tree.below(cache.fd, parts, step)


def read_record(cache: Shelves, shelf: Shelf, name: str) -> Doc | None:
    """The record of this module; None without a readable one."""
    try:
        with _folder(cache, shelf, tree.open_folder) as fd:
            record = json.loads(tree.read_file(f"{name}.json", fd))
    except (OSError, ValueError, RecursionError):
        return None
    # It may have been edited: check all types here.
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return None
    for key, kind in _SHAPE.items():
        if not isinstance(record.get(key), kind):
            return None
    for entry in record["files"].values():
        if not isinstance(entry, list) or len(entry) != 5:
            return None
    return record


def record_of(
    recipe: NinjaRecipe, files: tree.FileFacts, environ: dict[str, str], made_by: dict[str, str]
) -> dict[str, object]:
    """A record of the module's current files. ``made_by``: the digests of FlashInfer's generators."""
    known = {}
    for path in recipe.inputs:
        stamp = files.stamp(path) or (0, 0, 0, 0)
        known[path] = [files.digest(path), *stamp]
    return {
        "format": FORMAT,
        "library": list(recipe.library or ()),
        "ninja": recipe.ninja,
        "flags": recipe.flags,
        "files": known,
        "generators": made_by,
        "env": {name: environ[name] for name in ENV_FLAGS if environ.get(name)},
    }


def write_record(cache: Shelves, shelf: Shelf, name: str, text: str) -> None:
    """Write the record, atomically."""
    temporary = f".new-{os.urandom(8).hex()}"
    refused = f"{'/'.join(RECORDS)} can't be written"
    with tree.refusing(refused), _folder(cache, shelf, enter) as fd:
        new = os.open(temporary, tree.NEW, 0o644, dir_fd=fd)
        with os.fdopen(new, "w", encoding="ascii") as file:
            file.write(text)
            own_as(file.fileno(), fd)
        final = f"{name}.json"
        os.rename(temporary, final, src_dir_fd=fd, dst_dir_fd=fd)


# A module of CuTe DSL has no list of files: FlashInfer compares what it is made of itself, in its
# meta.json. The record has the driver with which it was compiled.

META = "meta.json"
DRIVER = "driver"


def _made(shelf: Shelf, name: str) -> list[int]:
    """When a module of CuTe DSL was begun: the time of its meta.json; [] without one."""
    try:
        with tree.opened(name, shelf.fd) as fd:
            return [os.stat(META, dir_fd=fd, follow_symlinks=False).st_mtime_ns]
    except OSError:
        return []


def _note_driver(cache: Shelves, shelf: Shelf, name: str) -> str:
    """Record the driver of a module of CuTe DSL, once; returns the reason for none."""
    driver = driver_of()
    made = _made(shelf, name)
    booted = number_in("/proc/stat", "btime")
    record = read_record(cache, shelf, name)
    if record is not None and record["library"] == made:
        return ""
    if not driver or not made or not booted:
        return "its driver is not known"
    if made[0] < booted * 10**9:
        return "it is older than this start of the machine"
    record = {"format": FORMAT, "library": made, "files": {}, "flags": {}, "ninja": ""}
    record["env"] = {DRIVER: driver}
    write_record(cache, shelf, name, json.dumps(record))
    return ""


# FlashInfer's own log of what it compiled (0.7.4), a line of JSON each: FLASHINFER_JIT_BUILD_LOG.
BUILDS = "jit-builds.jsonl"

# From this release on FlashInfer writes build.ninja again if it would differ; before, only if it
# was missing.
REWRITES = (0, 6, 11, 1)


def rewrites(version: str) -> bool:
    """Whether this release compiles again when its flags change. Yes for an unknown version."""
    numbers = re.match(r"\d+(\.(post)?\d+)*", version)
    parts = numbers.group().replace("post", "").split(".") if numbers else ()
    return version.startswith("0.0.0") or tuple(map(int, parts)) >= REWRITES


class Judge:
    """Judges the modules of one cache. ``thorough``: read every byte, also where the recorded
    stamps match.
    """

    def __init__(
        self,
        cache: Shelves,
        request: Doc,
        package: InstalledPackage,
        *,
        thorough: bool = False,
    ) -> None:
        self.cache = cache
        self.package = package
        self.thorough = thorough
        self.files = tree.FileFacts()
        self.texts = lru_cache(None)(texts_of)
        self.reader = RecipeReader()
        self.archs: list[str] | None = request.get("expected_archs")
        # A temporary container lacks the mounts of services, so a missing file proves nothing.
        self.blind = bool(request.get("blind"))
        self.environ = {**(request.get("environ") or {}), **os.environ}

    @cached_property
    def patched(self) -> Any:
        """The files that the image's patches changed, as apply-patches recorded it."""
        try:
            return json.loads(read_bytes(PATCHES).decode("utf-8", "replace"))
        except ValueError:
            return {}

    @cached_property
    def builds(self) -> dict[str, list[tuple[float, float]]]:
        """Module -> (when it ended, seconds) of each build in FlashInfer's log, as far as it can be
        read.
        """
        found: dict[str, list[tuple[float, float]]] = {}
        try:
            lines = tree.read_file(BUILDS, self.cache.fd).splitlines()
        except OSError:
            return found
        for line in lines:
            try:
                build = json.loads(line)
                name, _, _ = str(build["name"]).partition("/")
                took = float(build["time"]), float(build["seconds"])
                found.setdefault(name, []).append(took)
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
        return found

    @cached_property
    def generators(self) -> list[str]:
        """The generators of the FlashInfer that Python imports."""
        return generators(self.package.root)

    def judge(self, shelf: Shelf, module: Module) -> None:
        """Find the state of one module, and all reasons for it."""
        is_debug = False
        masking = ""
        foreign = self.foreign(shelf)
        if module.kind == "cute_dsl":
            self._driver(shelf, module)
        # A library that was up to date is logged again, with next to no time.
        builds = self.builds.get(module.name, ())
        ended = [took for when, took in builds if when > module.modified - 2]
        module.seconds = max(ended, default=0.0)
        if module.kind == "ninja":
            archs = shelf.arch.split("_") if shelf.arch else []
            masking = self.package.masking(module.name, archs)
            if self.thorough or not module.locked:
                recipe = self.reader.read(shelf, module.name)
                if recipe.library is not None:
                    self._compare(recipe, recipe.library, module)
                    is_debug = recipe.is_debug()
                here = os.uname().machine
                if recipe.machine not in ("", here) and not foreign:
                    foreign = f"its library is for {recipe.machine}, this is {here}"
        if module.locked:
            module.state = "building"
        elif module.kind == "ninja" and not module.built:
            module.state = "partial"
        elif masking:
            module.state = "masked"
            module.add("masked", f"the prebuilt library {masking} is loaded instead", stale=False)
        elif foreign:
            module.state = "foreign"
            module.add("foreign", foreign, stale=False)
        elif any(reason.stale for reason in module.reasons):
            module.state = "stale"
        elif is_debug:
            module.state = "debug"
        module.guess = module.guess and module.state in ("fresh", "stale")

    def is_made_of(self, shelf: Shelf, name: str, files: list[str]) -> bool:
        """Whether a module was compiled from one of ``files``, the ends of paths; True without
        any.
        """
        ends = tuple(f"/{file}" for file in files)
        if not ends:
            return True
        inputs = self.reader.read(shelf, name).inputs
        return any(path.endswith(ends) for path in inputs)

    def foreign(self, shelf: Shelf) -> str:
        """The reason why this environment will never use these modules; "" where it may."""
        if self.package.version and shelf.version != self.package.version:
            return f"FlashInfer {self.package.version} is imported here, not {shelf.version}"
        if self.archs is not None and shelf.arch not in self.archs:
            archs = " or ".join(self.archs)
            return f"this environment compiles for {archs}, not {shelf.arch or 'any GPU'}"
        return ""

    def _compare(self, recipe: NinjaRecipe, library: tuple[int, int], module: Module) -> None:
        if recipe.problem:
            module.add("damaged record", recipe.problem, stale=False)
        record = read_record(self.cache, recipe.shelf, recipe.name)
        current = record is not None and record["library"] == list(library)
        if record is not None:
            module.baseline = "recorded" if current else "outdated"
        module.state = "fresh"
        if record is not None and current:
            self._against_record(recipe, recipe.linked, record, module)
        elif not recipe.inputs or not recipe.recorded:
            module.state = "unknown"
        else:
            self._guess(recipe, recipe.linked, module)
        if patched := [path for path in recipe.inputs if path in self.patched]:
            names = sorted({name for path in patched for name in self.patched[path]["patches"]})
            module.add(
                "patched",
                f"is compiled with {', '.join(names)} of this image",
                patched,
                stale=False,
            )
        if recipe.broken:
            module.prove("broken library", f"its library {recipe.broken}")
        if recipe.is_debug():
            message = "was compiled for a debugger (-O0, device debug): 10 to 100 times slower; "
            message += "FLASHINFER_JIT_DEBUG asked for it, or FLASHINFER_JIT_VERBOSE where that was not set"
            module.add("debug", message, stale=False)
        if not self.foreign(recipe.shelf):
            self._surroundings(recipe, module)
            self._cuda(recipe, module)
            self._arch(recipe, module)
            self._unrecorded(recipe, recipe.linked, record if current else None, module)

    def _against_record(
        self, recipe: NinjaRecipe, linked: int, record: Doc, module: Module
    ) -> None:
        """Compare bytes with the record. A file with an unchanged stamp (with its ctime) is only
        read if thorough.
        """
        changed = []
        gone = []
        touched = []
        for path, (digest, *stamped) in record["files"].items():
            stamp = self.files.stamp(path)
            if stamp is None:
                gone += [path] if digest else []
                continue
            reads = self.thorough or list(stamp) != stamped
            if reads and self.files.digest(path) != digest:
                changed.append(path)
            elif stamp[2] > linked:
                touched.append(path)
        module.checked = len(record["files"])
        if changed:
            module.add("other bytes", "has other bytes than when it was compiled", changed)
        elif touched:
            message = "was touched since it was compiled; its bytes are the same, but FlashInfer will compile again"
            module.add("touched files", message, touched, stale=False)
        self._missing(gone, module)
        if record["ninja"] != recipe.ninja:
            module.add(
                "other flags",
                "build.ninja is not what it was compiled with",
                _differences(record["flags"], recipe),
            )
        for name in ENV_FLAGS:
            then = record["env"].get(name, "")
            now = self.environ.get(name, "")
            if then and then != now:
                module.add(
                    "other flags",
                    f"{name} was {then!r} and is {repr(now) if now else 'not set'}",
                )

    def _unrecorded(
        self, recipe: NinjaRecipe, linked: int, record: Doc | None, module: Module
    ) -> None:
        """What ninja's record does not have: generators. Only a guess follows."""
        known = module.guess is False and any(reason.stale for reason in module.reasons)
        then = (record or {}).get("generators")
        changed = []
        for path in self.generators:
            if isinstance(then, dict):
                differs = self.files.digest(path) != then.get(path)
            else:
                differs = self._is_newer(path, linked)
            if differs:
                changed.append(path)
        own = [path for path in changed if self.texts(path).have(recipe.name)]
        again = rewrites(recipe.shelf.version)
        if changed:
            concerns = "names" if own else "may concern"
            message = f"changed after it was compiled, and {concerns} it: its flags or its list of sources may differ now"
            if again:
                message += "; FlashInfer then compiles it again"
            else:
                message += ", which FlashInfer does not notice"
            module.add("generator changed", message, own or changed, stale=bool(own) and not again)
        if changed and not known and module.state == "fresh":
            module.guess = True

    def _guess(self, recipe: NinjaRecipe, linked: int, module: Module) -> None:
        newer = [path for path in recipe.inputs if self._is_newer(path, linked)]
        module.guess = True
        module.checked = len(recipe.inputs)
        if newer:
            module.add(
                "files changed",
                "changed after it was compiled; without a baseline its bytes may be the same",
                newer,
            )
        gone = [path for path in recipe.inputs if self.files.stamp(path) is None]
        self._missing(gone, module)

    def _is_newer(self, path: str, linked: int) -> bool:
        """Whether a file that is there changed after the library was linked."""
        stamp = self.files.stamp(path)
        return stamp is not None and stamp[3] >= linked  # a tick of the clock is some milliseconds

    def _driver(self, shelf: Shelf, module: Module) -> None:
        """A driver for which CuTe DSL picks another backend than the one that compiled the module."""
        record = read_record(self.cache, shelf, module.name)
        made = _made(shelf, module.name)
        if record is None or record["library"] != made:
            return
        module.baseline = "recorded"
        then = str(record["env"].get(DRIVER))
        now = driver_of()
        installed = backends()
        before = backend_for(then, installed)
        picked = backend_for(now or then, installed)
        message = f"was compiled with driver {then}"
        if len(installed) > 1 and before != picked:
            message += f" and CuTe DSL's {before}; with driver {now} it picks {picked}"
            module.prove("driver", f"{message}, which FlashInfer does not notice")
        else:
            module.add("driver", message, stale=False)

    def _missing(self, gone: list[str], module: Module) -> None:
        if gone and self.blind:
            module.state = "unknown"
            module.add(
                "unseen",
                "can't be seen from here: start a service of the profile",
                gone,
                stale=False,
            )
        elif gone:
            module.prove("files gone", "is gone since it was compiled", gone)

    def _surroundings(self, recipe: NinjaRecipe, module: Module) -> None:
        """Another package or other flags, which FlashInfer up to 0.6.10 does not notice."""
        root = recipe.package_root()
        imported = self.package.root
        if root and imported and self.files.real(root) != self.files.real(imported):
            module.prove("another package", f"was compiled from {root}; Python imports {imported}")
        words = recipe.words("cuda_cflags", "cflags", "common_cflags", "ldflags")
        for name in ENV_FLAGS:
            wanted = self.environ.get(name, "").split()
            missing = [word for word in wanted if word not in words]
            if missing:
                message = f"{name} asks for {' '.join(missing)}; it was compiled without"
                module.prove("other flags", message)

    def _cuda(self, recipe: NinjaRecipe, module: Module) -> None:
        then = recipe.cuda_home
        now = self.environ.get("CUDA_HOME") or self.environ.get("CUDA_PATH") or ""
        if not then or not now:
            return
        if os.path.realpath(then) != os.path.realpath(now):
            module.prove("CUDA_HOME", f"was compiled with the CUDA in {then}; here it is in {now}")

    def _arch(self, recipe: NinjaRecipe, module: Module) -> None:
        """Code that no GPU of its folder can run, which FlashInfer up to 0.6.10 does not notice.

        Some generators have fixed archs, whatever the list is, and name them: fp4_quantization_121
        is sm_121a in a folder 121f, fused_moe_90 is sm_90a in any. Such a module is right.
        """
        codes = recipe.archs()
        folders = recipe.shelf.arch.split("_")
        if not codes or not recipe.shelf.arch:
            return
        for folder in folders:
            if any(runs(code, folder) for code in codes):
                return
        parts = recipe.name.split("_")
        tokens = {part[2:] if part.startswith("sm") else part for part in parts}
        named = {code for code in codes if code in tokens or code.rstrip("af") in tokens}
        if not named and not rewrites(recipe.shelf.version):
            module.prove(
                "other GPU",
                f"was compiled for {', '.join(codes)}, in a folder for {', '.join(folders)}",
            )


def _differences(flags: Doc, recipe: NinjaRecipe) -> list[str]:
    """Each line of flags that differs, with removed (-) and added (+) words."""
    changed = []
    for name in sorted({*flags, *recipe.flags}):
        then = str(flags.get(name, "")).split()
        now = recipe.flags.get(name, "").split()
        words = [f"-{word}" for word in then if word not in now]
        words += [f"+{word}" for word in now if word not in then]
        if words:
            changed.append(f"{name}: {' '.join(words)}")
    return changed


def run_list(request: Doc) -> Doc:
    """Operation ``list``: the modules that match the request's patterns (none: all), with state and
    evidence. ``thorough``: read all their inputs, and list the files of each reason.
    """
    root = root_of(request)
    thorough = bool(request.get("thorough"))
    patterns = request.get("patterns") or []
    if not patterns and not os.path.exists(root):
        return asdict(Inventory(root, False))
    modules = []
    building = []
    with asked(request) as cache:
        package = package_of()
        judge = Judge(cache, request, package, thorough=thorough)
        for choice in choose(cache, patterns, not patterns):
            shelf = choice.shelf
            for name, kind in choice.entries.items():
                module = describe(shelf, name, kind, cache.problems)
                if module and judge.is_made_of(shelf, name, request.get("files") or []):
                    judge.judge(shelf, module)
                    if not thorough:  # thousands of modules have a million files
                        module.count_files()
                    modules.append(module)
            if is_held(shelf, BATCH, cache.problems):
                building.append(f"{shelf.shown}/tmp/{BATCH}")
    prebuilt = package.prebuilt + _no_use(package, judge.archs)
    imported = ImportedPackage(package.root, package.version, tuple(prebuilt))
    problems = tuple(cache.problems)
    listed = Inventory(root, True, tuple(modules), tuple(building), problems, imported)
    return asdict(listed)


def _no_use(package: InstalledPackage, folders: list[str] | None) -> list[str]:
    """A line where no prebuilt library is for any GPU of this environment."""
    archs = "_".join(folders or ()).split("_")
    for _, codes, _ in package.providers:
        for code in codes:
            if any(runs(code, arch) for arch in archs):
                return []
    if not folders or not package.providers:
        return []
    return [f"FlashInfer compiles all, because none of them is for {', '.join(archs)}"]


def run_baseline(request: Doc) -> Doc:
    """Operation ``baseline``: record the files of the chosen modules. Refuses a module whose files
    changed after it was linked.
    """
    patterns = request.get("patterns") or []
    reader = RecipeReader()
    files = tree.FileFacts()
    records = []
    with asked(request) as cache:
        made_by = {path: files.digest(path) for path in generators(package_of().root)}
        for choice in choose(cache, patterns, not patterns):
            for name, kind in choice.entries.items():
                if kind != "folder":
                    continue
                changed: list[str] = []
                if _made(choice.shelf, name):
                    why = _note_driver(cache, choice.shelf, name)
                else:
                    recipe = reader.read(choice.shelf, name)
                    why, changed = _record(cache, recipe, files, request, made_by)
                records.append(BaselineRecord(name, not why, why, changed[:NAMED]))
    return asdict(RecordedBaseline(tuple(records)))


def _record(
    cache: Shelves,
    recipe: NinjaRecipe,
    files: tree.FileFacts,
    request: Doc,
    made_by: dict[str, str],
) -> tuple[str, list[str]]:
    """Record one module; returns ("", []), or the reason for none and the files that changed."""
    shelf = recipe.shelf
    name = recipe.name
    changed = _changed_since(recipe, files, request)
    if is_held(shelf, f"{name}.lock", cache.problems):
        return "it is being built", changed
    if recipe.library is None:
        return "it has no library yet", []
    if recipe.broken:
        return f"its library {recipe.broken}", []
    if not recipe.inputs or not recipe.recorded:
        return recipe.problem or "ninja's record of what it was compiled from is missing", []
    if changed:
        return "files changed after it was compiled", changed
    environ = {**(request.get("environ") or {}), **os.environ}
    text = json.dumps(record_of(recipe, files, environ, made_by))
    with tree.opened(name, shelf.fd) as fd:
        if library_of(name, fd)[0] != recipe.library:
            return "it was built again just now", []
    write_record(cache, shelf, name, text)
    return "", []


def _changed_since(recipe: NinjaRecipe, files: tree.FileFacts, request: Doc) -> list[str]:
    """Inputs that changed after the library was linked. ``since``: the start of envgen's own
    compilation in ns; 0: unknown.
    """
    if recipe.library is None:
        return []
    linked = recipe.linked
    # The compiler may have read a file that changed meanwhile before or after the change.
    limit = min(request.get("since") or linked, linked)
    changed = []
    for path in recipe.inputs:
        stamp = files.stamp(path)
        made_here = "/generated/" in path and path.startswith(recipe.shelf.root)
        if stamp is None or stamp[3] >= (linked if made_here else limit):
            changed.append(path)
    return changed
