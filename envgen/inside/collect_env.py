"""Runs inside the container: FlashInfer's own report of its environment, `flashinfer collect-env --json`."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from typing import Any, Dict


def answer(request: Dict[str, Any]) -> Dict[str, Any]:
    """The report as FlashInfer prints it."""
    printed = io.StringIO()
    sys.argv = ["flashinfer", "collect-env", "--json"]
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        runpy.run_module("flashinfer", run_name="__main__", alter_sys=True)
    text = printed.getvalue()
    found: Dict[str, Any] = json.loads(text[text.index("{") :])
    return found
