"""ninja's files of a module: build.ninja, and .ninja_deps with the inputs of its objects."""

from __future__ import annotations

import os
import re
import stat
import struct
from dataclasses import dataclass, field

from envgen.inside.jit.layout import Shelf
from envgen.inside.jit.tree import GONE, digest_of_text, opened, read_file, reason

# build.ninja, read as ninja reads it, for paths: variables and build lines. ``$`` joins a line with
# the next one, escapes a character, or names a variable.

_NAME = re.compile(r"[\w.-]+", re.ASCII)
_JOINED = re.compile(r"(?<!\$)((?:\$\$)*)\$\r?\n[ \t]*")
_DOLLAR = re.compile(r"\$(?:([ :$])|\{([\w.-]+)\}|([\w-]+))", re.ASCII)
_WORD = re.compile(r"(?:\$[ :$]|\$\{[\w.-]+\}|\$[\w-]+|[^ \t:|$])+|:|\|[|@]?|[ \t]+", re.ASCII)
MARKS = (":", "|", "||", "|@")


@dataclass
class Edge:
    """One ``build`` line."""

    outputs: list[str]
    inputs: list[str]


def expand(text: str, variables: dict[str, str]) -> str:
    """Escapes and variables resolved; a ``$`` that means nothing stays."""
    return _DOLLAR.sub(lambda match: match[1] or variables.get(match[2] or match[3], ""), text)


def parse(text: str, variables: dict[str, str] | None = None) -> tuple[list[Edge], bool]:
    """All build lines, and whether every line was understood (a damaged one is skipped). Fills
    ``variables`` with the file's variables.
    """
    variables = {} if variables is None else variables
    edges = []
    whole = True
    for line in _JOINED.sub(r"\1", text).split("\n"):
        line = line[:-1] if line.endswith("\r") else line
        if not line.strip() or line[0] in " \t#":
            # indented lines bind variables of one rule or edge: commands and flags, not paths
            continue
        if line.startswith(("rule ", "default ", "pool ", "subninja ", "include ")):
            continue
        name, equals, value = line.partition("=")
        name = name.rstrip(" \t")
        if line.startswith("build "):
            edge = _edge(line[6:], variables)
            edges += [edge] if edge is not None else []
            whole = whole and edge is not None
        elif equals and _NAME.fullmatch(name):
            variables[name] = expand(value.lstrip(" \t"), variables)
        else:
            whole = False
    return edges, whole


def _edge(text: str, variables: dict[str, str]) -> Edge | None:
    words = [found.group() for found in _WORD.finditer(text)]
    if "".join(words) != text or ":" not in words:  # a lone ``$``
        return None
    colon = words.index(":")
    before, after = (
        [expand(word, variables) for word in part if word not in MARKS and word.strip(" \t")]
        for part in (words[:colon], words[colon + 1 :])
    )
    return (
        Edge(before, after[1:]) if before and after else None
    )  # after the colon: the rule, and its inputs


# ninja's record of each object's inputs: ``.ninja_deps``, versions 3 and 4. Only read.
#
# ninja itself is not run: another version than the container's would delete or misread the log
# beside it, even in a dry run. The file is a header and a list of records, each after its length. A
# path record gives a name to the next number; a record whose length has the top bit set has the
# inputs of an output, as such numbers. A later record for the same output replaces the earlier one.

MAGIC = b"# ninjadeps\n"
LONGEST = (1 << 19) - 1  # ninja refuses longer records
_TOP = 1 << 31


@dataclass
class Deps:
    """The content of one file. ``whole``: False where it is cut off or has something that ninja
    never writes.
    """

    version: int = 0
    inputs: dict[str, list[str]] = field(default_factory=dict)  # output -> its inputs
    whole: bool = False


def parse_deps(data: bytes) -> Deps:
    """Parse as much as possible. Never raises."""
    deps = Deps()
    position = len(MAGIC) + 4
    end = len(data)
    if not data.startswith(MAGIC) or end < position:
        return deps
    deps.version = struct.unpack_from("<I", data, len(MAGIC))[0]
    if deps.version not in (3, 4):
        return deps
    head = 8 if deps.version == 3 else 12  # the output's number, and its time in 4 or 8 bytes
    paths: list[str] = []
    while position + 4 <= end:
        size = struct.unpack_from("<I", data, position)[0]
        is_deps = size >= _TOP
        size = size & (_TOP - 1)
        record = data[position + 4 : position + 4 + size]
        if size > LONGEST or size % 4 or len(record) < size:
            break
        numbers = struct.unpack(f"<{size // 4}I", record)
        if is_deps:
            inputs = numbers[head // 4 :]
            if size < head or max(numbers[0], *inputs, 0) >= len(paths):  # of unknown paths
                break
            deps.inputs[paths[numbers[0]]] = [paths[number] for number in inputs]
        else:
            # The checksum is the complement of the path's number.
            if size < 8 or numbers[-1] != (~len(paths) & 0xFFFFFFFF):
                break
            path = record[:-7] + record[-7:-4].rstrip(b"\0")
            paths.append(path.decode("utf-8", "surrogateescape"))
        position += 4 + size
    deps.whole = position == end
    return deps


# How a module was compiled: build.ninja, and the inputs of its objects in .ninja_deps.

# The variables of build.ninja that determine the output, besides the sources.
FLAGS = (
    "cxx",
    "nvcc",
    "common_cflags",
    "cflags",
    "post_cflags",
    "cuda_cflags",
    "cuda_post_cflags",
    "ldflags",
)


@dataclass
class NinjaRecipe:
    """How one module was compiled, by the files in its folder."""

    shelf: Shelf
    name: str
    machine: str = ""  # of its .so, as `uname -m` prints it
    broken: str = ""  # why its .so can't be loaded
    linked: int = 0  # when its .so was written, in ns
    # size and mtime in ns of the .so, which identify the build
    library: tuple[int, int] | None = None
    ninja: str = ""  # digest of build.ninja; "" without one
    variables: dict[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    recorded: bool = False  # every object is in .ninja_deps
    problem: str = ""

    @property
    def cuda_home(self) -> str:
        return self.variables.get("cuda_home", "")

    @property
    def flags(self) -> dict[str, str]:
        return {name: self.variables[name] for name in FLAGS if name in self.variables}

    def package_root(self) -> str:
        """The FlashInfer package whose headers it was compiled with; empty when unknown."""
        for word in self.words("common_cflags"):
            for tail in ("/data/include", "/data/csrc"):
                if word.endswith(tail):
                    return (word[2:] if word.startswith("-I") else word)[: -len(tail)]
        return next(
            (
                source.partition("/data/csrc/")[0]
                for source in self.sources
                if "/data/csrc/" in source
            ),
            "",
        )

    def words(self, *names: str) -> list[str]:
        """The flags in these variables of build.ninja."""
        return [word for name in names for word in self.variables.get(name, "").split()]

    def is_debug(self) -> bool:
        """Whether it was compiled for a debugger, without optimisation (FLASHINFER_JIT_DEBUG or
        _VERBOSE).
        """
        words = self.words("cuda_cflags", "cuda_post_cflags")
        return "-G" in words or "--device-debug" in words

    def archs(self) -> list[str]:
        """The GPU archs it was compiled for, as in sm_121a, without the sm_."""
        codes = (
            word.partition("code=sm_")[2]
            for word in self.words("cuda_cflags")
            if "code=sm_" in word
        )
        return list(dict.fromkeys(codes))


class RecipeReader:
    """Reads recipes. The .ninja_deps that all modules of a shelf share up to 0.6.0 is read once."""

    def __init__(self) -> None:
        self._shared: dict[int, Deps] = {}

    def read(self, shelf: Shelf, name: str) -> NinjaRecipe:
        """The recipe of a module; ``problem`` has the reason for a damaged or missing part."""
        recipe = NinjaRecipe(shelf, name)
        try:
            with opened(name, shelf.fd) as fd:
                recipe.library, recipe.linked = library_of(name, fd)
                recipe.machine, recipe.broken = header_of(name, fd)
                self._read(recipe, fd)
        except OSError as error:
            if error.errno not in GONE:
                recipe.problem = f"build.ninja: {reason(error)}"
        return recipe

    def _read(self, recipe: NinjaRecipe, fd: int) -> None:
        data = read_file("build.ninja", fd)
        recipe.ninja = digest_of_text(data)
        edges, whole = parse(os.fsdecode(data), recipe.variables)
        shelf = recipe.shelf
        folder = recipe.shelf.path
        deps = _deps(fd)
        if deps is not None:
            folder += f"/{recipe.name}"
        elif shelf.fd not in self._shared:
            self._shared[shelf.fd] = _deps(shelf.fd) or Deps(whole=True)
        deps = deps or self._shared[shelf.fd]
        if not whole:
            recipe.problem = "build.ninja is damaged"
        elif not deps.whole:
            recipe.problem = ".ninja_deps is cut off or damaged"
        objects = [edge for edge in edges if any(output.endswith(".o") for output in edge.outputs)]
        recipe.recorded = bool(objects)
        recipe.sources = []
        paths: dict[str, None] = {}
        for edge in objects:
            named: list[str] = []
            for output in edge.outputs:
                named += deps.inputs.get(output, ())
            if not named:
                recipe.recorded = False
            sources = [os.path.join(folder, path) for path in edge.inputs]
            recipe.sources += sources
            for path in sources + [os.path.join(folder, path) for path in named]:
                paths[path] = None
        recipe.inputs = list(paths)


def library_of(name: str, fd: int) -> tuple[tuple[int, int] | None, int]:
    """Size and time of the module's library (None without one), and when it was written, in ns: not
    later than the file system got it, whatever time it was given.
    """
    try:
        status = os.stat(f"{name}.so", dir_fd=fd, follow_symlinks=False)
    except OSError:
        return None, 0
    return (status.st_size, status.st_mtime_ns), min(status.st_mtime_ns, status.st_ctime_ns)


_MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of an ELF header


def header_of(name: str, fd: int) -> tuple[str, str]:
    """(machine of the module's library, as `uname -m` prints it; why it can't be loaded); "" where
    that is unknown.

    A kill or a full disk leaves a library that is empty or cut short.
    """
    try:
        file = os.open(
            f"{name}.so", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd
        )
    except OSError as error:
        return "", "" if error.errno in GONE else f"can't be opened: {reason(error)}"
    try:
        status = os.fstat(file)
        head = b""
        if stat.S_ISREG(status.st_mode):
            head = os.read(file, 64)
    except OSError as error:
        return "", f"can't be read: {reason(error)}"
    finally:
        os.close(file)
    if not stat.S_ISREG(status.st_mode):
        return "", "is no file"
    if len(head) < 64:
        return "", f"is cut short: {len(head)} bytes"
    kind, machine = (int.from_bytes(head[at : at + 2], "little") for at in (16, 18))
    if not head.startswith(b"\x7fELF") or kind != 3:  # ET_DYN
        return "", "is no shared library"
    sections, size, count = (
        int.from_bytes(head[at:to], "little") for at, to in ((40, 48), (58, 60), (60, 62))
    )
    if sections + size * count > status.st_size:  # the linker writes them last
        return "", f"is cut short: {status.st_size} bytes of {sections + size * count}"
    return _MACHINES.get(machine, ""), ""


def _deps(fd: int) -> Deps | None:
    """The .ninja_deps of this folder; None without one."""
    try:
        return parse_deps(read_file(".ninja_deps", fd))
    except OSError as error:
        return None if error.errno in GONE else Deps()
