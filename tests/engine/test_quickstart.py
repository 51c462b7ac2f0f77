"""The README's first command, as it stands, with the envgen of this environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from envgen.engine.client import Engine

CHECKOUT = Path(__file__).parents[2]
# What a reader of the output must find, in this order.
SEEN = (
    "built quickstart:demo",
    "dev is ready",
    "flashinfer is /workspace/flashinfer/flashinfer/__init__.py",
    "the namespace-package trap",
    "removed fused_moe_120 (0.5.3/121a)",
    "container quickstart-demo-dev-1 removed",
    "built quickstart:cpu",
    "serve is ready",
    '"object":"text_completion"',
    "container quickstart-cpu-serve-1 removed",
)


def test_quickstart(engine: Engine) -> None:
    program = Path(sys.executable).with_name("envgen")
    done = subprocess.run(
        [CHECKOUT / "scripts" / "quickstart", "--envgen", program],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    place = 0
    for words in SEEN:
        found = done.stdout.find(words, place)
        assert found >= 0, f"{words!r} is missing, or in another order:\n{done.stdout[-6000:]}"
        place = found
    for part in ("demo", "cpu"):  # it cleans up
        assert engine.image(f"quickstart:{part}") is None
        assert not engine.containers(f"quickstart-{part}", all=True)
