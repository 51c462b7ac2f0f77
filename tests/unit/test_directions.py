"""The walls of the house (docs/architecture.md): which room may import which, read from the source itself."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "envgen"

# A room may import the rooms to its right, and itself. `common` files at the top (errors, paths) are open to all.
ALLOWED: dict[str, set[str]] = {
    "cli": {"app", "inside", "predict", "lock", "patches", "render", "doctor", "jitcache", "serve", "explain",
            "results", "engine", "profile"},
    "app": {"inside", "predict", "jitcache", "serve", "doctor", "explain", "render", "lock", "patches", "engine",
            "profile"},
    "inside": {"engine"},
    "predict": {"inside", "profile"},
    "lock": {"engine", "profile"},
    "patches": {"engine", "profile"},
    "render": {"patches", "lock", "profile"},
    "doctor": {"inside", "engine", "profile", "render"},
    "jitcache": {"inside", "engine", "profile", "render"},
    "serve": {"engine", "profile", "render"},
    "results": set(),
    "explain": set(),
    "engine": set(),
    "profile": set(),
}  # fmt: skip
# A library that may be imported through one door only.
DOORS: dict[str, tuple[str, ...]] = {
    "subprocess": (
        "engine/process.py",
        "serve/benchy_inside.py",
        "inside/predict_vllm.py",
    ),  # the latter two: texts for a container
    "docker": ("engine/",),
    "requests": ("engine/", "lock/", "serve/"),
    "httptools": ("serve/load/",),
}
# Text that runs in somebody else's Python: the standard library and nothing else.
INSIDE = tuple(
    path.relative_to(PACKAGE).as_posix()
    for pattern in (
        "serve/benchy_inside.py",
        "inside/**/*.py",
    )
    for path in sorted(PACKAGE.glob(pattern))
    if path.name != "run.py"  # the host's side
)


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


@pytest.mark.parametrize("name", FILES)
def test_imports_keep_to_the_walls(name: str) -> None:
    room = name.split("/")[0] if "/" in name else ""
    for imported in _imports(PACKAGE / name):
        root, _, rest = imported.partition(".")
        if root in DOORS:
            assert name.startswith(DOORS[root]), f"{name} imports {root}; its door is {DOORS[root]}"
        if root == "envgen" and room:
            target = rest.split(".")[0]
            if target in ALLOWED and target != room:
                assert target in ALLOWED[room], f"{name} imports envgen.{target}; {room} may not"
            assert target != "__main__", f"{name} imports __main__"


@pytest.mark.parametrize("name", INSIDE)
def test_what_runs_inside_is_standard_library_only(name: str) -> None:
    for imported in _imports(PACKAGE / name):
        root = imported.split(".")[0]
        # Files of the agent may import each other: jitcache/bundle.py sends them along under these names.
        own = name.startswith("inside/jit/") and f"{imported}.".startswith("envgen.inside.jit.")
        there = imported == "huggingface_hub" and name == "inside/hub.py"  # the image's own
        assert own or there or root in sys.stdlib_module_names, f"{name} imports {imported}"


@pytest.mark.parametrize("name", ["redact.py", "bundle.py"])
def test_what_every_room_may_use_imports_no_room(name: str) -> None:
    rooms = {i.split(".")[1] for i in _imports(PACKAGE / name) if i.startswith("envgen.")} & set(ALLOWED)
    assert not rooms, f"{name} imports {rooms}"


def test_nothing_imports_cli_but_main() -> None:
    for name in FILES:
        if name.startswith("cli/") or name == "__main__.py":
            continue
        assert not [i for i in _imports(PACKAGE / name) if i.startswith("envgen.cli")], name
