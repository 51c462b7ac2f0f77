"""Reading: any size, any bytes, as they come; and what the verb makes of it."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from rules_page import renew

from envgen import cli
from envgen.app.bundle import archive
from envgen.cli.check.explain import command
from envgen.errors import UsageError
from envgen.explain import classify, read, rules
from envgen.explain.read import ALL_IS_WELL, ends_of, read_log, text_lines

LOGS = Path(__file__).parent / "logs"
PAGE = Path(__file__).parents[3] / "docs" / "explain.md"


@given(st.binary().map(lambda content: content.replace(b"\x1b", b"")))
def test_the_lines_are_those_of_an_editor(content: bytes) -> None:
    expected = content.split(b"\n")
    expected = expected[:-1] if expected[-1] == b"" else expected
    expected = [b"" if any(words in line for words in ALL_IS_WELL) else line for line in expected]
    assert text_lines(content) == [line.decode("utf-8", "replace").removesuffix("\r") for line in expected]


@pytest.mark.parametrize("log", sorted(LOGS.glob("*-ends-well.log")), ids=lambda path: path.name)
def test_a_server_that_ended_well_has_no_failure(log: Path) -> None:
    lines = log.read_text(encoding="utf-8").splitlines()
    assert len(lines) > 100
    assert [one.rule for one in classify(lines) if one.failure] == []


def run(*argv: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(command, argv, input=stdin, standalone_mode=False)


def test_a_log_is_explained(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"\xff\xfe ok\nKilled\nUsing Marlin backend\n")
    done = run(str(log))
    assert done.return_value == 1
    assert f"{log}:2: Killed" in done.stdout and done.stdout.index("FAIL") < done.stdout.index("note")


def test_json_has_stable_keys() -> None:
    done = run("-", "--json", stdin=b"a\nNo space left on device\n")
    document = json.loads(done.stdout)
    assert document["lines"] == 2 and document["log"] == "-"
    expected = {"rule", "failure", "cause", "evidence", "line", "cure", "link", "phase", "general"}
    assert set(document["explanations"][0]) == expected


def test_a_notice_alone_is_no_failure_and_neither_is_nothing() -> None:
    assert run("-", stdin=b"all is well\n").return_value == 0
    assert run("-", stdin=b"NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/Socket/0\n").return_value == 0


def test_of_a_large_log_both_ends_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read.ends_of, "__defaults__", (4 << 20, 2 << 20))
    log, quiet = tmp_path / "large.log", b"(EngineCore pid=9) INFO 08-08 08:01:25 [core.py:12] ok\n" * 200_000
    log.write_bytes(b"Killed\nModuleNotFoundError: No module named 'ray'\n" + quiet + b"No space left on device\n")
    with log.open("rb") as file:
        found = read_log(file)
    assert found.lines == 200_003 and found.skipped > 2 << 20
    assert [(one.rule, one.line) for one in found.explanations] == [("no_space", found.lines), ("no_ray", 2)]
    assert "MiB of it were not read" in run(str(log)).stdout


@given(st.lists(st.binary(max_size=40), max_size=60), st.integers(1, 64))
def test_the_last_lines_are_whole(lines: list[bytes], size: int) -> None:
    content = b"\n".join(lines)
    before, skipped, data, head = ends_of(io.BytesIO(content), size, 16)
    assert content.startswith(head) and len(head) <= min(skipped, 16) and (not head or head.endswith(b"\n"))
    assert content[skipped:] == data and content[:skipped].count(b"\n") == before
    assert len(data) <= size and (len(content) > size or data == content)
    if b"\n" in content[-size - 1 : -1] and skipped:
        assert content[skipped - 1 : skipped] == b"\n"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a project without a project file, in the current folder."""
    monkeypatch.chdir(tmp_path)
    assert isinstance(run().exception, UsageError)
    for folder in ("logs", "crash"):
        (tmp_path / ".envgen" / folder).mkdir(parents=True)
    return tmp_path / ".envgen"


def build_log(state: Path, name: str, code: int, when: int) -> Path:
    path = state / "logs" / name
    path.write_text(f"$ docker buildx build\nKilled\nended with {code} after 3.1 s \n")
    os.utime(path, (when, when))
    return path


def bundle(state: Path, stamp: str, service: str, log: str, when: int, **members: str) -> Path:
    path = state / "crash" / f"{stamp}-{service}.tar.gz"
    findings = json.dumps({"reason": "its process exited with code 1 while starting", "service": service})
    path.write_bytes(archive({"findings.json": findings, "server.log": log, **members}))
    os.utime(path, (when, when))
    return path


def test_without_an_argument_the_newest_failure_is_taken(state: Path) -> None:
    build_log(state, "build-a.log", 0, 1000)
    done = run()
    assert done.return_value == 0 and "no failure is known" in done.stdout
    build_log(state, "build-b.log", 1, 900)
    done = run()
    assert done.return_value == 1 and done.stdout.startswith("the build failed with 1, ") and "FAIL" in done.stdout
    bundle(state, "20260101T000000Z", "serve", "RuntimeError: CUDA unknown error\n", 950)
    done = run()
    assert done.return_value == 1 and done.stdout.startswith("serve failed, ") and "(cuda_init)" in done.stdout
    assert "its process exited with code 1 while starting" in done.stdout
    build_log(state, "build-c.log", -9, 960)
    assert "the build failed with -9" in run().stdout
    found = json.loads(run("--json").stdout)
    assert found["failure"]["kind"] == "build" and found["log"].endswith("build-c.log")


def test_a_failure_without_a_rule_is_a_failure_with_its_exception(state: Path) -> None:
    trace = 'Traceback (most recent call last):\n  File "/x/site-packages/vllm/a.py", line 1\nKeyError: 3\n'
    bundle(state, "20260101T000000Z", "serve-2", "INFO vLLM API server version 0.30.0\n" + trace, 950)
    done = run()
    assert done.return_value == 1 and done.stdout.startswith("serve-2 failed, ")
    assert "first exception" in done.stdout and "KeyError: 3" in done.stdout and "in: vllm 0.30.0" in done.stdout


IDENTITY = "3f" * 32


def test_a_bundle_knows_whose_memory_ran_out(state: Path) -> None:
    document = {"Id": IDENTITY, "Name": "/x", "HostConfig": {"Memory": 1 << 30},
                "State": {"Status": "exited", "ExitCode": 137, "OOMKilled": True}}  # fmt: skip
    bundle(state, "20260101T000000Z", "serve", "loading\n", 950, **{"container.json": json.dumps(document)})
    done = run()
    assert "memory ran out: the container may use 1.00 GiB (server_memory)" in done.stdout
    assert "fix:  raise the memory limit of the container" in done.stdout and "compil" not in done.stdout


def test_of_several_machines_the_one_that_failed_first_is_read(state: Path) -> None:
    path = state / "crash" / "20260101T000000Z-serve.tar.gz"
    findings = json.dumps({"culprit": "b", "reason": "x"})
    path.write_bytes(
        archive({"findings.json": findings, "a/server.log": "Killed\n", "b/server.log": "manifest unknown\n"})
    )
    assert "(unknown_base)" in run(str(path)).stdout


@pytest.mark.parametrize("what", ["missing.log", "."])
def test_a_log_that_can_not_be_read_is_an_error(what: str) -> None:
    done = run(what)
    assert isinstance(done.exception, UsageError) and "can't be read" in str(done.exception)


def test_the_page_has_every_rule_as_it_is_now() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert renew(page) == page, "run scripts/regenerate"


def test_cures_name_commands_that_take_a_profile() -> None:
    """``with_profile_named`` adds it; that each can be typed is in tests/unit/cli."""
    context = click.Context(cli.main)
    for words in [words.split() for rule in rules() for words in re.findall(r"`envgen ([^`]*)`", rule.cure)]:
        found = cli.main.get_command(context, words[0])
        if isinstance(found, click.Group):
            found = found.get_command(context, words[1])
        assert found and (words[0] == "render" or any("--profile" in one.opts for one in found.params)), words
