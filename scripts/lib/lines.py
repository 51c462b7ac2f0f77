"""Count the lines of Python in envgen/ and tests/, beside the last release's, and hold them below tests/most-lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]


def git(*words: str) -> str:
    """What git prints in this checkout; "" where it fails."""
    return subprocess.run(["git", *words], cwd=TOP, capture_output=True, text=True, check=False).stdout


def count(folder: str, release: str = "") -> int:
    """Lines of the Python files that git has there, now or at a release."""
    if not release:
        names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", folder).split("\0")
        paths = [TOP / name for name in names if name.endswith(".py")]
        return sum(path.read_bytes().count(b"\n") for path in paths if path.is_file())
    names = git("ls-tree", "-r", "-z", "--name-only", release, "--", folder).split("\0")
    return sum(git("show", f"{release}:{name}").count("\n") for name in names if name.endswith(".py"))


def main() -> int:
    """1 where a folder has more lines than it may."""
    release = git("describe", "--tags", "--abbrev=0", "--match", "v*").strip()
    rows = (line.split() for line in (TOP / "tests/most-lines").read_text().splitlines() if not line.startswith("#"))
    code = 0
    for folder, most in rows:
        now = count(folder)
        before = f"{count(folder, release):,} in {release}" if release else "no release yet"
        print(f"{folder}: {now:,} lines of Python ({before}); at most {int(most):,}")
        if now > int(most):
            print(
                f"lines: {folder} has {now - int(most):,} lines too many: take something away; a larger number in "
                "tests/most-lines is a commit of its own that says what was deleted for it",
                file=sys.stderr,
            )
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
