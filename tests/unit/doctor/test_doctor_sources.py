"""What patches must have left, read from source texts."""

from __future__ import annotations

import difflib
import hashlib
import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from envgen.inside.probe.origins import claimed_patches
from envgen.patches.series import read_patch

ROOT = Path(__file__).parents[3]


def imported(folder: Path, package: str = "vllm") -> dict[str, Any]:
    """The probe's document so far: which folder is imported."""
    return {"imports": [{"package": package, "kind": "regular", "origin": str(folder / "__init__.py")}]}


CHARACTERS = st.characters(codec="utf-8", exclude_characters="\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
LINES = st.lists(st.text(CHARACTERS, max_size=6), max_size=12)


@given(LINES, LINES)
def test_blocks_of_any_diff_stand_in_its_new_side(before: list[str], after: list[str]) -> None:
    diff = difflib.unified_diff(before, after, "a/vllm/x.py", "b/vllm/x.py", lineterm="")
    text = "\n".join(after)
    for file in read_patch("\n".join([*diff, ""]).encode(), "x.patch"):
        assert file.target == "b/vllm/x.py"
        assert all(block in text for block in file.added)


def test_the_patches_of_this_project() -> None:
    for path in sorted(ROOT.glob("patches/*/*.patch")):
        lines = [line[1:] for line in path.read_text().splitlines() if line.startswith("+") and line[:4] != "+++ "]
        blocks = [block for file in read_patch(path.read_bytes(), path.name) for block in file.added]
        assert [line for block in blocks for line in block.split("\n")] == lines


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
        claims = claimed_patches(request, imported(imported_from, "flashinfer"))
        assert {claim["patch"] for claim in claims} == {"fi/0001-a"}
        return {Path(claim["path"]).name: claim["state"] for claim in claims}

    assert states() == {"x.cu": "there", "gone.py": "there"}
    assert states(tmp_path / "checkout" / "flashinfer") == {"x.cu": "not imported", "gone.py": "not imported"}
    kernel.write_text("the wheel's\n")
    assert states()["x.cu"] == "changed"
    kernel.unlink()
    assert states()["x.cu"] == "gone"
    assert claimed_patches({"patches": str(tmp_path / "none")}, {"imports": []}) == []
