"""smoke against servers that go wrong: one clear sentence each, and what was measured is kept.

The server is a stand-in on loopback (fault_server.py); envgen runs as a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
from fault_server import fault_server
from local import free_port, until

from envgen.app.measure import run_tool
from envgen.bench.client import find
from envgen.bench.tools import Matrix
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
    assert done["outcome"] == "passed" and set(verdicts.values()) == {"passed"}
    assert list(verdicts) == ["first answers", "chat", "prefill of 500 tokens"]
    assert [lines[-1]["outcome"] for lines in records(tmp_path)] == ["passed"]


def test_a_request_that_fails(tmp_path: Path) -> None:
    with fault_server("500", good=2) as server:
        out, _ = ask(tmp_path, "smoke", server.url, code=1)
    (line,) = [line for line in out.splitlines() if "FAIL  prefill of 500 tokens" in line]
    assert "answered with 500: EngineCore died" in line
    (lines,) = records(tmp_path)
    assert lines[-1]["outcome"] == "failed"


def test_a_reply_without_a_token(tmp_path: Path) -> None:
    with fault_server("no token") as server:
        out, _ = ask(tmp_path, "smoke", server.url, code=1)
    assert "FAIL  prefill of 500 tokens: the reply has no token" in out


def test_another_model_than_the_one_that_is_asked_for(tmp_path: Path) -> None:
    with fault_server("answers as another") as server:
        out, _ = ask(tmp_path, "smoke", server.url, "--model", "tiny", code=1)
        assert "FAIL  first answers: the first prompt was answered by the model another, not" in out
        assert "FAIL  prefill of 500 tokens: answered by the model another, not tiny" in out
        with pytest.raises(ServiceError) as caught:
            find(server.url, model=None, key="", silence=2, expected="big")
        assert "serves tiny, alias, adapter, not big, as the profile says" in str(caught.value)
        assert "--model tiny" in caught.value.problems[0].hint
        assert find(server.url, model=None, key="", silence=2, expected="alias").model == "alias"
        trial: Any = SimpleNamespace(target=find(server.url, model="tiny", key="", silence=2), tool=lambda *_: None)
        with pytest.raises(ServiceError, match="before the benchmark: answered by the model another, not tiny"):
            run_tool(trial, trial, Matrix())
    with fault_server("answers as alias") as server:  # another name of the same model
        ask(tmp_path, "smoke", server.url, "--model", "tiny", code=0)


@pytest.mark.parametrize(
    ("fault", "sentence"), [("dies", "refuses or closes connections"), ("hangs", "no answer within 2 s")]
)
def test_a_server_that_goes_away(tmp_path: Path, fault: str, sentence: str) -> None:
    with fault_server(fault, good=2) as server:
        _, err = ask(tmp_path, "smoke", server.url, code=5)
    assert "the server stopped answering: " in err and re.search(sentence, err)
    (lines,) = records(tmp_path)
    assert lines[-1]["outcome"] == "server gone"


def test_what_cannot_be_asked_at_all(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    assert "it refuses or closes connections" in ask(tmp_path, "smoke", nobody, code=5)[1]
    with fault_server("loading") as server:
        assert "/v1/models answers 503" in ask(tmp_path, "smoke", server.url, code=5)[1]
    with fault_server("no server") as server:
        err = ask(tmp_path, "smoke", server.url, code=5)[1]
        assert "not an OpenAI-compatible server" in err and "It works!" in err
    with fault_server() as server:
        err = ask(tmp_path, "smoke", server.url, "--model", "tinny", code=2)[1]
        assert "has no model 'tinny'; it has: tiny" in err and "--model tiny" in err
        assert "NOKEY is not set" in ask(tmp_path, "smoke", server.url, "--api-key-env", "NOKEY", code=2)[1]
        assert "no envgen.yaml in" in ask(tmp_path, "bench", server.url, code=2)[1]  # whose image has the tool
    assert "is not the address of a server" in ask(tmp_path, "smoke", "nonsense", code=2)[1]


def test_a_key_reaches_the_server_and_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fault_server() as server:
        monkeypatch.setenv("MY_KEY", "wrong")
        assert "answered with 401" in ask(tmp_path, "smoke", server.url, "--api-key-env", "MY_KEY", code=1)[0]
        monkeypatch.setenv("MY_KEY", "s3cret")
        printed = ask(tmp_path, "smoke", server.url, "--api-key-env", "MY_KEY", code=0)
    kept = "".join(file.read_text() for file in (tmp_path / "results").iterdir())
    assert "s3cret" not in kept + "".join(printed)


def test_ctrl_c_does_not_wait_for_a_server_that_hangs(tmp_path: Path) -> None:
    with fault_server("hangs", good=2) as server:
        child = start(tmp_path, "smoke", "--url", server.url, "--timeout", "60")
        until(lambda: server.requests >= 3)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=20)
    assert child.returncode == 130 and "Traceback" not in err
    assert "interrupted" in err and "the server keeps running" in err
    (lines,) = records(tmp_path)
    assert "outcome" not in lines[-1]
