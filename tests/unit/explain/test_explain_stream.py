"""Reading: any size, any bytes, as they come; and what the verb makes of it."""

from __future__ import annotations

import io
import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from rules_page import renew

from envgen import cli
from envgen.cli.look.explain import command
from envgen.errors import UsageError
from envgen.explain import LONGEST, classify, log_lines, rules

LOGS = Path(__file__).parent / "logs"
PAGE = Path(__file__).parents[3] / "docs" / "explain.md"


@given(st.binary().map(lambda content: content.replace(b"\x1b", b"")))
def test_the_lines_are_those_of_an_editor(content: bytes) -> None:
    expected = content.split(b"\n")
    expected = expected[:-1] if expected[-1] == b"" else expected
    assert [line.removesuffix("\n") for line in log_lines(io.BytesIO(content))] == [
        line.decode("utf-8", "replace") for line in expected
    ]


def test_a_line_of_any_length_takes_little_memory() -> None:
    class Endless(io.RawIOBase):
        left = 200

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            self.left -= 1
            data = b"x" * len(buffer) if self.left > 0 else b"\nlast\n" if self.left == 0 else b""
            buffer[: len(data)] = data
            return len(data)

    tracemalloc.start()
    found = list(log_lines(io.BufferedReader(Endless(), 1 << 20)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [len(found[0]) <= LONGEST, found[1]] == [True, "last\n"] and peak < 20 * LONGEST


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
    assert set(document["explanations"][0]) == {"rule", "failure", "cause", "evidence", "line", "cure", "link"}


def test_nothing_found_is_no_failure() -> None:
    done = run("-", stdin=b"all is well\n")
    assert done.return_value == 0 and "1 line" in done.stdout


def test_a_notice_alone_is_no_failure() -> None:
    assert run("-", stdin=b"NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/Socket/0\n").return_value == 0


def test_without_a_log_the_newest_build_log_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(run().exception, UsageError)
    logs = tmp_path / ".envgen" / "logs"
    logs.mkdir(parents=True)
    (logs / "build-a.log").write_text("Killed\n")
    assert run().return_value == 1


@pytest.mark.parametrize("what", ["missing.log", "."])
def test_a_log_that_can_not_be_read_is_an_error(what: str) -> None:
    done = run(what)
    assert isinstance(done.exception, UsageError) and "can't be read" in str(done.exception)


def test_steering_characters_of_a_log_stay_out_of_the_terminal() -> None:
    assert "\x1b" not in run("-", stdin=b"\x1b[31mNo space left on device\x1b[0m\n").stdout


def test_the_page_has_every_rule_as_it_is_now() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert renew(page) == page, "run scripts/regenerate"


def test_thirty_rules_and_more_are_proven_by_public_threads() -> None:
    assert sum(rule.quoted for rule in rules()) >= 30
    for rule in rules():
        if rule.quoted:
            assert rule.link.startswith("https://github.com/"), rule.rule


def test_cures_name_commands_that_there_are() -> None:
    context = click.Context(cli.main, resilient_parsing=True)
    for rule in rules():
        for words in re.findall(r"`envgen ([^`]*)`", rule.cure):
            verb, *rest = words.split()
            found = cli.main.get_command(context, verb)
            assert found is not None, f"{rule.rule}: envgen {verb}"
            if isinstance(found, click.Group):
                found, rest = found.get_command(context, rest[0]), rest[1:]
                assert found is not None, f"{rule.rule}: envgen {words}"
            if verb != "exec":
                options = {name for one in found.params for name in (*one.opts, *one.secondary_opts)}
                assert {word for word in rest if word.startswith("-")} <= options, f"{rule.rule}: envgen {words}"
