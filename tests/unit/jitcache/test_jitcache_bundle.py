"""The agent as it travels."""

from __future__ import annotations

import ast
import json
import marshal
import sys
from pathlib import Path
from typing import Any

import pytest
from jitcache_layouts import release

from envgen.inside.run import text_of
from envgen.jitcache import bundle


def run(document: bytes, capsys: pytest.CaptureFixture[str]) -> Any:
    """What STARTER does, with the modules that it would replace put back afterwards.

    It does not watch the input: the end of pytest's would end pytest.
    """
    kept = {name: module for name, module in sys.modules.items() if name.startswith("envgen")}
    try:
        data = marshal.loads(document)
        assert bundle.WATCH in data[0]
        exec(data[0].replace(bundle.WATCH, ""), {"data": data, "sys": sys, "marshal": marshal})
    finally:
        for name in [name for name in sys.modules if name.startswith("envgen")]:
            del sys.modules[name]
        sys.modules.update(kept)
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("operation", sorted(bundle.PARTS))
def test_each_part_comes_after_what_it_imports(operation: str) -> None:
    """The container has nothing else; here, where all of them can be imported, no run would tell."""
    prefix, before = "envgen.inside.jit.", set()
    for name in bundle.PARTS[operation]:
        tree = ast.parse(text_of(f"jit/{name}"))
        modules = [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
        wanted = {module.removeprefix(prefix) for module in modules if module.startswith(prefix)}
        assert wanted <= before, f"{operation}: {name} imports {sorted(wanted - before)}"
        before.add(name)


@pytest.mark.parametrize("operation", ["list", "clear", "look"])
def test_it_stands_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str], operation: str) -> None:
    release(tmp_path, "0.7.2.post1")
    request = {"operation": operation, "root": str(tmp_path), "patterns": ["gemm_sm120", "p*"], "dry_run": True}
    answer = run(bundle.program(request), capsys)
    assert answer["ok"], answer
    if operation != "look":
        assert [module["name"] for module in answer["result"]["modules"]] == ["gemm_sm120", "page"]
