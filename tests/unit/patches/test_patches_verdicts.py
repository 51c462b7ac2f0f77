"""What a dry run says of each patch, and which files a released wheel does not carry. git itself is a stand-in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envgen.errors import Place
from envgen.patches import checkout, dry_run
from envgen.patches.dry_run import DryRun, State
from envgen.patches.series import Series, make_patch
from envgen.patches.wheel import WheelTree, _is

SERIES, HUNK = Place("patches/x/series", 1, 1), "@@ -1,1 +1,1 @@\n-old\n+new\n"
NAMES = ("vllm/a.py", "vllm/b/c.py", "vllm-1.dist-info/RECORD")


def wheel(version: str = "0.13.0") -> WheelTree:
    return WheelTree("the wheel", version, NAMES, lambda places: dict.fromkeys(places, b"old\n"), bytes)


def patch(name: str, old: str, new: str, applies: str = "") -> Any:
    head = f"Applies-To: {applies}\n" if applies else ""
    return make_patch(name, f"patches/x/{name}", f"{head}--- {old}\n+++ {new}\n{HUNK}".encode(), SERIES)


@pytest.mark.parametrize(
    ("old", "new", "lacking"),
    [
        ("a/vllm/a.py", "b/vllm/a.py", []),
        ("a/csrc/a.cu", "b/csrc/a.cu", ["csrc/a.cu"]),
        ("a/vllm/a.py", "b/vllm/b/new.py", []),
        ("a/vllm/a.py", "b/csrc/new.py", ["csrc/new.py"]),
        ("/dev/null", "b/vllm/new.py", []),
        ("/dev/null", "b/csrc/new.cu", ["csrc/new.cu"]),
        ("a/vllm/a.py", "/dev/null", []),
        ("a/csrc/a.cu", "/dev/null", ["csrc/a.cu"]),
    ],
)
def test_what_a_wheel_lacks(old: str, new: str, lacking: list[str]) -> None:
    assert wheel().lacking(patch("p.patch", old, new)) == lacking
    assert set(wheel().read({"vllm/a.py", "csrc/a.cu"})) == {"vllm/a.py"}


def tried(monkeypatch: pytest.MonkeyPatch, states: Mapping[str, State], *, mounted: bool = False) -> DryRun:
    """A series of patches with these states; one that is out of range is for another version."""
    late = {name for name, state in states.items() if state is State.OUT_OF_RANGE}
    patches = tuple(
        patch(name, "a/csrc/x.cu" if state is State.LACKING else "a/vllm/a.py", "b/vllm/a.py",
              "<0.13" if name in late else "")
        for name, state in states.items()
    )  # fmt: skip

    def of_git(code: Mapping[str, Any], series: Series) -> dict[str, Any]:
        assert set(code) == {"vllm/a.py"} and not late & {one.name for one in series.patches}
        return {one.name: (states[one.name], ("why",)) for one in series.patches}

    monkeypatch.setattr(dry_run, "_tried", of_git)
    return dry_run.dry_run(wheel(), Series("patches/x", patches), mounted=mounted)


def test_each_state_has_its_words_and_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    run = tried(monkeypatch, {state.name: state for state in State})
    good = {"FITS": True, "ALREADY": False, "CONFLICT": False, "LACKING": False, "OUT_OF_RANGE": True}
    assert {one.name: one.ok for one in run.verdicts} == good and not run.ok
    lines = dry_run.report_lines(run)
    assert lines[0] == "the wheel (patches/x)" and sum("hint: " in line for line in lines) == 3
    assert "  ok  OUT_OF_RANGE: out of range, skipped (it is for <0.13)" in lines and "        csrc/x.cu" in lines
    shown = dry_run.as_document("vllm", run)
    assert (shown["ok"], {one["name"]: one["ok"] for one in shown["patches"]}) == (False, good)
    there = tried(monkeypatch, {"a": State.ALREADY, "b": State.CONFLICT}, mounted=True)
    assert [one.ok for one in there.verdicts] == [True, False]  # a mounted checkout may have them


def test_a_series_that_fits_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    one, more = {"a": State.FITS}, {"a": State.FITS, "b": State.FITS, "c": State.OUT_OF_RANGE}
    assert tried(monkeypatch, one).ok and dry_run.summary(tried(monkeypatch, one)) == "1 patch fits the wheel"
    skipped = "2 patches fit the wheel (1 skipped, not for this version)"
    assert tried(monkeypatch, more).ok and dry_run.summary(tried(monkeypatch, more)) == skipped


@pytest.mark.parametrize(
    ("file", "is_it"),
    [("v_llm-1.0-py3-none-any.whl", True), ("v_llm-1.0.0-py3-none-any.whl", True), ("v_llm-2-py3-none-any.whl", False),
     ("other-1.0-py3-none-any.whl", False), ("v_llm-1.0.tar.gz", False), ("v_llm.whl", False)],
)  # fmt: skip
def test_which_file_is_the_wheel(file: str, is_it: bool) -> None:
    assert _is(file, "v.LLM", "1.0") is is_it


@pytest.mark.parametrize(("hunk", "missing"), [(HUNK, False), ("@@ -1,1 +0,0 @@\n-old\n", True)])
def test_a_patch_that_fits_as_well_as_its_reverse(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hunk: str, missing: bool
) -> None:
    """What only takes lines away is still to be applied; what adds lines was applied."""
    monkeypatch.setattr(checkout, "_distance", lambda *_: 3)
    content = f"--- a/vllm/a.py\n+++ b/vllm/a.py\n{hunk}".encode()
    assert checkout._is_missing(tmp_path, make_patch("x", "patches/x/x", content, SERIES)) is missing
