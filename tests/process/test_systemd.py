"""`envgen export systemd`: what systemd itself says of the unit."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest
from projects import Project

from envgen.app.stay import notify_ready

FILE = """\
version: 1
name: lab
default_profile: prod
profiles:
  prod:
    mode: production
    base: {image: "base:1"}
    cuda: {arch_list: "12.1a"}
    gpu: none
    services: {serve: {command: [web], ready: {timeout: 40m}}, other: {command: [web]}}
    variants: {fast: {description: x, env: {B: "1"}}}
"""


def made(folder: Path) -> Project:
    folder.mkdir()
    (folder / "envgen.yaml").write_text(FILE)
    return Project(folder, "lab")


def verified(unit: Path) -> str:
    """What `systemd-analyze verify` has to say: nothing."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    mine = [line for line in done.stderr.splitlines() if unit.name in line]  # not of the machine's other units
    return "\n".join(mine) + ("" if done.returncode == 0 or not mine else f"\n{done.returncode}")


@pytest.mark.parametrize("name", ["plain", "with blank", "100%n $HOME", 'it\'s "quoted"'])
def test_systemd_takes_the_unit(tmp_path: Path, name: str) -> None:
    project = made(tmp_path / name)
    project.envgen("export", "systemd", "serve", "--variant", "fast", "-o", "lab-serve.service")
    unit = project.root / "lab-serve.service"
    text = unit.read_text()
    start = '"up" "serve" "--profile" "prod" "--variant" "fast" "--stay"\n'
    assert start in text and '"stop" "serve" "--profile" "prod"' in text
    # `up --stay` ends when the server has ended by itself: the unit fails, and starts it again.
    assert "Type=notify\n" in text and "Restart=on-failure\n" in text and "RemainAfterExit" not in text
    assert "TimeoutStartSec=3000s" in text and "After=docker.service network-online.target" in text
    assert f"WorkingDirectory={str(project.root).replace('%', '%%')}\n" in text
    assert verified(unit) == ""


def test_the_unit_asks_the_engine_that_its_writer_asks(tmp_path: Path) -> None:
    """Podman's socket, or a rootless Docker's, which nothing tells a unit of the machine."""
    project, unit = made(tmp_path / "x"), tmp_path / "x/lab-serve.service"
    address = "unix:///run/user/1000/100%/podman.sock"
    unset = {"DOCKER_CONTEXT": "", "DOCKER_CONFIG": ""}
    project.envgen("export", "systemd", "-o", unit.name, env={**unset, "DOCKER_HOST": address})
    assert 'Environment="DOCKER_HOST=unix:///run/user/1000/100%%/podman.sock"\n' in unit.read_text()
    assert "DOCKER_CONTEXT" not in unit.read_text() and verified(unit) == ""


def test_the_unit_starts_what_was_exported(tmp_path: Path) -> None:
    """The same file, values and variables: without them, another server would start with the machine."""
    project = made(tmp_path / "x")
    (project.root / "envgen.yaml").rename(project.root / "second.yaml")
    (project.root / "sub").mkdir()
    words = ("--set", "services.serve.env.A=a b", "--set", "ipc=host", "-o", "lab-serve.service")
    variables = {"ENVGEN_BUILD__MAX_JOBS": "3", "ENVGEN_MEMORY_FLOOR": "4GiB", "ENVGEN_OTHER": "x"}
    project.envgen("export", "systemd", "serve", "-f", "sub/../second.yaml", *words, env=variables)
    text = (project.root / "lab-serve.service").read_text()
    options = f'"--file" "{project.root}/second.yaml" "--set" "services.serve.env.A=a b" "--set" "ipc=host"'
    for verb in ("up", "stop"):
        assert f'"{verb}" "serve" "--profile" "prod" {options}' in text
    assert 'Environment="ENVGEN_BUILD__MAX_JOBS=3"\nEnvironment="ENVGEN_MEMORY_FLOOR=4GiB"\nExecStart' in text
    assert verified(project.root / "lab-serve.service") == ""


def test_a_file_of_somebody_else_stays(tmp_path: Path) -> None:
    project = made(tmp_path / "x")
    (project.root / "serve.service").write_text("[Unit]\n")
    printed = project.envgen("export", "systemd", "-o", "serve.service", code=6).err
    assert "was not written by `envgen export`" in printed


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path: Path, abstract: bool) -> None:
    path = f"\0envgen-{tmp_path}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(path)
        notify_ready("web is ready", {"NOTIFY_SOCKET": path.replace("\0", "@")})
        assert notify.recv(100) == b"READY=1\nSTATUS=web is ready\n"
    for other in ({}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}):
        notify_ready("web is ready", other)
