"""The walls of the house (docs/architecture.md): which room may import which, read from the source itself."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "envgen"

# From the top floor down. A package imports from the floors below it, and from its own floor where that makes no
# circle. The files at the top (errors, text, files, redact, ...) are the ground floor.
FLOORS: tuple[set[str], ...] = (
    {"cli"},
    {"app"},
    {"doctor", "jitcache", "serve", "predict", "bench"},
    {"deployment"},
    {"render", "lock", "patches", "inside", "explain", "recipes"},
    {"engine"},
    {"profile"},
)
HEIGHT = {package: -number for number, floor in enumerate(FLOORS) for package in floor}
GROUND = -len(FLOORS)
# A library that may be imported through one door only.
DOORS: dict[str, tuple[str, ...]] = {
    "subprocess": ("engine/process.py", "inside/"),  # the latter: programs for a container
    "docker": ("engine/",),
    "requests": ("engine/", "patches/wheel.py", "serve/"),
}
# Text that runs in somebody else's Python: the standard library and nothing else.
INSIDE = tuple(
    path.relative_to(PACKAGE).as_posix()
    for path in sorted(PACKAGE.glob("inside/**/*.py"))
    if path.name != "run.py"  # the host's side
)
ALONE = ("inside/warm.py",)  # sent without the runner


@cache
def _imports(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names += [node.module or ""] + [f"{node.module}.{alias.name}" for alias in node.names]
    return names


FILES = sorted(p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py"))


def _package(module: str) -> str:
    """``envgen.render.plan`` → ``render``; "" for the files at the top."""
    name = f"{module}..".split(".")[1]
    return name if name in HEIGHT else ""


def test_every_package_has_a_floor() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= set(HEIGHT)


@pytest.mark.parametrize("name", [name for name in FILES if name != "__main__.py"])
def test_imports_keep_to_the_walls(name: str) -> None:
    package = _package(f"envgen.{name.removesuffix('.py').replace('/', '.')}")
    for imported in _imports(PACKAGE / name):
        root = imported.partition(".")[0]
        if root in DOORS:
            assert name.startswith(DOORS[root]), f"{name} imports {root}; its door is {DOORS[root]}"
        if root == "envgen":
            assert not imported.startswith("envgen.__main__"), f"{name} imports __main__"
            target = _package(imported)
            higher = HEIGHT.get(target, GROUND) > HEIGHT.get(package, GROUND)
            assert not higher, f"{name} imports {imported}, which is on a floor above"


def test_there_is_no_circle() -> None:
    modules = {f"envgen.{name[:-3].replace('/', '.')}".removesuffix(".__init__"): PACKAGE / name for name in FILES}
    arrows = {module: {i for i in _imports(path) if i in modules} - {module} for module, path in modules.items()}
    while leaves := [module for module, targets in arrows.items() if not targets & arrows.keys()]:
        for module in leaves:
            del arrows[module]
    assert not arrows, f"these import each other in a circle, or import such files: {sorted(arrows)}"


def test_packages_of_one_floor_are_in_no_circle() -> None:
    for floor in FLOORS:
        arrows = {package: set[str]() for package in floor}
        for name in FILES:
            if (package := name.split("/")[0]) in floor:
                arrows[package] |= {_package(i) for i in _imports(PACKAGE / name)} & floor - {package}
        while leaves := [package for package, targets in arrows.items() if not targets & arrows.keys()]:
            for package in leaves:
                del arrows[package]
        assert not arrows, f"these packages import each other in a circle: {arrows}"


@pytest.mark.parametrize("name", INSIDE)
def test_what_runs_inside_is_standard_library_only(name: str) -> None:
    for imported in _imports(PACKAGE / name):
        root = imported.split(".")[0]
        # Files of one program may import each other, and ``common``: inside/run.py sends them along under these names.
        folder = name.rpartition("/")[0].replace("/", ".")
        own = folder != "inside" and f"{imported}.".startswith(f"envgen.{folder}.")
        own = own or (f"{imported}.".startswith("envgen.inside.common.") and name not in ALONE)
        there = imported == "huggingface_hub" and name == "inside/hub.py"  # the image's own
        assert own or there or root in sys.stdlib_module_names, f"{name} imports {imported}"
