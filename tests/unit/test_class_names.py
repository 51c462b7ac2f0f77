"""One name means one thing: no two classes of the package share one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import envgen


def test_no_class_name_stands_for_two_things() -> None:
    package = Path(envgen.__file__).parent
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(file.relative_to(package)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
