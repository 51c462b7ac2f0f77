"""`envgen doctor` of a DGX Spark without an engine, as docs/doctor.md shows it: the figures are of public reports."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from envgen.cli import main
from envgen.deployment import host
from envgen.engine import box
from envgen.engine.client import Engine
from envgen.errors import EngineError

ROOT = Path(__file__).parents[3]
FILES = {
    "proc/sys/kernel/osrelease": "7.0.0-1019-nvidia\n",
    "proc/cmdline": "BOOT_IMAGE=/vmlinuz quiet splash\n",
    # What is not free is in processes: the report has no more of it.
    "proc/meminfo": "MemTotal: 127611904 kB\nMemFree: 98566144 kB\nAnonPages: 29045760 kB\n"
    "CmaTotal: 0 kB\nCmaFree: 10171187 kB\n",
}
PROJECT = """\
version: 1
name: spark
profiles: {prod: {mode: production, base: {image: "x:1"}, cuda: {arch_list: 12.1a}}}
"""
# 799 MHz and 19.5 W under load; after the power was gone, 2281 MHz and 92.5 W. How busy it was is not in the report.
STUCK = "NVIDIA GB10, 19.50, 799, 3003, [N/A], 96, 0x0000000000000000\n"
AFTER = "NVIDIA GB10, 92.50, 2281, 3003, [N/A], 96, 0x0000000000000000\n"


def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, **files: str) -> tuple[str, int]:
    """What `envgen doctor` prints of such a machine, and its exit code."""

    def gone(_environment: object) -> Engine:
        raise EngineError("no engine here")

    monkeypatch.setattr(host, "connect", gone)
    for name, text in {**FILES, "envgen.yaml": PROJECT, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(box, "_ask", lambda *argv: table if "clocks.sm" in " ".join(argv) else "")
    monkeypatch.setattr(box, "look", partial(box.look, tmp_path))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["doctor"], env={**os.environ, "NO_COLOR": "1"}, standalone_mode=False)
    machine, without, _ = done.output.partition("  FAIL  no Docker Engine\n")
    assert without, done.exception or done.output
    return machine, done.return_value


def test_a_sick_spark_is_shown_by_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, code = told(tmp_path, monkeypatch, STUCK)
    page = (ROOT / "docs/doctor.md").read_text("utf-8")
    assert f"```console\n$ envgen doctor\n{output}  ...\n```" in page, output
    assert code == 1


def test_the_same_spark_without_its_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, code = told(tmp_path, monkeypatch, AFTER, **{"proc/cmdline": "quiet kho=off\n"})
    assert "92 W, 2281 of 3003 MHz, 96 % busy" in output and "FAIL" not in output and code == 1
