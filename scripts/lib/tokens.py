"""Count how much there is to read, and hold it below tests/most-tokens.

Python under envgen/, docker/, scripts/, checks/ and benchmarks/ is counted in tokens, without
comments, docstrings and layout: lines are free, so that nobody packs two thoughts into one.
tests/ is counted in lines. Programs without the ending .py count where their first line names
Python.
"""

from __future__ import annotations

import ast
import io
import re
import signal
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.COMMENT,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def programs(folder: str) -> Iterator[Path]:
    """The Python files that git tracks, or would track, below ``folder``."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", folder],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    for name in filter(None, names):
        path = TOP / name
        if path.is_file() and (path.suffix == ".py" or _names_python(path)):
            yield path


def _names_python(path: Path) -> bool:
    return re.match(rb"#!.*python3", path.read_bytes()) is not None


def tokens_of(text: str) -> list[tokenize.TokenInfo]:
    """The tokens of a program that a reader reads. SyntaxError where it is no Python."""
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, DOCUMENTED) or not node.body:
            continue
        match node.body[0]:
            case ast.Expr(value=ast.Constant(value=str())):
                docstrings.add(node.body[0].lineno)
    read = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and token.start[0] in docstrings
        if token.type not in LAYOUT and not is_docstring:
            read.append(token)
    return read


def count(folder: str) -> tuple[int, int]:
    """Tokens below ``folder``, and the lines of code that they stand in."""
    total = lines = 0
    for path in programs(folder):
        tokens = tokens_of(path.read_text(encoding="utf-8"))
        total += len(tokens)
        lines += len({token.start[0] for token in tokens})
    return total, lines


def main() -> int:
    """1 where a folder has more than it may."""
    code = 0
    for row in (TOP / "tests/most-tokens").read_text().splitlines():
        if row.startswith("#"):
            continue
        folder, most, unit = row.split()
        if unit == "lines":
            now = sum(path.read_bytes().count(b"\n") for path in programs(folder))
            density = ""
        else:
            now, lines = count(folder)
            density = f", {now / max(1, lines):.1f} a line of code"
        print(f"{folder}: {now:,} {unit}{density}; at most {int(most):,}")
        if now > int(most):
            print(
                f"{folder} has {now - int(most):,} {unit} too many: take something away; a larger "
                "number in tests/most-tokens is a commit of its own that says what was deleted for it",
                file=sys.stderr,
            )
            code = 1
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `tokens.py | head`: the reader has left
    sys.exit(main())
