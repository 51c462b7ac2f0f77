"""What the patches of an image's label must have left in its Python files: the lines that they add.

Read from the patches of the project before the probe is asked, so that one look inside answers it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
        text = path.read_text(encoding="utf-8", errors="replace")
        for file, blocks in added(text).items():
            if file.startswith(f"{source.package}/") and file.endswith(".py") and blocks:
                found[source.package, file] = {
                    "patch": name.removesuffix(".patch"), "package": source.package, "file": file, "blocks": blocks,
                }  # fmt: skip
    return list(found.values())


def added(patch: str) -> dict[str, list[str]]:
    """file -> the blocks of neighbouring lines that a unified diff adds to it."""
    found: dict[str, list[str]] = {}
    block: list[str] = []
    file, in_hunk, left = "", False, 0
    for line in [*patch.splitlines(), ""]:
        if in_hunk and line.startswith("+") and left > 0:
            block.append(line[1:])
            left -= 1
            continue
        if block:
            found.setdefault(file, []).append("\n".join(block))
            block = []
        if in_hunk and left > 0 and line.startswith(" "):
            left -= 1
        elif line.startswith("@@ "):
            in_hunk, left = True, _new_lines(line)
        elif line.startswith("+++ ") and left <= 0:
            in_hunk, file = False, line[4:].split("\t")[0].removeprefix("b/")
    return found


def _new_lines(header: str) -> int:
    """How many lines a hunk has on its new side: `@@ -1,2 +1,3 @@` has 3."""
    words = header.split()
    count = words[2].partition(",")[2] if len(words) > 2 else ""
    return int(count) if count.isdigit() else 1
