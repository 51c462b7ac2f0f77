"""Runs inside the container: the one file that each source should be imported from, and what else
has a say.

Of a mounted source it is the package in its mount, of any other the file in its distribution's
RECORD.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from typing import Any, Iterator

from envgen.inside.common import PATCHES, Doc, listing, normal, read_bytes, read_text, sha256_of
from envgen.inside.probe.imports import entries

RECORD_LIMIT = 16 << 20  # bytes; vLLM's has 1 MB
FILE_LIMIT = 4 << 20


def metadata_folders(document: Doc) -> Iterator[tuple[str, str, str, str]]:
    """(entry of sys.path, folder, name, version) of every installed distribution; the first of a
    name wins.
    """
    for entry in entries(document):
        for folder in listing(entry):
            stem, _, kind = folder.rpartition(".")
            if kind in ("dist-info", "egg-info"):
                name, _, rest = stem.partition("-")
                version, _, _ = rest.partition("-py3")
                yield entry, folder, normal(name), version


def home_of(package: Doc) -> str:
    """The package's own file in its mount, in both layouts that envgen-install takes; "" without
    one.
    """
    for folder in ("src", ""):
        place = os.path.join(package["mount"], folder, package["package"])
        # A module beside the folder of the same name is never imported.
        for file in (f"{place}/__init__.py", f"{place}.py"):
            if os.path.isfile(file):
                return file
    return ""


def recorded(package: Doc, document: Doc) -> list[Doc]:
    """The distributions whose RECORD has the package's file, in the order of sys.path."""
    wanted = {f"{package['package']}/__init__.py", f"{package['package']}.py"}
    close = (normal(package["distribution"]), normal(package["package"]))
    distributions = []
    for entry, folder, name, _ in metadata_folders(document):
        # Reading every RECORD would take a second: that of a fork is named after the package.
        if name not in close and not name.startswith(f"{close[1]}-"):
            continue
        for row in csv.reader(read_text(f"{entry}/{folder}/RECORD", RECORD_LIMIT).splitlines()):
            if len(row) == 3 and row[0] in wanted:
                file = os.path.normpath(os.path.join(entry, row[0]))
                distributions.append({"name": name, "file": file})
    return distributions


def origins(request: Doc, document: Doc) -> list[Doc]:
    """For each package: its file in the mount, and those of its distributions."""
    return [
        {
            "package": package["package"],
            "home": home_of(package),
            "recorded": recorded(package, document),
        }
        for package in request.get("packages", [])
    ]


def starters(_request: Doc, document: Doc) -> Doc:
    """What runs or decides before a program: `sitecustomize`, and the import hooks' files."""

    def file_of(module: Any) -> str:
        return str(getattr(sys.modules.get(module), "__file__", None) or "")

    modules = {name: file_of(name) for name in ("sitecustomize", "usercustomize")}
    modules = {
        name: file for name, file in modules.items() if b"path" in read_bytes(file, FILE_LIMIT)
    }
    hooks = {}
    for finder in document.get("python", {}).get("meta_path", ()):
        hooks[finder] = file_of(finder.rpartition(".")[0])
    return {
        "customize": modules,
        "hooks": {name: file for name, file in hooks.items() if file},
    }


def active_folder(document: Doc, package: str) -> str | None:
    """The folder that most ways of starting Python import."""
    cells = [
        cell
        for cell in document.get("imports", [])
        if cell["package"] == package and cell["kind"] == "regular"
    ]
    folders = [os.path.dirname(cell["origin"]) for cell in cells]
    return max(folders, key=folders.count) if folders else None


def claimed_patches(request: Doc, document: Doc) -> list[Doc]:
    """Whether each file that the image's patches changed is still as they left it, and the one that
    Python imports.
    """
    try:
        record = json.loads(
            read_bytes(request.get("patches", PATCHES), FILE_LIMIT).decode("utf-8", "replace")
        )
    except ValueError:  # none, for most images
        return []
    packages = {each["distribution"]: each["package"] for each in request.get("packages", [])}
    claims = []
    for path, entry in sorted(record.items()):
        package = packages.get(entry["distribution"], entry["distribution"])
        folder = active_folder(document, package)
        inside = f"/{package}/"
        digest = sha256_of(path) if os.path.isfile(path) else ""
        state = "there" if digest == entry["sha256"] else "changed" if digest else "gone"
        if folder and inside in path and not path.startswith(f"{folder}/"):
            state = "not imported"
        claims += [
            {"patch": name[: -len(".patch")], "package": package, "path": path, "state": state}
            for name in entry["patches"]
        ]
    return claims
