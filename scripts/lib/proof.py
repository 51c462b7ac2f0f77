"""What the proofs on real kernels share: steps that are noted, and envgen's agent, asked as in a container."""

import json
import subprocess
import sys
import time
from pathlib import Path


class Proof:
    """The steps so far. A step that did not hold doesn't end the proof, it fails it."""

    def __init__(self) -> None:
        self.steps: list = []

    def step(self, name: str, held: bool, **seen: object) -> None:
        """Note what was seen."""
        self.steps.append({"step": name, "held": bool(held), **seen})
        print(("held    " if held else "FAILED  ") + name, file=sys.stderr, flush=True)

    def end(self) -> int:
        """Print the document; 0 only if every step held."""
        good = all(entry["held"] for entry in self.steps)
        print(json.dumps({"held": good, "steps": self.steps}, indent=2))
        return 0 if good else 1


def ask_agent(python: str, root: Path, operation: str, **request: object) -> dict:
    """envgen's agent as a container would run it: one text on stdin of an isolated Python, one JSON document.

    Its stdin stays open while it works: the end of it means that nobody waits for the answer.
    """
    from envgen.jitcache.bundle import FLAGS, program

    request = {"operation": operation, "root": str(root), "python": python, **request}
    start = time.time()
    words = [python, *FLAGS]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.stdin.write(program(request))
        child.stdin.flush()
        out = child.stdout.read()
        err = child.stderr.read()
        child.stdin.close()
    try:
        document = json.loads(out)
    except ValueError:
        document = {"ok": False, "message": err.decode()[-2000:]}
    document["seconds"] = round(time.time() - start, 3)
    return document
