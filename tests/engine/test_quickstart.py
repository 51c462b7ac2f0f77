"""The README's first command, as it stands, with the envgen of this environment."""

from __future__ import annotations

import pytest
from cpu_server import Quickstart

from envgen.engine.client import Engine

# What a reader of the output must find, in this order.
SEEN = (
    "built quickstart:demo",
    "dev is running",
    "flashinfer is /workspace/flashinfer/flashinfer/__init__.py",
    "the namespace-package trap",
    "removed fused_moe_120 (0.5.3/121a)",
    "container quickstart-demo-dev-1 removed",
    "built quickstart:cpu",
    "serve is ready",
    '"object":"text_completion"',
    "container quickstart-cpu-serve-1 removed",
)


@pytest.mark.last
def test_quickstart(engine: Engine, quickstart: Quickstart) -> None:
    """From its beginning to its end; what uses its server in between are the tests beside this one."""
    root = quickstart.reach().project.root
    assert quickstart.finish() == 0, quickstart.printed[-6000:]
    place = 0
    for words in SEEN:
        found = quickstart.printed.find(words, place)
        assert found >= 0, f"{words!r} is missing, or in another order:\n{quickstart.printed[-6000:]}"
        place = found
    assert not root.exists()  # it cleans up
    for part in ("demo", "cpu"):
        assert engine.image(f"quickstart:{part}") is None
        assert not engine.containers(f"quickstart-{part}", all=True)
