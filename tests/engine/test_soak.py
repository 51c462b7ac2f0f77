"""An hour of steady requests and of faults (soak.py). ENVGEN_SOAK_MINUTES and ENVGEN_SOAK_SEED change it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from cpu_server import CpuServer
from faulty_server import Faulty
from projects import docker
from soak import SERVICE, Soak, private_engine

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.last]

SPARE = {"MiB of the engine": 64, "MiB of .envgen": 32, "dockerd's handles": 8, "dockerd's sockets": 8, "MiB": 24}
SPARE |= {"handles": 8, "sockets": 8}  # of the process that watches, which connects again to a restarted engine


def test_an_hour_of_faults_leaves_a_server_and_nothing_else(cpu_server: CpuServer, tmp_path: Path) -> None:
    minutes, seed = os.environ.get("ENVGEN_SOAK_MINUTES", "60"), os.environ.get("ENVGEN_SOAK_SEED", "")
    chosen = int(seed) if seed else int(time.time())
    server = Faulty.described(cpu_server, SERVICE)
    soak = Soak(server, tmp_path, minutes=float(minutes), seed=chosen, engine=private_engine())
    try:
        soak.run()
    finally:
        docker("rm", "-f", server.container, check=False)
        cpu_server.write_local()
        print((tmp_path / "soak.log").read_text())  # the seed, and each fault
    assert not [one for one in soak.outcomes if one.failed]
    for before, after in [(soak.before, soak.after), soak.watched[:2], soak.watched[2:]]:
        more = {name: after[name] - before[name] for name in before if after}
        assert not {name: count for name, count in more.items() if count > SPARE.get(name, 0)}
