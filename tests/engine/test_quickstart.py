"""The README's command, its half with a real vLLM: `scripts/quickstart cpu`, with the envgen of this environment."""

from __future__ import annotations

import re

import pytest
from cpu_server import Quickstart

from envgen.engine.client import Engine

# What a reader of the output must find, in this order.
SEEN = (
    r"built quickstart:cpu|quickstart:cpu is up to date",  # a run that was broken off has left the image
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
        found = re.compile(words).search(quickstart.printed, place)
        assert found, f"{words!r} is missing, or in another order:\n{quickstart.printed[-6000:]}"
        place = found.start()
    assert not root.exists()  # it cleans up
    assert engine.image("quickstart:cpu") is None
    assert not engine.containers("quickstart-cpu", all=True)
