"""What releases ask for before they can be built. The excerpts are those of released pyproject.toml files."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from envgen.patches.source import build_requires, examine
from envgen.patches.wheel import File
from envgen.profile.load import load_project

TOP = Path(__file__).resolve().parents[3]
PROD = load_project(file=TOP / "envgen.yaml", environ={}, local=False).project.profiles["source"]
VLLM_0_33_0 = """\
[build-system]
# Should be mirrored in requirements/build/cuda.txt
requires = [
    "cmake>=3.26.1",
    "ninja",
    "packaging>=24.2",
    "setuptools>=77.0.3,<81.0.0",
    "setuptools-scm>=8.0",
    "setuptools-rust>=1.9.0",
    "torch == 2.14.0",
    "wheel",
    "jinja2",
]
build-backend = "setuptools.build_meta"

[project]
name = "vllm"
requires = ["not-of-the-build"]
"""


class Release:
    """A source at one version."""

    label, version = "vllm 0.33.0", "0.33.0"

    def __init__(self, *names: str, pyproject: str = VLLM_0_33_0) -> None:
        self.files = {name: File(b"") for name in names} | {"pyproject.toml": File(pyproject.encode())}

    def read(self, names: Collection[str]) -> dict[str, File]:
        return {name: self.files[name] for name in names if name in self.files}

    @property
    def names(self) -> set[str]:
        return set(self.files)


def examined(*names: str, pyproject: str = VLLM_0_33_0) -> tuple[list[Any], list[str]]:
    release: Any = Release(*names, pyproject=pyproject)
    return examine("vllm", PROD, release)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('[build-system]\nrequires = ["setuptools>=77", "packaging>=24", "apache-tvm-ffi>=0.1,<0.2"]\n',
         ["setuptools", "packaging", "apache-tvm-ffi"]),
        ("[build-system]\nrequires = ['setuptools_scm[toml]>=8', 'wheel']\n", ["setuptools-scm", "wheel"]),
        ('[project]\nrequires = ["x"]\n', []),
        ("", []),
    ],
)  # fmt: skip
def test_what_a_build_asks_for(text: str, names: list[str]) -> None:
    assert build_requires(text) == names


def test_a_script_that_a_bump_moved_is_named_with_its_new_path() -> None:
    """0.33.0 has use_existing_torch.py in tools/, and asks for setuptools-rust."""
    (problem,), (note,) = examined("tools/use_existing_torch.py")
    assert problem.message == "vllm 0.33.0 has no use_existing_torch.py, which sources.vllm.install.prepare runs"
    assert problem.hint == "sources: {vllm: {install: {prepare: [python3, tools/use_existing_torch.py]}}}"
    assert "asks for setuptools-rust: name it in sources.vllm.install.requires" in note


def test_what_is_named_or_protected_is_no_matter() -> None:
    text = VLLM_0_33_0.replace('    "setuptools-rust>=1.9.0",\n', "")
    assert examined("use_existing_torch.py", pyproject=text) == ([], [])
    (problem,), _ = examined()
    assert problem.hint == "take install.prepare out"
