"""Every finding of doctor, made by a real container; every check, silent on one (doctor_cases.py says which)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from doctor_cases import FIRES, MUTE, SILENT
from doctor_lab import PP, W
from doctor_page import DESCRIBED
from doctor_scenes import SCENES
from doctor_stage import Report, Stage

pytestmark = pytest.mark.engine

Play = Callable[[str], Report]


@pytest.fixture(scope="module")
def play(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """The report of a scenario; each is played once."""
    stage, played = Stage(tmp_path_factory.mktemp("stage")), dict[str, Report | Exception]()

    def find(name: str) -> Report:
        if name not in played:
            try:
                played[name] = SCENES[name](stage)
            except Exception as defect:  # it would take as long again for each of its tests
                played[name] = defect
            finally:
                stage.clear()
        found = played[name]
        if isinstance(found, Exception):
            raise found
        return found

    stage.clear()
    yield find
    stage.clear()
    stage.remove_images()


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_scene(play: Play, scene: str) -> None:
    """It makes the findings that doctor_cases.py says, and none that their check does not declare."""
    findings = play(scene)["findings"]
    seen = {(f["check"], f["evidence"].get("case")): f["severity"] for f in findings}
    wanted = {
        (check, case): DESCRIBED[check, case]
        for check, cases in FIRES.items()
        for case in cases
        if cases[case] == scene
    }
    assert {case: seen.get(case) for case in wanted} == wanted, [f for f in findings if f["severity"] != "ok"]
    trouble = [f for f in findings if f["severity"] in ("warning", "error")]
    assert [f for f in trouble if DESCRIBED.get((f["check"], f["evidence"]["case"])) != f["severity"]] == []
    silent = {check: {"ok"} for check, name in SILENT.items() if name == scene}
    assert {check: {f["severity"] for f in findings if f["check"] == check} for check in silent} == silent
    assert {f["check"] for f in findings} & {check for check, name in MUTE.items() if name == scene} == set()


# --- what some of them say, word for word ----------------------------------------------------------------------------


def finding(report: Report, check: str, case: str) -> dict[str, Any]:
    (found,) = [f for f in report["findings"] if f["check"] == check and f["evidence"].get("case") == case]
    return dict(found)


def test_the_trap_is_named(play: Play) -> None:
    found = finding(play("trap"), "import.truth", "trap")
    assert "namespace-package trap" in found["title"]
    assert f"__path__ = [{PP}]" in found["seen"]
    assert found["evidence"]["ways"] == [["-c", W], ["-m", W]]
    assert found["remedy"] == {"kind": "profile", "text": f"python_path: [{PP}]"}


def test_without_python(play: Play) -> None:
    found = finding(play("no_python"), "python.start", "no-document")
    assert found["title"] == "the probe could not be run" and "cannot start python3 in the container" in found["seen"]


def test_flags(play: Play) -> None:
    """What vLLM 0.14.0's own sources say."""
    assert finding(play("vllm_wrong"), "serve.flags", "unknown")["title"].startswith(
        "--mxfp4-layers is unknown to vllm"
    )


def test_a_shard_that_was_cut_short(play: Play) -> None:
    found = finding(play("weights_cut"), "weights.whole", "not-whole")
    assert "model-00002-of-00002.safetensors has " in found["title"]
    assert found["remedy"]["text"].startswith("envgen model pull dev --profile dev --file ")
