"""What ninja knows of a module: build.ninja, the record of what its objects were compiled from, and both together."""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from envgen.inside.jit.layout import Shelf
from envgen.inside.jit.tree import GONE, digest_of_text, opened, read_file, reason

_NAME = re.compile(r"[\w.-]+", re.ASCII)
_TOKEN = re.compile(
    r"(?P<space>[ \t]+)|(?P<mark>:|\|[|@]?)|\$(?P<escaped>[ :$])|\$\{(?P<braced>[\w.-]+)\}|\$(?P<named>[\w-]+)"
    r"|(?P<text>[^ \t:|$]+)",
    re.ASCII,
)


@dataclass
class Edge:
    """One ``build`` line."""

    outputs: List[str]
    rule: str
    inputs: List[str]


def logical_lines(text: str) -> list[str]:
    """The lines with ``$`` + newline joined. ``$$`` is consumed first, so ``$$`` before a newline joins nothing."""
    lines: list[str] = []
    held = ""
    for line in text.split("\n"):
        if line.endswith("\r"):
            line = line[:-1]
        if held:
            line = held + line.lstrip(" \t")
            held = ""
        dollars = len(line) - len(line.rstrip("$"))
        if dollars % 2:
            held = line[:-1]
            # What is joined may be empty so far, but it is still a continuation.
            held = held or " "
        else:
            lines.append(line)
    return [*lines, held] if held else lines


def words(text: str, variables: dict[str, str]) -> list[tuple[str, bool]]:
    """Split into paths and marks: ``(text, is_mark)``. A variable's value stays part of its word, spaces and all."""
    found: list[tuple[str, bool]] = []
    word: list[str] | None = None
    for kind, value in _tokens(text, variables):
        if kind == "text":
            word = [*word, value] if word is not None else [value]
            continue
        if word is not None:
            found.append(("".join(word), False))
            word = None
        if kind == "mark":
            found.append((value, True))
    if word is not None:
        found.append(("".join(word), False))
    return found


def expand(text: str, variables: dict[str, str]) -> str:
    """The value of a binding: escapes and variables resolved, spaces kept."""
    try:
        return "".join(value for _, value in _tokens(text, variables))
    except ValueError:
        return text


def _tokens(text: str, variables: dict[str, str]) -> list[tuple[str, str]]:
    """``(kind, value)``: text, space or mark (``:``, ``|``, ``||``, ``|@``). ValueError: a ``$`` that means nothing."""
    found = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError("a lone $")
        kind = str(match.lastgroup)
        value = variables.get(match[kind], "") if kind in ("braced", "named") else match[kind]
        found.append((kind if kind in ("space", "mark") else "text", value))
        position = match.end()
    return found


def parse(text: str, variables: dict[str, str] | None = None) -> tuple[list[Edge], bool]:
    """All build lines, and whether every line could be understood; the file's variables are put into ``variables``.

    A damaged line is skipped, never fatal.
    """
    variables = {} if variables is None else variables
    edges: list[Edge] = []
    whole = True
    for line in logical_lines(text):
        if not line.strip() or line[0] in " \t#":
            continue  # indented lines bind variables of one rule or edge: commands and flags, not paths
        if line.startswith("build "):
            edge = _edge(line[6:], variables)
            edges += [edge] if edge is not None else []
            whole = whole and edge is not None
            continue
        if line.startswith(("rule ", "default ", "pool ", "subninja ", "include ")):
            continue
        name, equals, value = line.partition("=")
        name = name.rstrip(" \t")
        if equals and name and _NAME.fullmatch(name):
            variables[name] = expand(value.lstrip(" \t"), variables)
        else:
            whole = False
    return edges, whole


def _edge(text: str, variables: dict[str, str]) -> Edge | None:
    try:
        found = words(text, variables)
        colon = found.index((":", True))
    except ValueError:
        return None
    outputs = [word for word, is_mark in found[:colon] if not is_mark]
    rest = [word for word, is_mark in found[colon + 1 :] if not is_mark]
    if not outputs or not rest:
        return None
    return Edge(outputs, rest[0], rest[1:])


def quote(path: str) -> str:
    """A path as a build line spells it."""
    return path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


# ninja's own record of what each object was compiled from: ``.ninja_deps``, versions 3 and 4. Read, never written.
#
# A ninja of another version than the container's would delete or misread the log beside it, even when told to change
# nothing; so no ninja is asked. The record is a header and then a list of records, each led by its length. A path
# record gives the next number a name; one whose length has the top bit set says what an output depends on, in such
# numbers. A later entry for the same output replaces the earlier.

MAGIC = b"# ninjadeps\n"
LONGEST = (1 << 19) - 1  # ninja refuses longer records
_TOP = 1 << 31


@dataclass
class Deps:
    """What is in one file. ``whole`` is False where it ends in mid-record or holds what ninja never writes."""

    version: int = 0
    inputs: Dict[str, List[str]] = field(default_factory=dict)  # output -> all that it was compiled from
    whole: bool = False


def parse_deps(data: bytes) -> Deps:
    """Read all that can be understood. Never raises, whatever the bytes."""
    found = Deps()
    start = len(MAGIC) + 4
    if not data.startswith(MAGIC) or len(data) < start:
        return found
    found.version = struct.unpack_from("<I", data, len(MAGIC))[0]
    if found.version not in (3, 4):
        return found
    head = 8 if found.version == 3 else 12  # the output's number, and its time in 4 or 8 bytes
    paths: list[bytes] = []
    records: dict[int, bytes] = {}
    position = start
    end = len(data)
    while position < end:
        if position + 4 > end:
            break
        size = struct.unpack_from("<I", data, position)[0]
        is_deps = size >= _TOP
        size &= _TOP - 1
        position += 4
        if size > LONGEST or size % 4 or position + size > end:
            break
        record = data[position : position + size]
        position += size
        if is_deps:
            if size < head or not _known(record, head, len(paths)):
                break
            records[struct.unpack_from("<I", record)[0]] = record[head:]
        else:
            # The checksum is the number's complement: a record out of its place shows.
            if size < 8 or struct.unpack_from("<I", record, size - 4)[0] != (~len(paths) & 0xFFFFFFFF):
                break
            name = record[:-4]
            paths.append(name[:-3] + name[-3:].rstrip(b"\0"))
    else:
        found.whole = True
    names = [path.decode("utf-8", "surrogateescape") for path in paths]
    for output, numbers in records.items():
        found.inputs[names[output]] = [names[number] for number in struct.unpack("<%dI" % (len(numbers) // 4), numbers)]
    return found


def _known(record: bytes, head: int, count: int) -> bool:
    """Are all numbers in it of paths that were named before?"""
    if not count:
        return False
    inputs = struct.unpack_from("<%dI" % ((len(record) - head) // 4), record, head)
    output: int = struct.unpack_from("<I", record)[0]
    return output < count and all(number < count for number in inputs)


# How a module was compiled: what build.ninja says, and every file that .ninja_deps names for its objects.

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
        return parse_deps(read_file(".ninja_deps", fd))
    except OSError as error:
        return None if error.errno in GONE else Deps()
