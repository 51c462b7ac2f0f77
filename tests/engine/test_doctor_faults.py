"""`envgen doctor` on containers in which something is broken: one finding, no traceback, within a time limit."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from doctor_lab import LAB, PP, Lab, docker, doctor, is_right, one, project
from doctor_lab import lab as lab

from envgen.cli import run_line as envgen
from envgen.doctor import probed

pytestmark = pytest.mark.engine

FAULTS = {
    "prints": ("ok", "Python 3.11."),
    "floods": ("error", "the probe gave no answer"),
    "hangs": ("error", "the probe gave no answer"),
    "crashes": ("error", "the probe gave no answer"),
    "killed": ("error", "the probe gave no answer"),
    "sleeps": ("error", "the probe gave no answer"),
}


def test_hooks_that_are_at_fault(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One container, in which one hook after the other runs whenever Python starts."""
    monkeypatch.setattr(probed, "TIMEOUT", 7)
    folder, file = tmp_path / "fault", str(project(tmp_path))
    folder.mkdir()
    lab.start("hook", f"/fault:{PP}", args=["-v", f"{folder}:/fault:ro"])
    for fault, (severity, title) in FAULTS.items():
        shutil.copy(LAB / "faults" / fault / "sitecustomize.py", folder)
        code, report = doctor(capsys, "-f", file)
        (found,) = [f for f in report["findings"] if f["check"] == "python.start" and f["severity"] == severity]
        assert found["title"].startswith(title) and code == 1 and (severity == "error" or is_right(report)), fault
    # What people read, of a hook that raises.
    for fault in ("raises", "exits"):
        shutil.copy(LAB / "faults" / fault / "sitecustomize.py", folder)
        assert envgen(["doctor", "-f", file]) == 1
        text = capsys.readouterr().out
        assert "flashinfer: can't be located" in text
        assert "\x1b[31m" not in text


def test_killed_in_the_middle(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container goes away while the probe runs."""
    monkeypatch.setattr(probed, "TIMEOUT", 7)
    name = lab.start("hook", f"/faults/hangs:{PP}")
    killer = threading.Timer(1.0, lambda: subprocess.run(["docker", "kill", name], capture_output=True))
    killer.start()
    code, report = doctor(capsys, "-f", str(project(tmp_path)))
    killer.join()
    assert code == 1
    assert one(report, "python.start")["evidence"]["case"] == "no-document"


@pytest.mark.parametrize("odd", ["a read-only container", "processes alone: no /proc/meminfo, no /proc/mounts"])
def test_what_is_not_there_is_not_asked(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], odd: str) -> None:
    name = lab.start("hook", PP, args=["--read-only" if "read-only" in odd else "--privileged"])
    if "processes" in odd:
        docker("exec", name, "mount", "-t", "proc", "-o", "subset=pid", "proc", "/proc")
    code, report = doctor(capsys, "-f", str(project(tmp_path)))
    assert code == 1 and is_right(report), report


def test_without_proc(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No /proc/self/maps nor anything else: Docker itself can't start a program there, and the finding says so."""
    name = lab.start("hook", PP, args=["--privileged"])
    docker("exec", name, "mount", "-t", "tmpfs", "none", "/proc")
    code, report = doctor(capsys, "-f", str(project(tmp_path)))
    assert code == 1
    assert "/proc/self" in one(report, "python.start")["seen"]


def test_texts_that_are_not_utf_8(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A variable, a metadata file and the name of a folder."""
    name = lab.start("hook", PP)
    site = "/venv/hook/lib/python3.11/site-packages"
    docker("exec", name, "sh", "-c", f"mkdir {site}/$(printf 'torch\\377-1.dist-info') {site}/torch-1.0.dist-info && "
           f"printf 'Name: torch\\nVersion: \\377\\376\\n' > {site}/torch-1.0.dist-info/METADATA")  # fmt: skip
    docker("exec", name, "sh", "-c", f'printf \'import os; os.environ["VLLM_X"] = "\\\\udcff"\\n\' > {site}/odd.pth')
    _, report = doctor(capsys, "-f", str(project(tmp_path)))
    assert is_right(report), report
    assert [f["severity"] for f in report["findings"] if f["check"] == "python.start"] == ["ok"]
