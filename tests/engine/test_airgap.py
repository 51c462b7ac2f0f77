"""Builds without any network (`--network=none`), from a folder of wheels: complete, and with one missing.

Also the lock of such a profile: it reads the wheelhouse, and the wheel folders of the base image's pip configuration.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from projects import BASE, Project, lean_base
from rendering import docker

PROFILE = """\
profiles:
  prod:
    mode: production
    base: {image: "BASE"}
    gpu: none
    pip: {tools: [airtool]}
    build: {ccache: false, wheelhouse: wheels}
    services: {web: {command: [sleep, infinity]}}
"""


def wheel(folder: Path, name: str, requires: str = "") -> Path:
    """A wheel of one module; returns its file."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "HERE = True\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as out:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            out.writestr(file, text)
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """airtool, what it requires, and uv, which a build installs."""
    folder = tmp_path_factory.mktemp("wheels")
    wheel(folder, "airtool", "Requires-Dist: airneed\n")
    wheel(folder, "airneed")
    pip = ("pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--dest", "/wheels", "uv")
    docker("run", "--rm", "-v", f"{folder}:/wheels", BASE, *pip)
    return folder


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project], wheels: Path) -> Project:
    found = make_project("envgentest-airgap", PROFILE.replace("BASE", BASE))
    shutil.copytree(wheels, found.root / "wheels")
    found.envgen("render")
    return found


@pytest.fixture
def without_need(wheels: Path) -> Iterator[None]:
    """One package is missing."""
    need = wheels / "airneed-1.0-py3-none-any.whl"
    content = need.read_bytes()
    need.unlink()
    yield
    need.write_bytes(content)


def build(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    """Plain Docker, without a network for any step; 150 s are for a busy machine, and end what retries for minutes."""
    common = ["buildx", "build", "--network=none", "--no-cache", "--load", "-t", f"{project.name}:prod"]
    return docker(*common, *words, str(project.root), check=False, timeout=150)


def test_a_complete_wheelhouse_is_enough(project: Project, wheels: Path) -> None:
    done = build(project, "--build-context", f"wheelhouse={wheels}")
    assert done.returncode == 0, done.stderr
    assert "no package index answers (pypi.org: " in done.stderr
    found = docker("run", "--rm", "--entrypoint", "python3", f"{project.name}:prod", "-c", "import airneed, airtool")
    assert found.returncode == 0


def test_a_package_that_is_missing_is_named(project: Project, wheels: Path, without_need: None) -> None:
    done = build(project, "--build-context", f"wheelhouse={wheels}")
    assert done.returncode != 0 and "airneed was not found in the provided package locations" in done.stderr


def test_without_wheels_the_first_package_is_named(project: Project) -> None:
    done = build(project)
    assert done.returncode != 0 and "No matching distribution found for uv" in done.stderr, done.stderr


def test_lock_reads_the_wheelhouse(project: Project, wheels: Path) -> None:
    project.envgen("lock")
    text = (project.root / "envgen.lock").read_text()
    for name in ("airtool", "airneed"):
        assert hashlib.sha256((wheels / f"{name}-1.0-py3-none-any.whl").read_bytes()).hexdigest() in text
    project.envgen("render")
    assert "built envgentest-airgap:prod" in project.envgen("build").out


def test_no_index_and_the_wheel_folders_of_the_base_image_are_obeyed(
    make_project: Callable[..., Project], wheels: Path, tmp_path: Path
) -> None:
    """As in a company's image. The index could be reached here: with no-index nobody asks it."""
    base = lean_base("envgentest-airbase:lean")
    conf = "[global]\\nno-index = true\\nfind-links = /opt/own\\n"
    lines = f"FROM {base}\nCOPY . /opt/own\nRUN printf '{conf}' >/etc/pip.conf\n"
    (tmp_path / "Dockerfile").write_text(lines)
    docker("build", "-q", "-t", "envgentest-airbase:own", "-f", str(tmp_path / "Dockerfile"), str(wheels))
    try:
        own = make_project(
            "envgentest-ownindex", PROFILE.replace("BASE", "envgentest-airbase:own").replace(", wheelhouse: wheels", "")
        )
        own.envgen("lock")
        own.envgen("render")
        assert "built envgentest-ownindex:prod" in own.envgen("build").out
        # six is on the index, but not in the folder.
        refused = own.envgen("build", "--unlocked", "--set", "pip.tools=[airtool, six]", code=None)
        assert refused.code and "six was not found in the provided package locations" in refused.err + refused.out
    finally:
        docker("image", "rm", "-f", "envgentest-airbase:own", "envgentest-airbase:lean", check=False)
