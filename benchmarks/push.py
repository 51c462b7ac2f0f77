"""What `envgen nodes push` takes to send one layer: python benchmarks/push.py CONTEXT CONTEXT IMAGE [MEGABYTES]

Both Docker contexts have IMAGE; the second is an ssh:// one. A layer of random bytes is put on it, and sent in several
ways in one run; of all but the last, the best of three counts. What was made is removed again.

"`docker load` of that layer": the archive that push sends, from memory: what the other engine itself takes.
"an empty container": what the first engine takes to start the one that reads the layer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

from envgen.app.copy import End, archive
from envgen.app.push import push_image
from envgen.engine.client import connect
from envgen.engine.endpoint import SshAddress, find_endpoint
from envgen.profile.model import Machine

MADE = "envgen-benchmark-push:1"


def docker(context: str, *words: str) -> None:
    subprocess.run(["docker", "--context", context, *words], check=True, stdout=subprocess.DEVNULL)


def shell(line: str, data: bytes = b"") -> None:
    subprocess.run(["sh", "-c", line], input=data, check=True, stdout=subprocess.DEVNULL)


def main(first: str, second: str, image: str, megabytes: int = 200) -> None:
    source, target = (
        End(one, Machine(address="", interface="", context=one), connect({**os.environ, "DOCKER_CONTEXT": one}))
        for one in (first, second)
    )
    script = f"head -c {megabytes}000000 /dev/urandom >/envgen-benchmark"
    docker(first, "run", "--name", "envgen-benchmark", "--entrypoint", "sh", image, "-c", script)
    docker(first, "commit", "envgen-benchmark", MADE)
    docker(first, "rm", "envgen-benchmark")
    made = source.engine.image(MADE)
    assert made is not None
    layer = b"".join(archive(source, target, made, MADE, MADE, "python3", len(made.layers) - 1))
    host = SshAddress.parse(find_endpoint({**os.environ, "DOCKER_CONTEXT": second}).host)
    login = f"{host.user}@{host.host}" if host.user else host.host
    aside = "f=$(mktemp -p /var/tmp); cat >$f; sync $f; rm $f"
    ways: dict[str, Callable[[], object]] = {
        "the layer's bytes by ssh": lambda: shell(f"ssh {login} '{aside}'", layer),
        "`docker load` of that layer": lambda: target.engine.load_image(iter([layer])),
        "an empty container": lambda: docker(first, "run", "--rm", "--entrypoint", "true", image),
        "envgen nodes push": lambda: push_image(source, target, made, MADE, "python3", False),
        "docker save | docker load": lambda: shell(
            f"docker --context {first} save {MADE} | docker --context {second} load"
        ),
    }
    base = 0.0
    try:
        for what, way in ways.items():
            took = []
            for _ in range(1 if what.startswith("docker") else 3):
                began = time.monotonic()
                way()
                took.append(time.monotonic() - began)
                if target.engine.image(MADE):
                    docker(second, "rmi", MADE)
            base = base or min(took)
            print(f"{what:28}{min(took):8.1f} s {min(took) / base:7.1f}x   load {os.getloadavg()[0]:.0f}", flush=True)
    finally:
        docker(first, "rmi", MADE)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:5]))
