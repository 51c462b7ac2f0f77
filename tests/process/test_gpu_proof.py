"""scripts/gpu-proof-doctor on a machine without a GPU: it asks as doctor asks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu-proof-doctor"


def test_the_probe_answers_on_this_machine() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=60, check=True)
    document = json.loads(done.stdout)
    assert document["errors"] == [] and document["python"]["version"] == sys.version
    assert {cell["folder"] for cell in document["imports"]} == {"/", "/root"}  # whose home it is, is not told


def test_help_and_too_many_words() -> None:
    for words, code in ((["--help"], 0), (["a", "b"], 2)):
        done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False)
        assert done.returncode == code and "usage: scripts/gpu-proof-doctor" in done.stdout
