"""A project for the benchmarks of starts: the real vLLM for CPUs, a tiny random model, and a
stand-in for the hub.

The hub sends the model, and a file of zeros that stands for its size, at a limited rate. The
package index is the machine's own, at its own speed. Needs a Docker Engine that is the benchmark's
alone (`scripts/engine --dir DIR up`):
its build cache is emptied.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hub_server import Hub, serve
from small_model import project_file

TOP = Path(__file__).resolve().parent.parent
NAME, PORT = "envgenbench", 8127


def docker(*words: str, stdin: bytes | None = None) -> str:
    """The output of a docker command. CalledProcessError if it fails."""
    return (
        subprocess.run(["docker", *words], check=True, capture_output=True, input=stdin)
        .stdout.decode()
        .strip()
    )


@dataclass
class Lab:
    """The project in ``root``. ``env``: what leads envgen to the hub."""

    root: Path
    env: dict[str, str]

    def envgen(self, *words: str) -> float:
        """Run a command; the seconds that it took. SystemExit with its output if it fails."""
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "envgen", *words], cwd=self.root, env=self.env, capture_output=True, text=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(
                f"envgen {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"[
                    -6000:
                ]
            )
        return time.monotonic() - began

    def forget(self) -> None:
        """As on a new machine: no container, image, build cache, lock or weights. The base image
        stays.
        """
        self.envgen("down", "--volumes")
        docker("image", "rm", "-f", f"{NAME}:prod")
        docker("builder", "prune", "-a", "-f")
        (self.root / "envgen.lock").unlink(missing_ok=True)
        shutil.rmtree(self.root / "huggingface", ignore_errors=True)


@contextlib.contextmanager
def lab(weights: int, rate: int) -> Iterator[Lab]:
    """A project whose model has ``weights`` bytes, at ``rate`` bytes per second. Everything is
    removed at the end.

    ``weights`` of 0: as many as take as long as the image's first build.
    """
    with tempfile.TemporaryDirectory() as folder, serve(Hub({})) as hub:
        root = Path(folder)
        (root / "envgen.yaml").write_text(project_file(NAME, PORT))
        gateway = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
        made = Lab(root, {**os.environ, "HF_ENDPOINT": f"http://{gateway}:{hub.port}"})
        built = made.envgen("build", "--unlocked")
        weights = weights or int(built) * rate
        maker = (TOP / "examples/quickstart/make_tiny_model.py").read_bytes()
        docker(
            "run",
            "--rm",
            "-i",
            "--entrypoint",
            "python3",
            "-v",
            f"{root}/models:/models",
            f"{NAME}:prod",
            "-",
            stdin=maker,
        )
        files = {path.name: path.read_bytes() for path in (root / "models/tiny").iterdir()}
        hub.files, hub.rate = {**files, "padding.bin": bytes(weights)}, rate
        try:
            yield made
        finally:
            made.forget()
