"""Runs inside the container: the code of installed packages that was changed or added after the container was made.

What comes from the image keeps the time at which the engine unpacked it; a file that is written to is copied, and has a
new one (st_ctime, which no program can set). So no list of the image's files is needed; what was removed is not found.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any, Dict, Iterator

Doc = Dict[str, Any]

# Code and metadata: programs write caches and generated sources there, such as FlashInfer its kernels' (data/csrc).
CODE = re.compile(r".*\.(?:py|pth|so(?:\.[0-9.]+)?)|METADATA")
MOST = 300_000  # files
# Some storage drivers copy every file for a container: then the times say nothing.
TOO_MANY = 5_000
SHOWN = 50


def sites() -> Iterator[str]:
    """The folders of installed packages that are the container's own, not on a volume or mount."""
    own = os.stat("/").st_dev
    for folder in dict.fromkeys(map(os.path.realpath, sys.path)):
        is_site = os.path.basename(folder) in ("site-packages", "dist-packages") and os.path.isdir(folder)
        if is_site and os.stat(folder).st_dev == own:
            yield folder


def edited(site: str, since: float, left: int) -> Iterator[str]:
    """The files below a folder that changed after ``since``, as paths in it; at most ``left`` are looked at."""
    for top, folders, names in os.walk(site):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for path in (os.path.join(top, name) for name in names if CODE.fullmatch(name)):
            left -= 1
            try:
                if os.lstat(path).st_ctime > since:
                    yield os.path.relpath(path, site)
            except OSError:
                continue
        if left < 0:
            return


def answer(request: Doc) -> Doc:
    """``since``: seconds since 1970, when the container was made."""
    found = sorted({path for site in sites() for path in edited(site, request["since"], MOST)})
    is_copied = len(found) > TOO_MANY
    return {"count": 0 if is_copied else len(found), "files": [] if is_copied else found[:SHOWN]}
