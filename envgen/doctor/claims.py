"""What the patches of an image's label must have left in its Python files: the lines that they add.

Read from the patches of the project before the probe is asked, so that one look inside answers it.
"""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

from envgen.errors import Place, ProjectError
from envgen.patches.series import read_patch, strip
from envgen.profile.model import Profile

LABEL = "dev.envgen.patches"


def claims(profile: Profile, root: Path, label: str) -> list[dict[str, Any]]:
    """A request for each Python file that the label's patches change: package, file, and the blocks that they add.

    Of several patches to one file only the last one is asked about: it may have changed what the others added. Patches
    that are no longer in the project can't be asked about; ``image.render`` says that the profile has changed.
    """
    folders = {source.patches: source for source in profile.sources.values() if source.patches}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name in label.split():
        source = folders.get(name.rpartition("/")[0])
        path = root / "patches" / name
        if source is None or source.origin.kind == "checkout" or ".." in name.split("/") or not path.is_file():
            continue
        for file, blocks in added(path.read_bytes(), name).items():
            if file.startswith(f"{source.package}/") and file.endswith(".py") and blocks:
                found[source.package, file] = {
                    "patch": name.removesuffix(".patch"), "package": source.package, "file": file, "blocks": blocks,
                }  # fmt: skip
    return list(found.values())


def added(content: bytes, name: str) -> dict[str, list[str]]:
    """file -> the blocks of neighbouring lines that a patch adds to it; nothing for what is not a patch."""
    found: dict[str, list[str]] = {}
    with contextlib.suppress(ProjectError):  # `envgen patch check` says why
        for file in read_patch(content, name, Place(name)):
            lines = (line for hunk in file.hunks for line in (hunk.heading, *hunk.lines))
            runs = itertools.groupby(lines, key=lambda line: line.startswith("+"))
            found[strip(file.target)] = ["\n".join(line[1:] for line in run) for is_added, run in runs if is_added]
    return found
