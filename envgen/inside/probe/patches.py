"""Runs INSIDE the container: what the build noted, and whether it is still so."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Dict

from envgen.inside.probe.basics import Doc, entries, listing

# One file a package, as `sha256sum --check` reads it; the build's script patch-installed writes it.
NOTES = "/opt/envgen/patched"
# What a locked build says about its inputs, and the packages of the base image that no installation may replace.
MANIFEST = "/opt/envgen/manifest.json"
PROTECTED = "/opt/envgen/protected.json"
MACHINES = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


def patched_state(path: str, digest: str) -> str:
    if not os.path.isfile(path):
        return "missing"
    with open(path, "rb") as file:
        return "same" if hashlib.sha256(file.read()).hexdigest() == digest else "changed"


def patched_files(_request: Doc, _document: Doc) -> list[Doc]:
    """Each file that a patch changed when the image was built: is it as the build left it?"""
    found = []
    for package in listing(NOTES):
        with open(os.path.join(NOTES, package), "rb") as notes:
            lines = notes.read(1 << 20).decode("utf-8", "backslashreplace").splitlines()
        for line in lines:
            digest, _, path = line.partition("  ")
            found.append({"package": package, "path": path, "state": patched_state(path, digest)})
    return found


def document_at(path: str) -> Doc:
    if not os.path.isfile(path):
        return {}
    with open(path, "rb") as file:
        found = json.loads(file.read(1 << 24).decode("utf-8", "replace"))
    return found if isinstance(found, dict) else {}


def installed_versions(document: Doc) -> Dict[str, str]:
    """name -> version of all that is installed, as the names of the metadata folders say; the first one wins."""
    found: Dict[str, str] = {}
    for entry in entries(document):
        for folder in listing(entry):
            if folder.endswith((".dist-info", ".egg-info")):
                name, _, rest = folder.rpartition(".")[0].partition("-")
                found.setdefault(name.replace("_", "-").replace(".", "-").lower(), rest.partition("-py3")[0])
    return found


def compared(wanted: Dict[str, str], document: Doc) -> Doc:
    """How many packages were promised, and those that are installed at another version, or not at all."""
    there = installed_versions(document) if wanted else {}
    differ = [{"name": name, "promised": version, "installed": there.get(name, "")}
              for name, version in sorted(wanted.items()) if there.get(name, "") != version]  # fmt: skip
    return {"count": len(wanted), "differ": differ}


def locked_versions(_request: Doc, document: Doc) -> Doc:
    """The Python packages that the lock put into this image; what only builds need is left out."""
    head = MACHINES.get(os.uname().machine, "") + " pip "
    found = {}
    for key, value in (document_at(MANIFEST).get("inputs") or {}).items():
        words = key[len(head) :].split(" ")
        if key.startswith(head) and len(words) == 2 and words[0].startswith(("deps", "install.")):
            found[words[1]] = str(value)
    return compared(found, document)


def protected_versions(_request: Doc, document: Doc) -> Doc:
    """The packages of the base image that must stay as they were."""
    was = document_at(PROTECTED).items()
    return compared({name: str(one.get("version", "")) for name, one in was if isinstance(one, dict)}, document)
