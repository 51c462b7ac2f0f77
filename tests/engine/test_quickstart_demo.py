"""The README's command, its half with mounted sources: `scripts/quickstart demo`, with this environment's envgen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from projects import docker, forget

from envgen.engine.client import Engine

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

SCRIPT = Path(__file__).parents[2] / "scripts" / "quickstart"
# What a reader of the output must find, in this order.
SEEN = (
    "built quickstart:demo",
    "dev is running",
    "flashinfer is /workspace/flashinfer/flashinfer/__init__.py",
    "the namespace-package trap",
    "removed fused_moe_120 (0.5.3/121a)",
    "container quickstart-demo-dev-1 removed",
)


def test_mounted_sources_doctor_and_cache(engine: Engine) -> None:
    forget("quickstart-demo")
    envgen = Path(sys.executable).with_name("envgen")
    done = subprocess.run(
        [SCRIPT, "demo", "--envgen", envgen], env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    printed = done.stdout
    assert done.returncode == 0, printed[-6000:]
    assert re.search(".*".join(map(re.escape, SEEN)), printed, re.DOTALL), printed[-6000:]
    assert engine.image("quickstart:demo") is None  # it cleans up
    assert not engine.containers("quickstart-demo", all=True)
    assert docker("images", "-q", "--filter", "dangling=true", "--filter", "label=dev.envgen.project=quickstart") == ""
