"""What goes between the check and the start, where only Compose can see it."""

from __future__ import annotations

import pytest

from envgen.explain.read import cause_of

# What Docker 28.5 with runc 1.1 wrote for `docker compose up` and `docker compose start`.
RESTART = (
    "Error response from daemon: Cannot restart container c3118ffc939c: failed to create task for container: failed to "
    "create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during "
    'container init: error mounting "FOLDER" to rootfs at "/code/lib": stat FOLDER: no such file or directory'
)
START = 'Error response from daemon: invalid mount config for type "bind": bind source path does not exist: FOLDER/.git'
NETWORK = f"Error response from daemon: failed to set up container networking: network {'1c9f' * 16} not found"
LINES = {RESTART: "mount_source", START: "mount_source", NETWORK: "network_gone"}


@pytest.mark.parametrize(("line", "rule"), LINES.items())
def test_what_compose_says_has_its_cause(line: str, rule: str) -> None:
    cause = cause_of(["Container lab-dev-web-1  Starting", line], service=True)
    assert cause is not None and cause.rule == rule
