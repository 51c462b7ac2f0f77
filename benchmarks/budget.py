"""What the small commands take, beside plain docker in turns: python benchmarks/budget.py [ROUNDS]

Needs a Docker Engine and the base image. Prints a Markdown table of medians, by the clock and of
CPU time, which a busy machine changes less; nothing is judged. The budget on two idle cores:
`--help` under 0.3 s, the others under 1 s.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

NAME = "envgenbudget"
ROOT = "/root/.cache/flashinfer"
OPS = f"{ROOT}/0.7.2.post1/121a/cached_ops"
ENVGEN = str(Path(sys.executable).parent / "envgen")
# As a user runs it: without bytecode, importing takes three times as long.
USUAL = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
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
# Run in the container: a cache of 300 modules as FlashInfer 0.7.2 lays them out, and a spare copy
# of one.
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
    done = subprocess.run(
        argv, input=stdin, text=True, capture_output=True, check=False, cwd=cwd, env=USUAL
    )
    if done.returncode:
        raise SystemExit(
            f"{' '.join(argv)}: exit code {done.returncode}\n{(done.stderr or done.stdout)[-2000:]}"
        )
    return done.stdout.strip()


@dataclass
class Taken:
    """Seconds of each run: by the clock, and of a core by the programs themselves (without the
    engine's).
    """

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def measured(
    contenders: Sequence[Sequence[str]], cwd: Path, rounds: int, before: Sequence[str] = ()
) -> list[Taken]:
    """What each takes, run in turns after one warm-up. ``before``: what is run, untimed, before
    each.
    """
    times = [Taken() for _ in contenders]
    for number in range(rounds + 1):
        for argv, taken in zip(contenders, times, strict=True):
            if before:
                run(before, cwd)
            start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            run(argv, cwd)
            seconds, now = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
            if number:
                taken.wall.append(seconds)
                taken.cpu.append(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime)
    return times


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    with tempfile.TemporaryDirectory(prefix=f"{NAME}-") as folder:
        cwd = Path(folder)
        (cwd / "envgen.yaml").write_text(PROJECT)
        try:
            run([ENVGEN, "render"], cwd)
            run([ENVGEN, "build"], cwd)
            run([ENVGEN, "up", "dev"], cwd)
            container = run(
                ["docker", "ps", "-q", "--filter", f"label=com.docker.compose.project={NAME}-demo"],
                cwd,
            )
            execute = ["docker", "exec", container]
            run(["docker", "exec", "-i", container, "python3", "-"], cwd, stdin=LAY)
            build = [
                "docker",
                "buildx",
                "build",
                "-q",
                "-f",
                "Dockerfile.demo",
                "-t",
                f"{NAME}:plain",
                ".",
            ]
            compose = ["docker", "compose", "-f", "compose/demo.yaml"]
            rows = [
                ("--help", [sys.executable, "-c", "import click"], ()),
                ("config", [*compose, "config"], ()),
                ("render --check", [*compose, "config"], ()),
                ("build", build, ()),
                ("status", [*compose, "ps"], ()),
                ("ps", [*compose, "ps"], ()),
                ("up dev", [*compose, "up", "-d", "dev"], ()),
                ("doctor", [*execute, "python3", "-c", "pass"], ()),
                (
                    "cache clear mod_0",
                    [*execute, "rm", "-rf", f"{OPS}/mod_0"],
                    [*execute, "sh", "-c", PUT_BACK],
                ),
            ]
            print(
                "| command | median, CPU | plain | median, CPU | ratio, CPU |\n| --- | --- | --- | --- | --- |"
            )
            for words, plain, before in rows:
                ours = [ENVGEN, *words.split()]
                mine, theirs = measured([ours, plain], cwd, rounds, before)
                label = " ".join(plain).replace(container, "C").replace(sys.executable, "python")
                cells = [
                    [statistics.median(one.wall), statistics.median(one.cpu)]
                    for one in (mine, theirs)
                ]
                shown = [f"{wall * 1000:.0f}, {cpu * 1000:.0f} ms" for wall, cpu in cells]
                ratio = ", ".join(f"{own / other:.1f}" for own, other in zip(*cells, strict=True))
                print(
                    f"| `envgen {words}` | {shown[0]} | `{label}` | {shown[1]} | {ratio} |",
                    flush=True,
                )
            if (
                container
                != run(["docker", "compose", "-f", "compose/demo.yaml", "ps", "-q", "dev"], cwd)[
                    :12
                ]
            ):
                raise SystemExit("`up` has made another container: it had something to do")
        finally:
            subprocess.run([ENVGEN, "down", "--volumes"], cwd=cwd, check=False, capture_output=True)
            images = [f"{NAME}:demo", f"{NAME}:plain"]
            subprocess.run(
                ["docker", "image", "rm", "-f", *images], check=False, capture_output=True
            )


if __name__ == "__main__":
    main()
