"""smoke against servers that go wrong: one clear sentence each, and what was measured is kept.

The server is a stand-in on loopback (fault_server.py); envgen runs as a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import forked
import pytest
from fault_server import fault_server

from envgen.bench.client import find
from envgen.errors import ServiceError


def start(deployment: Path, *words: str) -> subprocess.Popen[str]:
    """Ctrl-C works, also where these tests run in the background of a script."""
    return subprocess.Popen(
        [sys.executable, "-m", "envgen", *words], cwd=deployment, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def ask(deployment: Path, verb: str, url: str, *words: str, code: int) -> tuple[str, str]:
    done = forked.run((verb, "--url", url, "--timeout", "2", *words), deployment, os.environ, timeout=60)
    assert "Traceback" not in done.stderr and done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def records(deployment: Path) -> list[list[dict[str, Any]]]:
    files = sorted((deployment / "results").glob("*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def test_a_good_server_passes(tmp_path: Path) -> None:
    with fault_server() as server:
        done = json.loads(ask(tmp_path, "smoke", server.url, "--json", code=0)[0])
    verdicts = {one["name"]: one["verdict"] for one in done["criteria"]}
    assert done["outcome"] == "passed" and verdicts.pop("5 repeats") == "not checked"  # its container is not known
    assert set(verdicts.values()) == {"passed"} and len(verdicts) == 5
    assert [lines[-1]["outcome"] for lines in records(tmp_path)] == ["passed"]


def test_accept_may_run_its_load_alone(tmp_path: Path) -> None:
    with fault_server() as server:
        words = ("--only", "load", "-n", "8", "-c", "2", "--json")
        done = json.loads(ask(tmp_path, "accept", server.url, *words, code=1)[0])
    assert {one["part"] for one in done["criteria"]} == {"load"} and done["load"]["requests"] == 8
    # Its container is not known, and what was not checked is not accepted.
    assert {one["verdict"] for one in done["criteria"]} == {"passed", "not checked"}


def test_accept_refuses_what_its_part_does_not_judge(tmp_path: Path) -> None:
    with fault_server() as server:
        _, err = ask(tmp_path, "accept", server.url, "--only", "load", "--reference", "tg32=57.85", code=2)
    assert "the part bench judges --reference" in err


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("500", "answered with 500: EngineCore died"),
        ("garbage", "the reply is not an event stream: <html>Bad gateway</html>"),
        ("half an event", "the server closed the connection in the middle of a reply"),
        ("error in the stream", "after 1 events the server sent an error: CUDA error: an illegal memory access"),
    ],
)
def test_requests_that_fail(tmp_path: Path, fault: str, sentence: str) -> None:
    with fault_server(fault, good=8) as server:
        out, _ = ask(tmp_path, "smoke", server.url, code=1)
    (line,) = [line for line in out.splitlines() if "FAIL  5 repeats" in line]
    assert sentence in line
    (lines,) = records(tmp_path)
    errors = [line["data"]["error"] for line in lines if "error" in line.get("data", {})]
    assert errors and all(sentence in error for error in errors) and lines[-1]["outcome"] == "failed"


def test_replies_that_are_wrong(tmp_path: Path) -> None:
    with fault_server("nan and harmony") as server:
        out, _ = ask(tmp_path, "smoke", server.url, code=1)
    assert "FAIL  NaN/Inf in log probabilities: 3 of 3 are not finite" in out
    assert "FAIL  chat: <|channel|> in '<|channel|><|channel|><|channel|>'" in out and out.count("FAIL") == 2


def test_another_model_than_the_one_that_is_asked_for(tmp_path: Path) -> None:
    with fault_server("answers as another") as server:
        out, _ = ask(tmp_path, "smoke", server.url, "--model", "tiny", code=1)
        assert "FAIL  short prompt: answered by the model another, not tiny" in out
        assert "FAIL  chat: answered by the model another, not tiny" in out
        with pytest.raises(ServiceError) as caught:
            find(server.url, model=None, key="", silence=2, expected="big")
        assert "serves tiny, alias, adapter, not big, as the profile says" in str(caught.value)
        assert "--model tiny" in caught.value.problems[0].hint
        assert find(server.url, model=None, key="", silence=2, expected="alias").model == "alias"
    with fault_server("answers as alias") as server:  # another name of the same model
        ask(tmp_path, "smoke", server.url, "--model", "tiny", code=0)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    # Five that were under way when it died may be enough, or five that come later are refused.
    [("dies", "Connection refused|closed the connection without"), ("hangs", "no answer within 2 s")],
)
def test_a_server_that_goes_away(tmp_path: Path, fault: str, sentence: str) -> None:
    with fault_server(fault, good=6) as server:
        _, err = ask(tmp_path, "smoke", server.url, code=5)
    assert "the server stopped answering after" in err and re.search(sentence, err)
    assert str(tmp_path / "results") in err
    (lines,) = records(tmp_path)
    assert lines[-1]["outcome"] == "server gone" and len(lines) > 5


def test_what_cannot_be_asked_at_all(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert "it refuses or closes connections" in ask(tmp_path, "smoke", f"http://127.0.0.1:{port}", code=5)[1]
    with fault_server("loading") as server:
        assert "/v1/models answers 503" in ask(tmp_path, "smoke", server.url, code=5)[1]
    with fault_server("no server") as server:
        err = ask(tmp_path, "smoke", server.url, code=5)[1]
        assert "not an OpenAI-compatible server" in err and "It works!" in err
    with fault_server() as server:
        err = ask(tmp_path, "smoke", server.url, "--model", "tinny", code=2)[1]
        assert "has no model 'tinny'; it has: tiny" in err and "--model tiny" in err
        assert "NOKEY is not set" in ask(tmp_path, "smoke", server.url, "--api-key-env", "NOKEY", code=2)[1]
        assert "or an image for the tool" in ask(tmp_path, "bench", server.url, "--tokenizer", "x", code=2)[1]
    assert "is not the address of a server" in ask(tmp_path, "smoke", "nonsense", code=2)[1]


def test_a_key_reaches_the_server_and_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fault_server() as server:
        monkeypatch.setenv("MY_KEY", "wrong")
        assert "answered with 401" in ask(tmp_path, "smoke", server.url, "--api-key-env", "MY_KEY", code=1)[0]
        monkeypatch.setenv("MY_KEY", "s3cret")
        printed = ask(tmp_path, "smoke", server.url, "--api-key-env", "MY_KEY", code=0)
    kept = "".join(file.read_text() for file in (tmp_path / "results").iterdir())
    assert "s3cret" not in kept + "".join(printed)


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    with fault_server("hangs", good=5) as server:
        child = start(tmp_path, "smoke", "--url", server.url, "--timeout", "60")
        deadline = time.monotonic() + 60
        while not (kept := list(tmp_path.glob("results/*.jsonl"))) or kept[0].read_bytes().count(b"\n") < 6:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and "Traceback" not in err
    assert "the results so far are in" in err and "the server keeps running" in err
    (lines,) = records(tmp_path)
    assert len(lines) > 5 and "outcome" not in lines[-1]
