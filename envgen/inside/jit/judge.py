"""What state a module is in, and the evidence for it.

``building`` its lock is held · ``partial`` no library yet · ``masked`` a prebuilt library wins · ``foreign`` of another
version or arch than this environment uses · ``stale`` compiled from something else than there is now · ``debug``
compiled without optimisation · ``fresh`` ·
``unknown`` nothing tells. Without a recorded baseline stale and fresh are guesses: a file that changed after the
library was linked may have other bytes, or the same again. Times of change (ctime) can't be set to the past, as
mtimes can.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict

from envgen.inside.jit import baseline
from envgen.inside.jit.arch import runs
from envgen.inside.jit.bytesof import Files
from envgen.inside.jit.layout import Cache, Shelf
from envgen.inside.jit.module import Module
from envgen.inside.jit.package import Package
from envgen.inside.jit.recipe import Reader, Recipe

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
        record = baseline.read(self.cache, recipe.shelf, recipe.name)
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
        for name in baseline.ENV_FLAGS:
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
        for name in baseline.ENV_FLAGS:
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
