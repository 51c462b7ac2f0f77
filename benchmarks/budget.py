"""What the small commands take, with plain docker beside them: python benchmarks/budget.py [ROUNDS]

Needs a Docker Engine and the base image. Prints a Markdown table of medians; nothing is judged. The budget (two idle
cores): `--help` under 0.3 s, everything else here under 1 s.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

NAME = "envgenbudget"
ROOT = "/root/.cache/flashinfer"
OPS = f"{ROOT}/0.7.2.post1/121a/cached_ops"
ENVGEN = str(Path(sys.executable).parent / "envgen")
PROJECT = f"""\
version: 1
name: {NAME}
profiles:
  demo:
    mode: development
    base: {{image: "nvcr.io/nvidia/pytorch:25.12-py3"}}
    cuda: {{arch_list: "12.1a"}}
    gpu: none
    dockerfile: Dockerfile.demo
    caches:
      flashinfer: {{path: {ROOT}, namespace: false}}
    services:
      dev: {{command: [sleep, infinity]}}
"""
# Run in the container: a cache of 300 modules as FlashInfer 0.7.2 lays them out, and a spare copy of one.
LAY = f"""
import os, shutil
ops = {OPS!r}
os.makedirs(ops + "/tmp")
for number in range(300):
    name = "mod_%d" % number
    folder = ops + "/" + name
    os.mkdir(folder)
    for file in ["%d.cuda.o" % i for i in range(196)] + [name + ".so", ".ninja_log", ".ninja_deps"]:
        with open(folder + "/" + file, "wb") as out:
            out.write(b"x" * 4096)
    with open(folder + "/build.ninja", "w") as out:
        out.write("name = %s\\nbuild %s/a.o: cuda_compile /opt/csrc/a.cu\\n" % (name, folder))
    open(ops + "/tmp/" + name + ".lock", "w").close()
shutil.copytree(ops + "/mod_0", "/root/spare")
"""
PUT_BACK = f"rm -rf {OPS}/mod_0 && cp -a /root/spare {OPS}/mod_0"


def run(argv: Sequence[str], cwd: Path, *, stdin: str = "") -> str:
    """Its output; a failure ends the benchmark."""
    done = subprocess.run(argv, input=stdin, text=True, capture_output=True, check=False, cwd=cwd)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: exit code {done.returncode}\n{(done.stderr or done.stdout)[-2000:]}")
    return done.stdout.strip()


def medians(contenders: Sequence[Sequence[str]], cwd: Path, rounds: int, before: Sequence[str] = ()) -> list[float]:
    """Median seconds of each, run in turns after one warm-up. ``before``: what is run, untimed, before each."""
    times: list[list[float]] = [[] for _ in contenders]
    for number in range(rounds + 1):
        for argv, taken in zip(contenders, times, strict=True):
            if before:
                run(before, cwd)
            start = time.perf_counter()
            run(argv, cwd)
            if number:
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    with tempfile.TemporaryDirectory(prefix=f"{NAME}-") as folder:
        cwd = Path(folder)
        (cwd / "envgen.yaml").write_text(PROJECT)
        try:
            run([ENVGEN, "render"], cwd)
            run([ENVGEN, "build"], cwd)
            run([ENVGEN, "up", "dev"], cwd)
            container = run(["docker", "ps", "-q", "--filter", f"label=com.docker.compose.project={NAME}-demo"], cwd)
            execute = ["docker", "exec", container]
            run(["docker", "exec", "-i", container, "python3", "-"], cwd, stdin=LAY)
            build = ["docker", "buildx", "build", "-q", "-f", "Dockerfile.demo", "-t", f"{NAME}:plain", "."]
            rows = [
                ("--help", [sys.executable, "-c", "import click"], ()),
                ("render", [], ()),
                ("build", build, ()),
                ("ps", ["docker", "compose", "-p", f"{NAME}-demo", "ps"], ()),
                ("doctor", [*execute, "python3", "-c", "pass"], ()),
                ("cache clear mod_0", [*execute, "rm", "-rf", f"{OPS}/mod_0"], [*execute, "sh", "-c", PUT_BACK]),
            ]
            print("| command | median | plain | median |\n| --- | --- | --- | --- |")
            for words, plain, before in rows:
                ours = [ENVGEN, *words.split()]
                mine, *theirs = medians([ours, plain] if plain else [ours], cwd, rounds, before)
                label = " ".join(plain).replace(container, "C").replace(sys.executable, "python")
                beside = f"`{label}` | {theirs[0] * 1000:.0f} ms" if theirs else " | "
                print(f"| `envgen {words}` | {mine * 1000:.0f} ms | {beside} |", flush=True)
        finally:
            subprocess.run([ENVGEN, "down", "--volumes"], cwd=cwd, check=False, capture_output=True)
            images = [f"{NAME}:demo", f"{NAME}:plain"]
            subprocess.run(["docker", "image", "rm", "-f", *images], check=False, capture_output=True)


if __name__ == "__main__":
    main()
