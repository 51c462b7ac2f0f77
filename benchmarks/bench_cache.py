"""cache list and cache clear against find and rm in the same container: python benchmarks/bench_cache.py

Needs a Docker Engine and the base image. A cache of 300 modules with 200 files each is laid into a volume; every clear
removes one module of 200 files, which is put back before the next round, outside of the timing.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from ratio import HEADER, Command, once, row

IMAGE = "nvcr.io/nvidia/pytorch:25.12-py3"
NAME = "envgenbenchcache"
VOLUME = f"{NAME}-demo-cache-flashinfer"
ROOT = "/root/.cache/flashinfer"
OPS = f"{ROOT}/0.7.2.post1/121a/cached_ops"
ROUNDS = 15
PROJECT = f"""\
version: 1
name: {NAME}
default_profile: demo
defaults:
  base: {{image: {IMAGE}}}
  cuda: {{arch_list: "12.1a"}}
  gpu: none
profiles:
  demo:
    mode: development
    dockerfile: Dockerfile.demo
    caches:
      flashinfer: {{path: {ROOT}, namespace: false}}
    services:
      dev:
        command: [sleep, infinity]
"""
# Run in the container: a cache as FlashInfer 0.7.2 lays it out, and a spare copy of one module.
LAY = f"""
import os, shutil
ops = {OPS!r}
os.makedirs(ops + "/tmp")
os.makedirs({ROOT!r} + "/0.7.2.post1/121a/generated/gen_mod_0")
for number in range(300):
    name = "mod_%d" % number
    folder = ops + "/" + name
    os.mkdir(folder)
    for file in ["%d.cuda.o" % i for i in range(196)] + [name + ".so", ".ninja_log", ".ninja_deps"]:
        with open(folder + "/" + file, "wb") as out:
            out.write(b"x" * 4096)
    source = {ROOT!r} + "/0.7.2.post1/121a/generated/gen_" + name + "/a.cu" if number == 0 else "/opt/csrc/a.cu"
    with open(folder + "/build.ninja", "w") as out:
        out.write("name = %s\\nbuild %s/a.o: cuda_compile %s\\n" % (name, folder, source))
    open(ops + "/tmp/" + name + ".lock", "w").close()
shutil.copytree(ops + "/mod_0", "/root/spare")
"""


def docker(*words: str, stdin: str = "") -> str:
    """Run docker; its failure ends the benchmark."""
    done = subprocess.run(["docker", *words], input=stdin, text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"docker {' '.join(words[:3])}: {done.stderr}")
    return done.stdout.strip()


def clear_row(clear: Command, bare: Command, container: str) -> str:
    """Alternate both, with the module put back before each."""

    put_back = f"rm -rf {OPS}/mod_0 && cp -a /root/spare {OPS}/mod_0 && sync"

    def timed(command: Command) -> float:
        docker("exec", container, "sh", "-c", put_back)
        return once(command)

    timed(clear), timed(bare)
    pairs = [(timed(clear), timed(bare)) for _ in range(ROUNDS)]
    by = statistics.median(mine / theirs for mine, theirs in pairs)
    mine, theirs = (statistics.median(column) * 1000 for column in zip(*pairs, strict=True))
    verdict = "yes" if by <= 1.5 else "**no**"
    return f"| `{clear.label}` | {mine:.0f} ms | {bare.label} | {theirs:.0f} ms | {by:.2f}x | 1.5x | {verdict} |"


def main() -> None:
    envgen = str(Path(sys.executable).parent / "envgen")
    label = "com.docker.compose"
    with tempfile.TemporaryDirectory(prefix="envgen-bench-") as folder:
        (Path(folder) / "envgen.yaml").write_text(PROJECT)
        container = docker("run", "-d", "--label", f"{label}.project={NAME}-demo", "--label", f"{label}.service=dev",
                           "-v", f"{VOLUME}:{ROOT}", "--entrypoint", "sleep", IMAGE, "infinity")  # fmt: skip
        try:
            docker("exec", "-i", container, "python3", "-", stdin=LAY)
            find = Command(
                "`docker exec C find -printf`",
                ["docker", "exec", container, "find", ROOT, "-printf", "%s %T@ %p\\n"],
            )
            listing = Command("envgen cache list", [envgen, "cache", "list"], cwd=Path(folder))
            rows = [row("`envgen cache list`, 300 modules x 200 files", listing, find, 2.5)]
            clear = Command("envgen cache clear mod_0", [envgen, "cache", "clear", "mod_0"], cwd=Path(folder))
            bare = Command("`docker exec C rm -rf` of it", ["docker", "exec", container, "rm", "-rf", f"{OPS}/mod_0"])
            rows.append(clear_row(clear, bare, container))
        finally:
            docker("rm", "-f", container)
            docker("volume", "rm", "-f", VOLUME)
    print("\n".join([HEADER, *rows]))


if __name__ == "__main__":
    main()
