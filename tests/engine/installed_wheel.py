"""What others install: the wheel, in an environment that holds nothing else, for a whole session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


def run(*argv: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run it; what it wrote is shown when it fails."""
    done = subprocess.run(
        [str(word) for word in argv], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program `envgen` of an environment that holds pip, the wheel and what that asks for."""
    work = tmp_path_factory.mktemp("wheel")
    uv = (sys.executable, "-m", "uv")
    certificates = {"UV_NATIVE_TLS": "true", "UV_SYSTEM_CERTS": "true"}
    # As a release is made: the source distribution first, and the wheel from that.
    run(*uv, "build", "-q", "--python", sys.executable, "--out-dir", work / "dist", CHECKOUT, cwd=work, **certificates)
    run(*uv, "venv", "-q", "--seed", "--python", sys.executable, work / "venv", cwd=work, **certificates)
    (wheel,) = (work / "dist").glob("envgen_vllm-*.whl")
    run(work / "venv" / "bin" / "python", "-m", "pip", "install", "-q", wheel, cwd=work)
    return work / "venv" / "bin" / "envgen"
