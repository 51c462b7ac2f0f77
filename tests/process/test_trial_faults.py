"""smoke, stress and bench against servers that go wrong: one clear sentence each, and what was measured is kept.

The server is a stand-in on loopback (fault_server.py); envgen runs as a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fault_server import fault_server
from projects import Finished, Project, interrupt

pytestmark = pytest.mark.engine


@pytest.fixture
def here(tmp_path: Path) -> Project:
    """A folder without a project file: --url needs none."""
    return Project(tmp_path, "envgentestfaults")


def records(here: Project) -> list[list[dict[str, object]]]:
    files = sorted((here.root / "results").glob("*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def ask(here: Project, verb: str, url: str, *words: str, code: int) -> Finished:
    return here.envgen(verb, "--url", url, "--timeout", "2", "--wait", "0", *words, code=code)


def test_a_good_server_passes(here: Project) -> None:
    with fault_server() as server:
        done = ask(here, "smoke", server.url, "--json", code=0).json
        verdicts = {one["name"]: one["verdict"] for one in done["criteria"]}
        assert done["outcome"] == "passed"
        assert verdicts.pop("5 repeats") == "not checked"  # nobody knows its container
        assert set(verdicts.values()) == {"passed"} and len(verdicts) == 4
        assert ask(here, "stress", server.url, "-n", "40", code=0).out.count("not checked") == 0
        assert ask(here, "bench", server.url, "--pp", "32", "--tg", "3", "-r", "2", code=0)
    kinds = [lines[0]["kind"] for lines in records(here)]
    assert sorted(kinds) == ["bench", "smoke", "stress"]
    assert all(lines[-1]["outcome"] == "passed" for lines in records(here))


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("500", "answered with 500: EngineCore died"),
        ("garbage", "the reply is no event stream: <html>Bad gateway</html>"),
        ("half an event", "the server closed the connection in the middle of a reply"),
        ("error in the stream", "the server reports an error in the stream: CUDA error: an illegal memory access"),
    ],
)
def test_requests_that_fail(here: Project, fault: str, sentence: str) -> None:
    with fault_server(fault, good=20) as server:
        done = ask(here, "stress", server.url, "-n", "24", "-c", "8", code=1)
    (line,) = [line for line in done.out.splitlines() if "FAIL  requests" in line]
    assert sentence in line
    assert ("FAIL  5xx" in done.out) == (fault == "500")
    (lines,) = records(here)
    errors = [line["data"]["error"] for line in lines if "error" in line.get("data", {})]  # type: ignore[index,operator]
    assert errors and all(sentence in error for error in errors)
    assert lines[-1]["outcome"] == "failed"


def test_nan_among_the_log_probabilities(here: Project) -> None:
    with fault_server("nan") as server:
        done = ask(here, "smoke", server.url, code=1)
    assert "FAIL  NaN/Inf in log probabilities: 3 of 3 are not finite" in done.out
    assert done.out.count("FAIL") == 1


def test_a_server_that_dies(here: Project) -> None:
    with fault_server("dies", good=30) as server:
        done = ask(here, "stress", server.url, "-n", "500", code=5)
    assert "the server stopped answering after" in done.err and "Connection refused" in done.err
    assert str(here.root / "results") in done.err
    (lines,) = records(here)
    assert lines[-1]["outcome"] == "server gone"
    assert 20 < len(lines) < 80  # it does not go on asking


def test_a_server_that_hangs(here: Project) -> None:
    with fault_server("hangs", good=30) as server:
        done = ask(here, "stress", server.url, "-n", "500", code=5)
    assert "the server stopped answering after" in done.err and "no answer within 2 s" in done.err
    assert records(here)[0][-1]["outcome"] == "server gone"


def test_a_server_that_is_still_loading(here: Project) -> None:
    with fault_server("loading") as server:
        assert "/v1/models answers 503" in ask(here, "smoke", server.url, code=5).err
        done = here.envgen("smoke", "--url", server.url, "--wait", "20")
    assert "waiting for" in done.err and "/v1/models answers 503" in done.err and "passed" in done.out


def test_a_slow_first_token_is_measured_not_failed(here: Project) -> None:
    with fault_server("slow first token") as server:
        done = ask(here, "bench", server.url, "--pp", "32", "--tg", "3", "-r", "1", "--warmup", "0", "--json", code=0)
    assert done.json["cells"][0]["ttft_ms"]["mean"] >= 1450  # it waits 1.5 s


def test_what_cannot_be_asked_at_all(here: Project, free_port: int) -> None:
    done = ask(here, "smoke", f"http://127.0.0.1:{free_port}", code=5)
    assert "is not ready: it refuses connections" in done.err
    with fault_server("no server") as server:
        done = ask(here, "smoke", server.url, code=5)
        assert "no OpenAI-compatible server" in done.err and "It works!" in done.err
    with fault_server() as server:
        done = ask(here, "smoke", server.url, "--model", "tinny", code=2)
        assert "has no model 'tinny'; it has: tiny" in done.err and "did you mean `tiny`?" in done.err
        assert "--api-key-env NOKEY" in ask(here, "smoke", server.url, "--api-key-env", "NOKEY", code=2).err
        done = ask(here, "bench", server.url, "--pp", "600", "--tg", "8", code=2)
        assert "none of the lengths fits: the server takes 512 tokens" in done.err
    assert "is no address of a server" in ask(here, "smoke", "nonsense", code=2).err


def test_a_key_reaches_the_server_and_no_record(here: Project) -> None:
    with fault_server() as server:
        words = ("smoke", "--url", server.url, "--api-key-env", "MY_KEY")
        here.envgen(*words, env={"MY_KEY": "wrong"}, code=5)
        done = here.envgen(*words, env={"MY_KEY": "s3cret"})
    kept = "".join(file.read_text() for file in (here.root / "results").iterdir())
    assert "s3cret" not in kept + done.out + done.err


def test_no_space_for_the_results(here: Project) -> None:
    """A real full file system: one of 16 KiB that belongs to a mount namespace of this command alone."""
    with fault_server() as server:
        script = 'mkdir -p full && mount -t tmpfs -o size=16k none full && exec "$@" --url "$URL" --results full -n 300'
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-ec", script, "sh", sys.executable, "-m", "envgen", "stress"],
            cwd=here.root, env={**os.environ, "URL": server.url}, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
    assert done.returncode == 8, done.stderr
    assert "there is no space left for the results" in done.stderr and "Traceback" not in done.stderr


def test_ctrl_c_keeps_what_was_measured(here: Project) -> None:
    with fault_server("hangs", good=25) as server:
        child = here.start("stress", "--url", server.url, "-n", "100", "--timeout", "60")
        deadline = time.monotonic() + 30
        while server.requests < 30 and time.monotonic() < deadline:
            time.sleep(0.05)
        done = interrupt(child)
    assert done.code == 130 and "Traceback" not in done.err
    assert "the samples so far are kept in" in done.err and "goes on running" in done.err
    (lines,) = records(here)
    assert len(lines) > 15 and "outcome" not in lines[-1]
