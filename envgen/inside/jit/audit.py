"""Operation ``audit``: which GPU code is in the cache's libraries, in those of installed packages, and what Triton's
own assembler knows."""

from __future__ import annotations

import glob
import os

from envgen.inside.jit.choose import survey
from envgen.inside.jit.fatbin import Damaged, archs_of
from envgen.inside.jit.layout import open_cache, root_of
from envgen.inside.jit.package import package_of
from envgen.inside.jit.tree import reason


def run(request: dict[str, object]) -> dict[str, object]:
    """Every library with the archs in it."""
    package = package_of(request)
    libraries: list[dict[str, object]] = []
    root = root_of(request)
    cache = open_cache(root, "", None)
    if cache is not None:
        try:
            for shelf, entries in survey(cache):
                for entry in entries:
                    path = cache.root + "/" + shelf.shown + "/" + entry.name + "/" + entry.name + ".so"
                    if entry.kind == "folder" and os.path.isfile(path):
                        libraries.append(_library(path, "cache", entry.name, shelf.version, shelf.arch))
        finally:
            cache.close()
    for name, folder in package.beside.items():
        for path in _files(folder):
            libraries.append(_library(path, name, os.path.relpath(path, folder), "", ""))
    # Of a package only what holds GPU code matters.
    kept = [entry for entry in libraries if entry["owner"] == "cache" or entry["archs"] or entry["problem"]]
    return {
        "root": root,
        "libraries": kept,
        "version": package.version,
        "assemblers": _assemblers(package.beside, request),
    }


def _files(folder: str) -> list[str]:
    found = []
    for path, folders, files in os.walk(folder):
        folders.sort()
        found += [path + "/" + name for name in sorted(files) if ".so" in name]
    return found


def _library(path: str, owner: str, name: str, version: str, arch: str) -> dict[str, object]:
    found: dict[str, object] = {"path": path, "owner": owner, "name": name, "version": version, "arch": arch,
                                "archs": [], "problem": ""}  # fmt: skip
    try:
        archs = archs_of(path)
        found["archs"] = archs or []
        if archs is None and owner == "cache":
            found["problem"] = "is not an ELF file"
    except Damaged as error:
        found["problem"] = str(error)
    except OSError as error:
        found["problem"] = reason(error)
    return found


def _assemblers(folders: dict[str, str], request: dict[str, object]) -> list[dict[str, object]]:
    """Triton's ptxas: does its text know the name of each wanted arch."""
    found: list[dict[str, object]] = []
    for path in sorted(glob.glob(glob.escape(folders.get("triton", "")) + "/backends/nvidia/bin/ptxas*")):
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            continue
        missing = [name for name in request.get("names") or () if name.encode() not in data]  # type: ignore[attr-defined]
        found.append({"path": path, "missing": missing})
    return found
