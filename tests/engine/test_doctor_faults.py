"""`envgen doctor` on containers in which something is broken: one finding, no traceback, within a time limit."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import warnings
from pathlib import Path

import pytest
from doctor_lab import IMAGE, PP, Lab, docker, doctor, one, path_of, project
from doctor_lab import checkout as checkout
from doctor_lab import image as image
from doctor_lab import lab as lab

from envgen.cli import run as envgen
from envgen.doctor import collect

pytestmark = pytest.mark.engine

FAULTS = {
    "prints": ("warning", "something prints whenever Python starts"),
    "floods": ("error", "the probe could not be run"),
    "hangs": ("error", "an import hook hangs"),
    "exits": ("error", "an import hook kills Python"),
    "crashes": ("error", "an import hook kills Python"),
    "killed": ("error", "the probe was killed"),
    "sleeps": ("error", "the probe could not be run"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(collect, "TIMEOUT", 7)
    lab.start("hook", f"/faults/{fault}:{PP}")
    code, report = doctor(capsys, "-f", str(project(tmp_path)))
    severity, title = FAULTS[fault]
    found = one(report, "python.start", severity)
    assert found["title"] == title
    assert code == (1 if severity == "error" else 0)


def test_a_hook_that_raises(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start("hook", f"/faults/raises:{PP}")
    code = envgen(["doctor", "-f", str(project(tmp_path))])
    text = capsys.readouterr().out
    assert code == 1
    assert "flashinfer: looking for it fails" in text
    assert "\x1b[31m" not in text


def test_without_python(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = lab.start("hook", PP)
    docker("exec", name, "sh", "-c", "rm /venv/hook/bin/python3 /usr/bin/python3")
    code, report = doctor(capsys, "-f", str(project(tmp_path)))
    assert code == 1
    assert one(report, "python.start")["title"] == "the container has no python3"


PACKAGES = {
    "hangs": "while True: pass",
    "prints": "print('x' * 11000000)",
    "exits": "import sys; sys.exit(3)",
    "crashes": "import os; os.kill(os.getpid(), 11)",
    "latin": "print('h\\xe9llo')",
}


@pytest.mark.parametrize("kind", PACKAGES)
def test_a_package_that_can_not_be_imported_is_found_all_the_same(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Its import hangs, prints 11 MB, ends Python or crashes it. Doctor never imports it, so nothing happens."""
    folder = tmp_path / "package"
    (folder / "flashinfer").mkdir(parents=True)
    (folder / "flashinfer" / "__init__.py").write_bytes(PACKAGES[kind].encode("latin-1") + b"\n")
    name = lab.start("hook", f"/broken:{PP}")
    docker("cp", str(folder), f"{name}:/broken")
    _, report = doctor(capsys, "-f", str(project(tmp_path)))
    assert one(report, "import.truth")["evidence"]["case"] == "other-copy"
    assert [f["severity"] for f in report["findings"] if f["check"] == "python.start"] == ["ok"]


def test_killed_in_the_middle(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container goes away while the probe runs."""
    monkeypatch.setattr(collect, "TIMEOUT", 7)
    name = lab.start("hook", f"/faults/hangs:{PP}")
    killer = threading.Timer(1.0, lambda: subprocess.run(["docker", "kill", name], capture_output=True))
    killer.start()
    code, report = doctor(capsys, "-f", str(project(tmp_path)))
    killer.join()
    assert code == 1
    assert one(report, "python.start")["evidence"]["case"] == "no-document"


def start(lab: Lab, *args: str, variant: str = "hook") -> str:
    """A container of the lab with options of its own."""
    name = lab.start(variant, PP)
    docker("rm", "-f", name)
    labels = [
        word for label in ("project=PROJECT-dev", "service=dev") for word in ("--label", f"com.docker.compose.{label}")
    ]
    labels = [word.replace("PROJECT", name.rpartition("-")[0]) for word in labels]
    env = ["-e", f"PATH={path_of(variant)}", "-e", f"PYTHONPATH={PP}"]
    docker("run", "-d", "--init", "--network", "none", "--name", name, *labels, *env, *args, IMAGE)
    return name


def test_a_read_only_container(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(lab, "--read-only")
    code, report = doctor(capsys, "-f", str(project(tmp_path)))
    assert code == 0
    assert [f["severity"] for f in report["findings"] if f["check"] == "import.truth"] == ["ok"]


def test_without_most_of_proc(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Processes alone: no /proc/meminfo, no /proc/mounts."""
    name = start(lab, "--privileged")
    docker("exec", name, "mount", "-t", "proc", "-o", "subset=pid", "proc", "/proc")
    code, report = doctor(capsys, "-f", str(project(tmp_path)))
    assert code == 0, report
    assert [f["severity"] for f in report["findings"] if f["check"] == "import.truth"] == ["ok"]
    assert [f["severity"] for f in report["findings"] if f["check"] == "python.start"] == ["ok"]


def test_without_proc(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No /proc/self/maps nor anything else: Docker itself can't start a program there, and the finding says so."""
    name = start(lab, "--privileged")
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
    code, report = doctor(capsys, "-f", str(project(tmp_path)))
    assert code == 0, report
    assert [f["severity"] for f in report["findings"] if f["check"] == "python.start"] == ["ok"]


def python_3_8() -> Path | None:
    """A real Python 3.8 of this machine: pyenv's, uv's, or one on PATH."""
    places = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"]
    places.append(Path.home() / ".local" / "share" / "uv" / "python")
    for place in places:
        for program in sorted(place.glob("*3.8*/bin/python3.8")):
            return program.resolve()
    found = shutil.which("python3.8")
    return Path(found).resolve() if found and "shims" not in found else None


def test_python_3_8(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A real one where this machine has it; the stand-in is the base image's own Python, and the test says so."""
    real = python_3_8()
    if real is None:
        warnings.warn("no Python 3.8 here (pyenv or uv install it): the base image's own stands in", stacklevel=1)
        start(lab, variant="none")
    else:
        prefix = real.parent.parent
        name = start(lab, "-v", f"{prefix}:{prefix}:ro", variant="none")
        docker("exec", name, "sh", "-c", f"ln -sf {real} /venv/none/bin/python3 && rm /venv/none/pyvenv.cfg")
    _, report = doctor(capsys, "-f", str(project(tmp_path, variant="none")))
    (started,) = [f for f in report["findings"] if f["check"] == "python.start"]
    assert started["severity"] == "ok", started
    assert started["title"].startswith("Python 3.8." if real else "Python 3.")
    assert [f["severity"] for f in report["findings"] if f["check"] == "import.truth"] == ["ok"]
