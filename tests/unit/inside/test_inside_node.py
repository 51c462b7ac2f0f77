"""The program that looks at a machine of a cluster: what it reads from ib_write_bw, by that program's own form."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from envgen.inside import node

# As perftest 6 prints it; the line of numbers is of NVIDIA/dgx-spark-playbooks#108's healthy example.
REPORT = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : rocep1s0f1
 Number of qps   : 8            Transport type : IB
 Mtu             : 4096[B]
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      353098           0.00               92.57                0.176563
---------------------------------------------------------------------------------------
"""
REQUEST = {"ask": "write", "device": "rocep1s0f1", "gid": 3, "port": 40001, "address": "10.0.0.2", "seconds": 0.0}


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        (REPORT, 0, {"gbits": 92.57}),
        ("Couldn't connect\n", 1, {"error": "ib_write_bw ended with 1: Couldn't connect"}),
        ("", 0, {"error": "ib_write_bw ended with 0: "}),
    ],
)  # fmt: skip
def test_what_it_measured(text: str, code: int, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(words: list[str], **_: Any) -> Any:
        asked.append(words)
        return subprocess.CompletedProcess(words, code, text.encode())

    monkeypatch.setattr("subprocess.run", run)
    assert node.answer(dict(REQUEST)) == expected
    assert " ".join(asked[0]) == "ib_write_bw -d rocep1s0f1 -x 3 -p 40001 -q 8 -D 2 -F --report_gbits 10.0.0.2"
    node.answer({**REQUEST, "address": ""})
    assert asked[1] == asked[0][:-1]  # the end that waits


def test_a_measurement_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(words: list[str], **more: Any) -> Any:
        raise subprocess.TimeoutExpired(words, more["timeout"])

    monkeypatch.setattr("subprocess.run", hangs)
    assert node.answer(dict(REQUEST)) == {"error": "timed out"}
