"""The program that runs a benchmark tool inside a container, with tools that go wrong; each is a script of Python."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from envgen.bench.client import BenchTarget
from envgen.bench.compare import MatrixCell
from envgen.bench.tools import BenchTool, Matrix
from envgen.engine.values import ExecResult
from envgen.errors import ServiceError
from envgen.inside import bench_tool

BOOK = "import sys, urllib.request; text = urllib.request.urlopen(sys.argv[1]).read(); "


NOWHERE = "http://127.0.0.1:9/metrics"


def run(program: str, *words: str, silence: float = 30, metrics: str = NOWHERE) -> dict[str, Any]:
    request = {"words": ["-c", program, *words], "book": "once upon a time", "silence": silence, "env": {}}
    return bench_tool.answer({"verb": "run", "metrics": metrics, **request})


def test_what_a_tool_wrote() -> None:
    program = BOOK + "open(sys.argv[2], 'wb').write(text); print('done')"
    found = run(program, "{book}", "{result}")
    assert (found["code"], found["result"], found["tail"]) == (0, "once upon a time", ["done"])


def test_what_the_server_and_the_gpu_told_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool asks the server for something, so the second reading of its counters is another one."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\ncase "$*" in *power.draw*--loop=1) echo "0, 61.5, [N/A], 0x4"; exec sleep 600 ;; esac\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    class CountedDrafts(http.server.BaseHTTPRequestHandler):
        asked = 0

        def do_GET(self) -> None:
            CountedDrafts.asked += 1
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"# HELP\nvllm:spec_decode_num_drafts_total %d.0\nother 1.0\n" % CountedDrafts.asked)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), CountedDrafts) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/metrics"
        program = (
            "import pathlib, sys, time; meter = pathlib.Path(sys.argv[1]).with_name('meter')\n"
            "while not meter.stat().st_size: time.sleep(0.05)"
        )
        found = run(program, "{result}", metrics=url)
        server.shutdown()
    assert found["meter"] == ["0, 61.5, [N/A], 0x4"]
    assert found["drafts"] == [["vllm:spec_decode_num_drafts_total 1.0"], ["vllm:spec_decode_num_drafts_total 2.0"]]
    assert run("pass")["drafts"] == [[], []]


def test_a_tool_that_hangs_is_killed_with_what_it_started() -> None:
    begin = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    found = run(begin, silence=3)
    assert found["code"] == -9
    (pid,) = found["tail"]
    status = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError):
        assert status.read_text().rpartition(")")[2].split()[0] == "Z"  # ended, and not yet asked how


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("print('v9')", "results of llama-benchy 0.9 at pp64 tg8 can't be read: .*\n  its last lines:\n    v9"),
        ("raise SystemExit('No such option: --tg')", "it ended with exit code 1\n  its last lines:\n    No such option"),
        ("import time; time.sleep(600)", "printed nothing for 2 s"),
    ],
)  # fmt: skip
def test_the_sentence_of_a_tool_that_goes_wrong(program: str, message: str) -> None:
    def execute(_argv: Any, stdin: bytes, _timeout: float) -> ExecResult:
        envelope = json.loads(stdin)
        answer = bench_tool.answer({**envelope["request"], "words": ["-c", program, "{result}"]})
        return ExecResult(0, f"{envelope['mark']} {json.dumps({'answer': answer})}\n".encode(), b"")

    plan, target = Matrix(runs=1, tool="llama-benchy"), BenchTarget("http://h", "m", silence=2)
    tool = BenchTool(plan, target, execute, "http://127.0.0.1:9", "/m", "here", "0.9")
    with pytest.raises(ServiceError, match=message):
        tool.measure(MatrixCell(8, 64))
