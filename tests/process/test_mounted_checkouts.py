"""envgen-install with real virtual environments and git, without a container: checkouts as people have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from patch_sources import TOP

from envgen.engine.git import git

DOCKER = TOP / "docker/runtime"


class Container:
    """A home as /opt/envgen is in an image, whose Python is the virtual environment that runs the tests."""

    def __init__(self, folder: Path) -> None:
        self.home, self.overlay = folder / "home", folder / "env"
        for name in ("bin", "lib"):
            (self.home / name).mkdir(parents=True)
        self.overlay.mkdir()
        (self.home / "bin/base-python").symlink_to(sys.executable)
        (self.home / "overlay.key").write_text("1")
        (self.home / "lib/pip-install").write_text((DOCKER / "lib/pip-install").read_text())
        self.script = self.home / "bin/envgen-install"
        text = (DOCKER / "bin/envgen-install").read_text()
        self.script.write_text(text.replace('HOME = "/opt/envgen"', f"HOME = {str(self.home)!r}"))

    def run(self, *words: str, **source: Any) -> subprocess.CompletedProcess[str]:
        plain = {"requires": [], "env": {}, "prepare": [], "dependencies": False, "install_options": [],
                 "precompiled": {}, "binaries": "", "wheel": ""}  # fmt: skip
        (self.home / "sources.json").write_text(json.dumps({"sources": [{**plain, **source}] if source else []}))
        env = {**os.environ, "VIRTUAL_ENV": str(self.overlay), "MAX_JOBS": "1", "PYTHONPATH": ""}
        command = [sys.executable, str(self.script), *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)

    def python(self, code: str) -> str:
        words = [str(self.overlay / "bin/python"), "-c", code]
        return str(subprocess.run(words, capture_output=True, text=True, check=True, cwd="/").stdout).strip()


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def checkout(folder: Path, package: str, tag: str, pyproject: str = "") -> Path:
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text("")
    (folder / "pyproject.toml").write_text(pyproject)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"], *([["tag", tag]] if tag else [])):
        git(words, cwd=folder)
    return folder


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="the tests run in no virtual environment")
def test_a_base_whose_python_is_a_virtual_environment(container: Container) -> None:
    """The overlay sees its packages, and its console scripts run the Python that sees both."""
    assert container.run().returncode == 0
    assert Path(container.python("import hypothesis; print(hypothesis.__file__)")).is_relative_to(sys.prefix)
    assert container.python("import sys; print(sys.prefix)") == str(container.overlay)
    script = container.overlay / "bin/hypothesis"
    assert f"exec {container.overlay}/bin/python {sys.prefix}/bin/hypothesis" in script.read_text()
    assert subprocess.run([script, "--help"], capture_output=True, check=True).stdout
    script.write_text("#!/bin/sh\n# of a mounted checkout\n")
    container.run()
    assert "of a mounted checkout" in script.read_text()


def wheel(folder: Path, version: str) -> str:
    folder.mkdir(parents=True)
    path = folder / f"vllm-{version}-cp38-abi3-manylinux_2_31_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"vllm-{version}.dist-info/RECORD", "")
    return str(folder)


def test_binaries_of_another_release_are_refused_before_anything_is_written(
    container: Container, tmp_path: Path
) -> None:
    mount = checkout(tmp_path / "vllm", "vllm", "v0.32.0", "[build-system]\nrequires = [ 'not-there' ]\n")
    source = {"name": "vllm", "package": "vllm", "distribution": "vllm", "mount": str(mount)}
    binaries = {"wheel": wheel(tmp_path / "wheels", "0.33.0"), "binaries": "vllm==0.33.0"}
    done = container.run("vllm", **source, **binaries)
    assert done.returncode == 1
    assert "the checkout is of v0.32.0, but `binaries` are 0.33.0" in done.stderr
    assert "sources: {vllm: {binaries: vllm==0.32.0}}" in done.stderr and "Traceback" not in done.stderr
    assert git(["status", "--short"], cwd=mount).text == ""
    done = container.run("--force", "vllm", **source, **binaries)
    assert "vllm: installing from" in done.stderr


def test_flashinfer_without_its_version_file_gets_the_wheels_version(container: Container, tmp_path: Path) -> None:
    """A source archive lacks version.txt, and FlashInfer's own build then says 0.0.0+unknown."""
    pyproject = (
        "[build-system]\nrequires = ['not-there']\n[tool.setuptools.dynamic]\nversion = {attr='x._build_meta.v'}\n"
    )
    mount = checkout(tmp_path / "fi", "flashinfer", "", pyproject)
    watch = "import pathlib; assert pathlib.Path('version.txt').read_text() == '0.33.0\\n'; print('seen')"
    source = {"name": "fi", "package": "flashinfer", "distribution": "flashinfer-python", "mount": str(mount)}
    (container.home / "lib/with-index").write_text(f'#!/bin/sh\ncd {mount} && exec {sys.executable} -c "{watch}"\n')
    (container.home / "lib/with-index").chmod(0o755)
    done = container.run("fi", **source, wheel=wheel(tmp_path / "wheels", "0.33.0"), requires=["x"])
    assert "gets the wheel's version, 0.33.0" in done.stderr and "seen" in done.stdout
    assert git(["status", "--short"], cwd=mount).text == ""


def test_a_build_requirement_is_met_by_what_python_imports(tmp_path: Path) -> None:
    """Debian's setuptools lies behind that of pip on the path; the first one counts, as in an import."""
    for name, version in (("first", "80.10"), ("second", "68.1")):
        info = tmp_path / name / f"kit-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kit\nVersion: {version}\n")
    (tmp_path / "pyproject.toml").write_text("[build-system]\nrequires = ['kit>=77']\nbuild-backend = 'none'\n")
    words = [sys.executable, str(DOCKER / "lib/pip-install"), "--for", "x", "--needs", str(tmp_path)]
    for order, code in ((("first", "second"), 0), (("second", "first"), 1)):
        path = os.pathsep.join(str(tmp_path / name) for name in order)
        done = subprocess.run(
            words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
        assert (done.returncode, "Traceback" in done.stderr) == (code, bool(code)), done.stderr  # it looks for uv
