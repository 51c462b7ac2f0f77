"""What `envgen nodes push` takes to send one layer: python benchmarks/push.py CONTEXT CONTEXT IMAGE [MEGABYTES]

Both Docker contexts have IMAGE; the second is an ssh:// one. A layer of random bytes is put on it, and sent three ways
in one run: as bare bytes by ssh, by push, and by `docker save | docker load`. What was made is removed again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from envgen.app.push import push_image
from envgen.engine.docker import connect
from envgen.engine.endpoint import find_endpoint
from envgen.engine.forward import SshAddress

MADE = "envgen-benchmark-push:1"


def docker(context: str, *words: str) -> None:
    subprocess.run(["docker", "--context", context, *words], check=True, stdout=subprocess.DEVNULL)


def shell(line: str) -> None:
    subprocess.run(["sh", "-c", line], check=True, stdout=subprocess.DEVNULL)


def main(first: str, second: str, image: str, megabytes: int = 200) -> None:
    source, target = (connect({**os.environ, "DOCKER_CONTEXT": one}) for one in (first, second))
    script = f"head -c {megabytes}000000 /dev/urandom >/envgen-benchmark"
    docker(first, "run", "--name", "envgen-benchmark", "--entrypoint", "sh", image, "-c", script)
    docker(first, "commit", "envgen-benchmark", MADE)
    docker(first, "rm", "envgen-benchmark")
    made = source.image(MADE)
    assert made is not None
    host = SshAddress.parse(find_endpoint({**os.environ, "DOCKER_CONTEXT": second}).host)
    login = f"{host.user}@{host.host}" if host.user else host.host
    whole = f"docker --context {first} save {MADE} | docker --context {second} load"
    ways = {
        "the layer's bytes by ssh": lambda: shell(
            f"head -c {megabytes}000000 /dev/zero | ssh {login} 'cat >/dev/null'"
        ),
        "envgen nodes push": lambda: push_image(source, target, second, made, MADE, print, False),
        "docker save | docker load": lambda: shell(whole),
    }
    try:
        base = 0.0
        for what, way in ways.items():
            began = time.monotonic()
            way()
            took = time.monotonic() - began
            base = base or took
            print(f"{what:28}{took:8.1f} s {took / base:7.1f}x", flush=True)
            if what != next(iter(ways)):
                docker(second, "rmi", MADE)
    finally:
        docker(first, "rmi", MADE)


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:5]))
