"""How long a server is away during an update: `envgen up --build --recreate` beside a pure start.

usage: python benchmarks/update.py [PAIRS]

Each pair starts the stopped server (`down`, `up`), then changes a package of the image and updates
the running server, which a probe asks for a completion all the time. See benchmarks/start_lab.py.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/engine"))
from start_lab import PORT, Lab, lab

SHIPPED = "llama-benchy==0.4.0"
VERSIONS = (f"{SHIPPED}, six==1.16.0", f"{SHIPPED}, six==1.17.0")
BODY = json.dumps({"model": "tiny", "prompt": "The capital", "max_tokens": 2}).encode()


def answers() -> bool:
    """Whether the server completes a prompt."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/completions", BODY, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Probe(threading.Thread):
    """Asks ten times a second until ``over`` is set; ``away``: the longest time without an answer
    in seconds.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over, self.away = threading.Event(), 0.0

    def run(self) -> None:
        """Ask and measure."""
        last = time.monotonic()
        while not self.over.wait(0.1):
            if answers():
                self.away = max(self.away, time.monotonic() - last)
                last = time.monotonic()


def update(made: Lab, package: str) -> float:
    """Seconds that the server was away."""
    path = made.root / "envgen.yaml"
    text = path.read_text()
    before = next(one for one in (*VERSIONS, SHIPPED) if f"tools: [{one}]" in text)
    path.write_text(text.replace(f"tools: [{before}]", f"tools: [{package}]"))
    made.envgen("lock")
    probe = Probe()
    probe.start()
    whole = made.envgen("up", "serve", "--build", "--recreate")
    time.sleep(1)
    probe.over.set()
    probe.join()
    print(f"  update: away {probe.away:.1f} s of {whole:.1f} s", flush=True)
    return probe.away


def main(arguments: list[str]) -> None:
    """Print each run and the ratio of the medians."""
    pairs = int(arguments[0]) if arguments else 3
    starts, away = list[float](), list[float]()
    with lab(1 << 20, 64 << 20) as made:
        made.envgen("up", "serve", "--yes")
        for pair in range(pairs):
            made.envgen("down")
            starts.append(made.envgen("up", "serve"))
            print(f"  start: {starts[-1]:.1f} s", flush=True)
            away.append(update(made, VERSIONS[pair % 2]))
    print(
        f"away during an update / a pure start = {median(away) / median(starts):.2f} ({pairs} pairs)"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
