"""Runs inside the image: what is installed there. Reads only.

Debian packages as dpkg knows them; Python distributions of this interpreter, and of the folders of the request.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from typing import Any, Dict, List

FIELDS = ("Package", "Version", "Architecture", "db:Status-Status")


def debian() -> List[Dict[str, str]]:
    """All packages that dpkg has installed; none where there is no dpkg."""
    form = "\t".join("${%s}" % field for field in FIELDS) + "\n"
    try:
        done = subprocess.run(["dpkg-query", "-W", "-f", form], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return []
    found = []
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        words = line.split("\t")
        if len(words) == len(FIELDS) and words[-1] == "installed":
            found.append(dict(zip(("name", "version", "arch"), words)))
    return found


def python(folders: List[str]) -> List[Dict[str, str]]:
    """All distributions, those that hide another one of their name first."""
    found: List[Dict[str, str]] = []
    seen = set()
    for distribution in importlib.metadata.distributions(path=sys.path + folders):
        name, place = distribution.metadata["Name"], str(distribution.locate_file(""))
        key = (re.sub(r"[-_.]+", "-", name or "").lower(), os.path.realpath(place))
        if not name or key in seen:
            continue
        seen.add(key)
        said = distribution.metadata["License-Expression"] or ""
        found.append({"name": key[0], "version": distribution.version or "", "license": said})
    return found


def release() -> Dict[str, str]:
    """/etc/os-release as a mapping."""
    found = {}
    try:
        with open("/etc/os-release", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, equals, value = line.strip().partition("=")
                if equals:
                    found[key] = value.strip("\"'")
    except OSError:
        pass
    return found


def answer(request: Dict[str, Any]) -> Dict[str, Any]:
    """Everything that was found, sorted by name."""
    folders = [folder for folder in request["folders"] if os.path.isdir(folder)]
    return {
        "os": release(),
        "debian": sorted(debian(), key=lambda one: (one["name"], one["arch"])),
        "distributions": sorted(python(folders), key=lambda one: (one["name"], one["version"])),
    }
