"""Runs inside a service's container: what its installed files say of a failure."""

from __future__ import annotations

import ast
import importlib.util
import re
from importlib import metadata
from pathlib import Path
from typing import Iterator

from envgen.inside.common import Doc, read_text

LARGEST = 4 << 20  # bytes of a file that are read
MOST = 40  # files that are parsed
SHOWN = 400  # characters of a place
REGISTRY = "model_executor/models/registry.py"
ALLOWS = "supported_compute_capability("
MESSAGES = (ast.Raise, ast.Assert, ast.Assign, ast.Expr)  # statements that have one


def answer(request: Doc) -> Doc:
    """``module``, ``name`` ("": none is asked for). Answers with ``owners``: the distributions with their
    versions, ``file`` ("": there is none) and ``has`` (None: not known).

    ``model``: the name is this architecture, and the file vLLM's registry. ``text``: ``places`` has
    statements below the module's folder with this message, each with the last condition
    above it. ``function``: they have the compute capabilities that FlashInfer's decorators allow for
    each of its backends. Only the packages above a module are imported to find it, not the module.
    """
    module = request["module"]
    name = request["name"]
    inner = f"{module.partition('.')[0]}/"
    owners = [
        f"{found.metadata['Name']} {found.version}"
        for found in metadata.distributions()
        if any(str(path).startswith(inner) for path in found.files or ())
    ]
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # a package above it, which is anybody's, can't be imported
        spec = None
    file = (spec and spec.origin) or ""
    folder = Path(file).parent
    if file and request["model"]:
        file = str(folder / REGISTRY)
        name = f'"{request["model"]}": ('  # those that it had, or that others have, are no tuples
    has = None
    if name and file.endswith(".py"):
        with open(file, "rb") as source:
            has = name.encode() in source.read(LARGEST)
    places = []
    if file and request["text"]:
        places = [*_places(folder, request["text"])]
    elif file and request["function"]:
        places = [*_allowed(folder, request["function"])]
    return {"owners": sorted(owners), "file": file, "has": has, "places": places[:8]}


def _places(folder: Path, text: str) -> Iterator[str]:
    words = re.findall("[A-Za-z]{5,}", text)
    sources = {}
    for file in map(str, folder.rglob("*.py")):
        sources[file] = read_text(file, LARGEST)

    def shared(path: str) -> int:
        return sum(word in sources[path] for word in words)

    by_words = sorted(sources, key=shared, reverse=True)
    for path in by_words[:MOST]:
        tree = ast.parse(sources[path])
        for statement in ast.walk(tree):
            if not isinstance(statement, MESSAGES) or not _says(statement, text):
                continue
            line = statement.lineno
            condition = ""
            for node in ast.walk(tree):  # outer ones first
                if isinstance(node, ast.If) and node.lineno <= line <= node.end_lineno:  # type: ignore[operator]
                    word = "if" if line <= node.body[-1].end_lineno else "unless"  # type: ignore[operator]
                    condition = f"{word} {ast.get_source_segment(sources[path], node.test)}"
            yield " ".join([f"{path}:{line}", *condition.split()])[:SHOWN]


def _allowed(folder: Path, function: str) -> Iterator[str]:
    for path in folder.rglob("*.py"):
        source = read_text(str(path), LARGEST)
        if f"def {function}(" not in source:
            continue
        decorators = {}
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                decorators[node.name] = node.decorator_list
        for decorator in decorators.get(function, []):
            names = [one.id for one in ast.walk(decorator) if isinstance(one, ast.Name)]
            for name in names:
                for requirement in decorators.get(name, []):
                    text = ast.get_source_segment(source, requirement) or ""
                    if text.startswith(ALLOWS):
                        yield f"{name}: {text[len(ALLOWS) : -1]}"[:SHOWN]


def _says(statement: ast.AST, text: str) -> bool:
    """Whether its constant parts are all in the text, and are most of it."""
    values = []
    for node in ast.walk(statement):
        if isinstance(node, ast.Constant):
            values.append(str(node.value))
    message, _, _ = "\0".join(values).partition("\n")
    parts = []
    for part in re.split(r"%\w|[{}\0]", message):
        if len(part) > 7:
            parts.append(part.strip())
    if 2 * len("".join(parts)) <= len(text):
        return False
    return all(part in text for part in parts)
