"""What buildx prints: real recordings, and whatever else may come."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.buildx import BuildProgress

STREAMS = Path(__file__).parent / "streams"


def play(name: str) -> BuildProgress:
    progress = BuildProgress()
    for line in (STREAMS / name).read_bytes().decode().split("\n"):
        progress.feed(line)
    return progress


def test_a_build_that_succeeds() -> None:
    progress = play("success.txt")
    assert sorted(step.title for step in progress.steps) == [
        "[base 2/2] RUN echo hello; printf 'progress 1\\rprogress 2\\n'; echo err >&2; sleep 1.2; echo late",
        "[other 1/2] FROM nvcr.io/nvidia/pytorch:25.12-py3",
        "[other 2/2] RUN sleep 0.6; echo other; sleep 0.5",
        "[stage-2 1/2] COPY --from=other /etc/hostname /x",
        "[stage-2 2/2] RUN python3 -c \"print('three')\"",
    ]
    assert progress.failed is None and not any(step.error for step in progress.steps)
    base = next(step for step in progress.steps if step.title.startswith("[base 2/2]"))
    assert set(base.lines) == {"hello", "progress 2", "err", "late"} and base.seconds > 1


def test_steps_from_the_cache() -> None:
    steps = play("cached.txt").steps
    assert len(steps) == 5
    assert [step.cached for step in steps] == ["FROM" not in step.title for step in steps]


def test_the_step_that_broke_is_known_with_its_exit_code() -> None:
    progress = play("killed.txt")
    failed = progress.failed
    assert failed is not None
    assert (failed.exit_code, set(failed.lines)) == (137, {"compiling", "Killed"})
    assert failed.title == "[stage-0 2/2] RUN sleep 0.5; echo compiling; echo Killed >&2; sh -c 'kill -9 $$'; exit $?"
    (called_off,) = (step for step in progress.steps if "sleep 32" in step.title)
    assert called_off.error and not called_off.failed
    assert any(note.startswith("ERROR: failed to build: failed to solve: process") for note in progress.notes)


def test_a_step_that_was_killed_beside_another_is_not_the_one_that_broke() -> None:
    progress = BuildProgress()
    for line in (
        "#5 [a 1/1] RUN make", "#6 [b 1/1] RUN fetch sdist humanize 99.0",
        '#5 ERROR: process "/bin/sh -c make" did not complete successfully: exit code: 137',
        '#6 ERROR: process "/bin/sh -c fetch sdist" did not complete successfully: exit code: 1',
        "#7 [c 1/1] RUN x", "#7 ERROR: rpc error: code = Canceled desc = context canceled",
    ):  # fmt: skip
        progress.feed(line)
    assert progress.failed is not None and progress.failed.title == "[b 1/1] RUN fetch sdist humanize 99.0"
    assert [step.failed for step in progress.steps] == [True, True, False]


def test_a_base_image_that_cannot_be_had_fails_in_a_chore_of_buildkit() -> None:
    progress = play("unknown-base.txt")
    assert progress.failed is not None and progress.failed.internal and progress.failed.exit_code is None
    assert "no such host" in progress.failed.error
    assert progress.steps == ()


def test_what_a_command_prints_is_never_its_outcome() -> None:
    progress = BuildProgress()
    for line in ("#5 [2/2] RUN x", "#5 0.123 ERROR: exit code: 9", "#5 0.2 CACHED", "#5 0.200 #6 DONE 1.0s", "#5 0.3 "):
        progress.feed(line)
    (step,) = progress.steps
    assert not step.cached and step.error == ""
    assert list(step.lines) == ["ERROR: exit code: 9", "CACHED", "#6 DONE 1.0s", ""]


@given(st.lists(st.one_of(st.text(), st.text().map("#1 ".__add__), st.text().map("#1 0.1 ".__add__))))
def test_odd_input_never_fails(lines: list[str]) -> None:
    progress = BuildProgress()
    for line in lines:
        progress.feed(line)
    assert len([n for n in lines if not n.startswith("#")]) <= len(progress.notes)
