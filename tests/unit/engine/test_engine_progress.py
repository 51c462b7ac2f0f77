"""What buildx prints: real recordings, and whatever else may come."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.buildx import KEPT_LINES, BuildResult, result_of

STREAMS = Path(__file__).parent / "streams"


def play(*lines: str) -> BuildResult:
    return result_of(lines, 1, 0.0)


def recorded(name: str) -> BuildResult:
    return play(*(STREAMS / name).read_bytes().decode().split("\n"))


def test_the_step_that_broke_is_known_with_its_exit_code() -> None:
    result = recorded("killed.txt")  # another step was cancelled then
    assert (result.exit_code, set(result.lines)) == (137, {"compiling", "Killed"})
    assert result.step == "[stage-0 2/2] RUN sleep 0.5; echo compiling; echo Killed >&2; sh -c 'kill -9 $$'; exit $?"
    assert result.notes.splitlines()[-1].startswith("ERROR: failed to build: failed to solve: process")


def test_a_step_that_was_killed_beside_another_is_not_the_one_that_broke() -> None:
    result = play(
        "#5 [a 1/1] RUN make", "#6 [b 1/1] RUN --mount=type=cache,target=/a --network=none fetch sdist humanize 99.0",
        '#5 ERROR: process "/bin/sh -c make" did not complete successfully: exit code: 137',
        '#6 ERROR: process "/bin/sh -c fetch sdist" did not complete successfully: exit code: 1',
        "#7 [c 1/1] RUN x", "#7 ERROR: rpc error: code = Canceled desc = context canceled",
    )  # fmt: skip
    assert (result.step, result.exit_code) == ("[b 1/1] RUN fetch sdist humanize 99.0", 1)


def test_a_base_image_that_cannot_be_had_fails_in_a_step_of_buildkit() -> None:
    result = recorded("unknown-base.txt")
    assert result.step == "[internal] load metadata for registry.invalid/no/such:1" and result.exit_code is None
    assert "no such host" in result.lines[-1]  # no command wrote any: they are buildx's own


def test_what_a_command_prints_is_never_its_outcome() -> None:
    lines = ["#5 [2/2] RUN x", "#5 0.123 ERROR: exit code: 9", "#5 0.2 a\rb", "#5 0.200 #6 DONE 1.0s", "#5 0.3 "]
    assert play(*lines).step == ""
    result = play(*lines, "#5 ERROR: exit code: 1")
    assert (result.step, result.exit_code) == ("[2/2] RUN x", 1)
    assert result.lines == ["ERROR: exit code: 9", "b", "#6 DONE 1.0s", ""]
    assert len(play(*lines * KEPT_LINES, "#5 ERROR: exit code: 1").lines) == KEPT_LINES  # each costs time to explain


LINES = st.text(st.characters(exclude_characters="\n"))


@given(
    st.lists(st.one_of(LINES, LINES.map("#1 ".__add__), LINES.map("#1 0.1 ".__add__), LINES.map("#1 ERROR: ".__add__)))
)
def test_odd_input_never_fails(lines: list[str]) -> None:
    notes = play(*lines).notes
    assert all(line.strip() in notes for line in lines if not line.startswith("#"))
