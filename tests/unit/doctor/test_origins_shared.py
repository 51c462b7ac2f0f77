"""Modules that two distributions own, read from RECORDs as pip and uv write them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path

import pytest

from envgen.inside.probe import facts, origins


def install(site: Path, name: str, files: dict[str, str]) -> None:
    rows = []
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text, encoding="utf-8")
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        rows.append(f'"{path}",sha256={digest},{len(text)}')
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "RECORD").write_text("\n".join([*rows, f"{folder.name}/RECORD,,", "odd"]) + "\n", encoding="utf-8")


def test_a_module_of_two_packages_is_found_with_the_one_that_won(tmp_path: Path) -> None:
    alike = {"nvidia/__init__.py": "", "tests/a,b.py": "x"}
    install(tmp_path, "flashinfer_python", {**alike, "b12x/__init__.py": "old", "build_backend.py": "1"})
    install(tmp_path, "b12x", {**alike, "b12x/__init__.py": "new", "b12x/notes.txt": "new", "build_backend.py": "2"})
    install(tmp_path, "third", {"third.py": "", "b12x/notes.txt": "other"})
    document = {"python": {"path": [str(tmp_path)]}}
    place = str(tmp_path / "b12x/__init__.py")
    owners = ["b12x", "flashinfer-python"]
    assert origins.shared_modules({}, document) == [{"path": place, "owners": owners, "winner": "b12x"}]
    (tmp_path / "b12x/__init__.py").write_text("edited", encoding="utf-8")
    assert origins.shared_modules({}, document) == [{"path": place, "owners": owners, "winner": ""}]
    (tmp_path / "b12x/__init__.py").unlink()
    assert origins.shared_modules({}, document) == []


def test_what_a_build_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The locked packages of the image, without those of another platform and those for its build."""
    machine = facts.MACHINES[os.uname().machine]
    inputs = {f"{machine} pip deps here": "1.0", f"{machine} pip deps gone": "2", "linux/other pip deps x": "1",
              f"{machine} pip build y": "1"}  # fmt: skip
    (tmp_path / "here-1.0.dist-info").mkdir()
    (tmp_path / "manifest.json").write_text(json.dumps({"inputs": inputs}))
    monkeypatch.setattr(facts, "MANIFEST", str(tmp_path / "manifest.json"))
    document = {"python": {"path": [str(tmp_path)]}}
    assert facts.locked_versions({}, document) == {"count": 2, "differ": [{"name": "gone", "promised": "2"}]}
