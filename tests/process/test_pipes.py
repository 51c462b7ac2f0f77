"""What becomes of results whose reader has left, as in `envgen ... | head`."""

from __future__ import annotations

import os
import subprocess
import sys


def test_a_reader_that_left_is_no_failure() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        argv = [sys.executable, "-m", "envgen", "recipe", "list"]
        done = subprocess.run(argv, stdout=writer, stderr=subprocess.PIPE, timeout=120)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
