"""cache why and clear on the real FlashInfer, against sha256sum and FlashInfer's own clear-cache.

Needs a Docker Engine and the image that `pytest tests/engine/test_cache_real.py` builds (FlashInfer 0.5.3, nvcc, and
`page` and `rope` compiled for 12.1a). Run: python benchmarks/bench_cache_real.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from ratio import HEADER, Command, row

NAME = "envgenbenchreal"
VOLUME = f"{NAME}-demo-cache-flashinfer"
ROOT = "/root/.cache/flashinfer"
OPS = f"{ROOT}/0.5.3/121a/cached_ops"
PROJECT = f"""\
version: 1
name: {NAME}
default_profile: demo
defaults:
  base: {{image: "nvcr.io/nvidia/pytorch:25.12-py3"}}
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
# Every file that ninja's record names for both modules: what `why` hashes.
FILES = (
    f"cd {OPS} && ninja -f page/build.ninja -t deps | sed -n 's/^ \\+//p' | sort -u > /tmp/files && wc -l < /tmp/files"
)


def docker(*words: str) -> str:
    """Run docker; its failure ends the benchmark."""
    done = subprocess.run(["docker", *words], text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"docker {' '.join(words[:3])}: {done.stderr}")
    return done.stdout.strip()


def image() -> str:
    found = docker("images", "-q", "envgen-test-jit-lab").splitlines()
    if not found:
        raise SystemExit("the image is not here: run `pytest tests/engine/test_cache_real.py` once")
    return found[0]


# What the container's processes have computed so far, in nanoseconds (cgroup 1) or microseconds (cgroup 2).
CPU = "cat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null || sed -n 's/^usage_usec //p;1q' /sys/fs/cgroup/cpu.stat"


def cpu_seconds(container: str) -> float:
    """Of all its processes together. Other work on the machine does not count, as it would in time on the clock."""
    used = float(docker("exec", container, "sh", "-c", CPU))
    return used / (1e9 if docker("exec", container, "sh", "-c", "ls /sys/fs/cgroup").find("cpuacct") >= 0 else 1e6)


def rebuilds(container: str, envgen: str, folder: str) -> str:
    """Both modules are wanted again: after `clear page` one is compiled, after clear-cache both."""

    def build() -> float:
        before = cpu_seconds(container)
        docker("exec", container, "python3", "/build.py", "page", "rope")
        return cpu_seconds(container) - before

    words = [envgen, "cache", "clear", "page", "--version", "0.5.3"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    mine = build()
    docker("exec", container, "python3", "-m", "flashinfer", "clear-cache")
    theirs = build()
    verdict = "yes" if mine <= theirs else "**no**"
    what = "CPU to have `page` and `rope` again after `envgen cache clear page`"
    times = f"{mine:.1f} s | after FlashInfer's `clear-cache` | {theirs:.1f} s"
    return f"| {what} | {times} | {mine / theirs:.2f}x | 1x | {verdict} |"


def main() -> None:
    envgen = str(Path(sys.executable).parent / "envgen")
    label = "com.docker.compose"
    with tempfile.TemporaryDirectory(prefix="envgen-bench-") as folder:
        (Path(folder) / "envgen.yaml").write_text(PROJECT)
        path = "PATH=/venv/wheel/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        labels = ["--label", f"{label}.project={NAME}-demo", "--label", f"{label}.service=dev"]
        options = ["--init", "--network", "none", *labels, "-v", f"{VOLUME}:{ROOT}", "-e", path]
        container = docker("run", "-d", *options, image())
        try:
            docker("exec", container, "cp", "-a", "/prebuilt/.", ROOT)
            count = docker("exec", container, "sh", "-c", FILES)
            plain = Command(
                "`docker exec C sha256sum` of the same files",
                ["docker", "exec", container, "sh", "-c", "xargs sha256sum < /tmp/files"],
            )
            baseline = [envgen, "cache", "baseline", "page", "rope", "--version", "0.5.3"]
            subprocess.run(baseline, cwd=folder, check=True, capture_output=True)
            why = Command("why", [envgen, "cache", "why", "page", "rope", "--version", "0.5.3"], cwd=Path(folder))
            print(HEADER)
            print(row(f"`envgen cache why page rope`, {count} files", why, plain, 3.0), flush=True)
            print(rebuilds(container, envgen, folder))
        finally:
            docker("rm", "-f", container)
            docker("volume", "rm", "-f", VOLUME)


if __name__ == "__main__":
    main()
