"""What buildx prints: real recordings, and whatever else may come."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.buildx import BuildOutput

STREAMS = Path(__file__).parent / "streams"


def play(*lines: str) -> BuildOutput:
    output = BuildOutput()
    for line in lines:
        output.feed(line)
    return output


def recorded(name: str) -> BuildOutput:
    return play(*(STREAMS / name).read_bytes().decode().split("\n"))


def test_a_build_that_succeeds() -> None:
    assert recorded("success.txt").failed is None


def test_the_step_that_broke_is_known_with_its_exit_code() -> None:
    output = recorded("killed.txt")  # another step was cancelled then
    failed = output.failed
    assert failed is not None
    assert (failed.exit_code, set(failed.lines)) == (137, {"compiling", "Killed"})
    assert failed.title == "[stage-0 2/2] RUN sleep 0.5; echo compiling; echo Killed >&2; sh -c 'kill -9 $$'; exit $?"
    assert any(note.startswith("ERROR: failed to build: failed to solve: process") for note in output.notes)


def test_a_step_that_was_killed_beside_another_is_not_the_one_that_broke() -> None:
    output = play(
        "#5 [a 1/1] RUN make", "#6 [b 1/1] RUN fetch sdist humanize 99.0",
        '#5 ERROR: process "/bin/sh -c make" did not complete successfully: exit code: 137',
        '#6 ERROR: process "/bin/sh -c fetch sdist" did not complete successfully: exit code: 1',
        "#7 [c 1/1] RUN x", "#7 ERROR: rpc error: code = Canceled desc = context canceled",
    )  # fmt: skip
    assert output.failed is not None and output.failed.title == "[b 1/1] RUN fetch sdist humanize 99.0"


def test_a_base_image_that_cannot_be_had_fails_in_a_step_of_buildkit() -> None:
    failed = recorded("unknown-base.txt").failed
    assert failed is not None and failed.exit_code is None and "no such host" in failed.error


def test_what_a_command_prints_is_never_its_outcome() -> None:
    lines = ["#5 [2/2] RUN x", "#5 0.123 ERROR: exit code: 9", "#5 0.2 a\rb", "#5 0.200 #6 DONE 1.0s", "#5 0.3 "]
    assert play(*lines).failed is None
    step = play(*lines, "#5 ERROR: exit code: 1").failed
    assert step is not None and list(step.lines) == ["ERROR: exit code: 9", "b", "#6 DONE 1.0s", ""]


@given(st.lists(st.one_of(st.text(), st.text().map("#1 ".__add__), st.text().map("#1 0.1 ".__add__))))
def test_odd_input_never_fails(lines: list[str]) -> None:
    output = play(*lines)
    assert len([n for n in lines if not n.startswith("#")]) <= len(output.notes)
