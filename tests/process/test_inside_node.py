"""What the program for one machine of a cluster sees of RDMA devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.inside import node


def test_the_addresses_of_an_rdma_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = tmp_path / "rocep1s0f1/ports/1"
    gids = [
        ("IB/RoCE v1", "fe80:0000:0000:0000:0000:0000:0000:0001"),
        ("RoCE v2", "fe80:0000:0000:0000:0000:0000:0000:0001"),
        ("IB/RoCE v1", "0000:0000:0000:0000:0000:ffff:7f00:0102"),
        ("RoCE v2", "0000:0000:0000:0000:0000:ffff:7f00:0102"),
    ]
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / folder).mkdir(parents=True)
    for index, (kind, gid) in enumerate(gids):
        (port / "gids" / str(index)).write_text(gid + "\n")
        (port / "gid_attrs/types" / str(index)).write_text(kind + "\n")
        (port / "gid_attrs/ndevs" / str(index)).write_text("lo\n")
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
    monkeypatch.setattr(node, "RDMA", str(tmp_path))
    found = {
        "state": "4: ACTIVE", "rate": "200 Gb/sec (4X HDR)", "gids": [[3, "127.0.1.2", "127.0.0.0"]]
    }  # fmt: skip
    assert node.rdma_port("rocep1s0f1") == found
    (port / "gid_attrs/ndevs/3").write_text("gone\n")
    assert node.rdma_port("rocep1s0f1")["gids"] == [[3, "127.0.1.2", "127.0.1.2"]]
