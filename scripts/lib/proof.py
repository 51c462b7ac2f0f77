"""What the proofs on real kernels share: steps that are noted, and envgen's agent, asked as in a container."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Proof:
    """The steps so far. A step that did not hold doesn't end the proof, it fails it."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def step(self, name: str, held: bool, **seen: object) -> None:
        """Note what was seen."""
        self.steps.append({"step": name, "held": bool(held), **seen})
        print(("held    " if held else "FAILED  ") + name, file=sys.stderr, flush=True)

    def end(self) -> int:
        """Print the document; 0 only if every step held."""
        good = all(entry["held"] for entry in self.steps)
        print(json.dumps({"held": good, "steps": self.steps}, indent=2))
        return 0 if good else 1


def ask_agent(python: str, root: Path, operation: str, **request: object) -> dict[str, Any]:
    """The cache's agent as a container would run it, in a Python of its own.

    Its stdin stays open while it works: the end of it means that nothing waits for the answer.
    """
    from envgen.engine.values import ExecResult
    from envgen.inside.run import NoAnswer, ask
    from envgen.jitcache.service import AGENT

    def execute(words: Sequence[str], stdin: bytes, _timeout: float) -> ExecResult:
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdin and child.stdout and child.stderr
            child.stdin.write(stdin)
            child.stdin.flush()
            out = child.stdout.read()
            err = child.stderr.read()
            child.stdin.close()
        return ExecResult(child.returncode, out, err)

    request = {"operation": operation, "root": str(root), **request}
    start = time.time()
    answer = ask(execute, python, AGENT, request, timeout=900)
    document = {"ok": False, "message": str(answer)} if isinstance(answer, NoAnswer) else dict(answer)
    document["seconds"] = round(time.time() - start, 3)
    return document
