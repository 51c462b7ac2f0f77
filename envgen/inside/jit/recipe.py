"""How a module was compiled: what build.ninja says, and every file that .ninja_deps names for its objects."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from envgen.inside.jit import deps as record
from envgen.inside.jit.bytesof import digest_of_text
from envgen.inside.jit.deps import Deps
from envgen.inside.jit.layout import Shelf
from envgen.inside.jit.ninja import Edge, parse
from envgen.inside.jit.tree import GONE, opened, read_file, reason

# The lines of build.ninja that decide what comes out, besides the sources.
FLAGS = ("cxx", "nvcc", "common_cflags", "cflags", "post_cflags", "cuda_cflags", "cuda_post_cflags", "ldflags")


@dataclass
class Recipe:
    """What one module folder says about its own compilation."""

    shelf: Shelf
    name: str
    library: Optional[Tuple[int, int]] = None  # size and mtime in ns of the .so: which build this is
    ninja: str = ""  # digest of build.ninja; empty: there is none
    variables: Dict[str, str] = field(default_factory=dict)
    inputs: List[str] = field(default_factory=list)
    sources: List[str] = field(default_factory=list)
    recorded: bool = False  # is every object's compilation in .ninja_deps
    problem: str = ""

    @property
    def cuda_home(self) -> str:
        return self.variables.get("cuda_home", "")

    @property
    def flags(self) -> dict[str, str]:
        return {name: self.variables[name] for name in FLAGS if name in self.variables}

    def package_root(self) -> str:
        """The FlashInfer package whose headers it was compiled with; empty when nothing tells."""
        for word in self.words("common_cflags"):
            for tail in ("/data/include", "/data/csrc"):
                if word.endswith(tail):
                    return (word[2:] if word.startswith("-I") else word)[: -len(tail)]
        for source in self.sources:
            head, found, _ = source.partition("/data/csrc/")
            if found:
                return head
        return ""

    def words(self, *names: str) -> list[str]:
        """The flags in these variables of build.ninja."""
        return [word for name in names for word in self.variables.get(name, "").split()]

    def is_debug(self) -> bool:
        """Compiled for a debugger, without optimisation: FLASHINFER_JIT_DEBUG, or FLASHINFER_JIT_VERBOSE alone."""
        words = self.words("cuda_cflags", "cuda_post_cflags")
        return "-G" in words or "--device-debug" in words

    def archs(self) -> list[str]:
        """The GPU archs it was compiled for, as in sm_121a, without the sm_."""
        found = []
        for word in self.words("cuda_cflags"):
            _, mark, code = word.partition("code=sm_")
            if mark and code not in found:
                found.append(code)
        return found


class Reader:
    """Reads recipes. The record that all modules of a shelf share up to 0.6.0 is read once."""

    def __init__(self) -> None:
        self._shared: dict[int, Deps] = {}

    def read(self, shelf: Shelf, name: str) -> Recipe:
        """Never raises for what is damaged or missing: ``problem`` says it."""
        recipe = Recipe(shelf, name)
        try:
            with opened(name, shelf.fd) as fd:
                recipe.library = library_of(name, fd)
                self._read(recipe, fd)
        except OSError as error:
            if error.errno not in GONE:
                recipe.problem = "build.ninja: " + reason(error)
        return recipe

    def _read(self, recipe: Recipe, fd: int) -> None:
        data = read_file("build.ninja", fd)
        recipe.ninja = digest_of_text(data)
        edges, whole = parse(os.fsdecode(data), recipe.variables)
        if not whole:
            recipe.problem = "build.ninja is damaged"
        own = _deps(fd)
        deps = own if own is not None else self._of_shelf(recipe.shelf)
        if not deps.whole and (own is not None or deps.version):
            recipe.problem = recipe.problem or ".ninja_deps is cut off or damaged"
        folder = recipe.shelf.root + "/" + recipe.shelf.shown + ("/" + recipe.name if own is not None else "")
        self._collect(recipe, edges, deps, folder)

    def _of_shelf(self, shelf: Shelf) -> Deps:
        if shelf.fd not in self._shared:
            self._shared[shelf.fd] = _deps(shelf.fd) or Deps()
        return self._shared[shelf.fd]

    def _collect(self, recipe: Recipe, edges: list[Edge], deps: Deps, folder: str) -> None:
        seen: dict[str, None] = {}
        objects = [edge for edge in edges if any(output.endswith(".o") for output in edge.outputs)]
        recipe.recorded = bool(objects)
        for edge in objects:
            named = [path for output in edge.outputs for path in deps.inputs.get(output, ())]
            recipe.recorded = recipe.recorded and bool(named)
            for path in edge.inputs:
                recipe.sources.append(path if path.startswith("/") else folder + "/" + path)
            for path in edge.inputs + named:
                seen[path if path.startswith("/") else folder + "/" + path] = None
        recipe.inputs = list(seen)


def library_of(name: str, fd: int) -> tuple[int, int] | None:
    """Size and time of the module's library; None where there is none yet."""
    try:
        status = os.stat(name + ".so", dir_fd=fd, follow_symlinks=False)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _deps(fd: int) -> Deps | None:
    """The record in this folder; None where there is none."""
    try:
        return record.parse(read_file(".ninja_deps", fd))
    except OSError as error:
        return None if error.errno in GONE else Deps()
