"""What installations and patches have left: RECORDs as pip and uv write them, and the records of a build."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

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


def imported(folder: Path) -> dict[str, Any]:
    """The probe's document so far: which folder is imported."""
    return {"imports": [{"package": "flashinfer", "kind": "regular", "origin": str(folder / "__init__.py")}]}


def test_claims(tmp_path: Path) -> None:
    """What apply-patches recorded, against the files of now; a kernel's source counts as Python does."""
    package = tmp_path / "site" / "flashinfer"
    kernel = package / "data/csrc/x.cu"
    kernel.parent.mkdir(parents=True)
    kernel.write_text("patched\n")
    digest = hashlib.sha256(kernel.read_bytes()).hexdigest()
    entry = {"distribution": "flashinfer-python", "patches": ["fi/0001-a.patch"], "sha256": digest}
    record = tmp_path / "patches.json"
    record.write_text(json.dumps({str(kernel): entry, f"{package}/gone.py": {**entry, "sha256": ""}}))
    sources = [{"package": "flashinfer", "distribution": "flashinfer-python"}]

    def states(imported_from: Path = package) -> dict[str, str]:
        request = {"patches": str(record), "packages": sources}
        claims = origins.claimed_patches(request, imported(imported_from))
        assert {claim["patch"] for claim in claims} == {"fi/0001-a"}
        return {Path(claim["path"]).name: claim["state"] for claim in claims}

    assert states() == {"x.cu": "there", "gone.py": "there"}
    assert states(tmp_path / "checkout" / "flashinfer") == {"x.cu": "not imported", "gone.py": "not imported"}
    kernel.write_text("the wheel's\n")
    assert states()["x.cu"] == "changed"
    kernel.unlink()
    assert states()["x.cu"] == "gone"
    assert origins.claimed_patches({"patches": str(tmp_path / "none")}, {"imports": []}) == []
