"""What releases ask for before they can be built."""

from __future__ import annotations

import pytest

from envgen.patches.source import build_requires


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
