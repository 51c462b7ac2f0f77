"""How long a server is away during `envgen upgrade` (kept, left) and `--back`, as ratios against
`envgen up --recreate` in the same run.

usage: python benchmarks/upgrade.py [ROUNDS]

The server is the small one of tests/support/toy_index.py, which takes eight seconds to start.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))
from local import free_port
from projects import docker, lean_base
from toy_index import index

BASE = "envgen-benchmark-upgrade-base:1"
TEXT = """\
version: 1
name: benchmark-upgrade
profiles:
  prod:
    mode: production
    base: {image: "BASE"}
    cuda: {arch_list: 12.1a}
    gpu: none
    pip: {extra_indexes: ["INDEX"], tools: [llama-benchy]}
    sources:
      toy:
        package: toyserver
        distribution: toyserver
        mount: /workspace/toy
        origin: {wheel: toyserver==1.0}
        install: {dependencies: true}
    services:
      serve:
        command: [python3, -m, toyserver]
        args: {port: 8000}
        env: {TOY_START: "8"}
        ports: ["127.0.0.1:PORT:8000"]
        ready: {port: 8000, model: test/toy, prompt: one}
"""
TRY = ("upgrade", "toy==1.1", "--yes", "--slower", "50")
CASES = {  # name -> command line, exit code, most of a plain restart's time
    "restart": (("up", "serve", "--recreate"), 0, 1.0),
    "left": (TRY, 1, 2.2),  # nobody agrees to keep it
    "kept": ((*TRY, "--keep"), 0, 1.2),
    "back": (("upgrade", "--back"), 0, 1.1),
}


class Probe(threading.Thread):
    """Asks twenty times a second; ``away``: the seconds without an answer, all together."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.over, self.away = url, threading.Event(), 0.0

    def run(self) -> None:
        """Ask and add up."""
        last = time.monotonic()
        while not self.over.wait(0.05):
            try:
                with urllib.request.urlopen(self.url, timeout=5):
                    is_there = True
            except OSError:
                is_there = False
            now = time.monotonic()
            self.away += 0.0 if is_there else now - last
            last = now


def away(root: Path, url: str, words: tuple[str, ...], code: int) -> float:
    """Seconds that the server is away while a command runs."""
    probe = Probe(url)
    probe.start()
    argv = [sys.executable, "-m", "envgen", *words]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False)
    probe.over.set()
    probe.join()
    if done.returncode != code:
        raise SystemExit(f"{words} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return probe.away


def main(arguments: list[str]) -> int:
    """Print the medians and ratios; 1 if one is too large."""
    rounds, port = int(arguments[0]) if arguments else 3, free_port()
    lean_base(BASE)
    gateway = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
    times: dict[str, list[float]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as top, index(Path(top) / "index", gateway) as address:
        root = Path(top) / "project"
        root.mkdir()
        text = TEXT.replace("BASE", BASE).replace("INDEX", address).replace("PORT", str(port))
        (root / "envgen.yaml").write_text(text)
        for words in (("lock",), ("up", "serve", "--yes")):
            subprocess.run([sys.executable, "-m", "envgen", *words], cwd=root, check=True)
        try:
            for _ in range(rounds):
                for name, (command, code, _most) in CASES.items():
                    url = f"http://127.0.0.1:{port}/v1/models"
                    times[name].append(away(root, url, command, code))
                    print(f"  {name}: away {times[name][-1]:.1f} s", flush=True)
        finally:
            subprocess.run([sys.executable, "-m", "envgen", "down"], cwd=root, check=False)
            names = [f"benchmark-upgrade:prod{tag}" for tag in ("", "-before", "-candidate")]
            docker("image", "rm", "-f", *names, BASE, check=False)
    plain, failed = median(times["restart"]), False
    for name, (_words, _code, most) in CASES.items():
        ratio = median(times[name]) / plain
        failed |= ratio > most
        print(f"{name}: {median(times[name]):.1f} s, {ratio:.2f} of a restart; at most {most}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
