"""The structured stream of buildx: real recordings, and whatever else may come."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.rawjson import Done, Event, Line, Note, Progress, Started, Status, seconds_of

STREAMS = Path(__file__).parent / "streams"


def play(name: str) -> tuple[Progress, list[Event]]:
    progress = Progress()
    events = [e for line in (STREAMS / name).read_bytes().splitlines() for e in progress.feed(line)]
    return progress, events


def test_a_build_that_succeeds() -> None:
    progress, events = play("success.jsonl")
    names = [(step.number, step.title, step.cached) for step in progress.visible]
    assert sorted(names) == [
        (1, "b: FROM nvcr.io/nvidia/pytorch:25.12-py3", True),
        (2, 'a: RUN echo "jobs ****" && echo rc1 && sleep 1', False),
        (3, "b: RUN echo two; printf 'progress 1\\rprogress 2\\n' >&2", False),
        (4, "stage-2: COPY --from=b /etc/hostname /x", False),
        (5, "stage-2: RUN echo three; kill -9 $$", False),
    ]
    assert progress.failed is None and not progress.running and not progress.notes
    slow = next(step for step in progress.visible if step.number == 2)
    assert list(slow.lines) == ["jobs 3", "rc1"]
    assert slow.seconds == pytest.approx(1.25, abs=0.05)  # as recorded
    done = [event.step.title for event in events if isinstance(event, Done) and event.step.number]
    assert len(done) >= 5 and all(done)


def test_a_progress_bar_shows_its_last_state() -> None:
    _, events = play("success.jsonl")
    assert [e.text for e in events if isinstance(e, Line)] == ["jobs 3", "rc1", "progress 2", "two", "three"]


def test_the_step_that_broke_is_known_with_its_exit_code() -> None:
    progress, _ = play("killed.jsonl")
    failed = progress.failed
    assert failed is not None
    assert (failed.exit_code, list(failed.lines)) == (137, ["compiling", "Killed"])
    assert failed.title == "RUN echo compiling; sh -c 'kill -9 $$'; exit $?"
    assert progress.notes[-1].startswith("ERROR: failed to build: failed to solve: process")


def test_a_base_image_that_cannot_be_had_fails_in_a_chore_of_buildkit() -> None:
    progress, _ = play("unknown-base.jsonl")
    assert progress.failed is not None and progress.failed.internal
    assert "no such host" in progress.failed.error
    assert progress.total == 0


def test_a_dockerfile_that_cannot_be_read_has_no_failed_step_but_notes() -> None:
    progress, events = play("parse-error.jsonl")
    assert progress.failed is None
    assert "unknown instruction: RUNN" in progress.notes[-1]
    assert any(isinstance(event, Note) and "RUNN" in event.text for event in events)


def vertex(**more: object) -> bytes:
    return json.dumps({"vertexes": [{"digest": "sha256:1", "name": "[2/2] RUN make", **more}]}).encode()


def log(text: bytes, stream: int = 1) -> bytes:
    entry = {"vertex": "sha256:1", "stream": stream, "data": base64.b64encode(text).decode()}
    return json.dumps({"logs": [entry]}).encode()


T0, T9 = "2026-01-01T00:00:00Z", "2026-01-01T00:00:09.5Z"


def test_lines_cut_between_two_messages_are_joined_for_each_stream() -> None:
    progress = Progress()
    progress.feed(vertex(started=T0))
    assert progress.feed(log(b"hel")) == []
    progress.feed(log(b"war", 2))
    (line,) = progress.feed(log(b"lo\nrest"))
    assert isinstance(line, Line) and line.text == "hello"
    events = progress.feed(vertex(started=T0, completed=T9))
    assert [e.text for e in events if isinstance(e, Line)] == ["rest", "war"]
    assert isinstance(events[-1], Done) and events[-1].step.seconds == 9.5


def test_steps_called_off_are_not_the_one_that_failed() -> None:
    progress = Progress()
    progress.feed(vertex(started=T0, completed=T9, error="process: context canceled: exit code: 1"))
    assert progress.failed is None


def test_downloads_show_how_far_they_are() -> None:
    progress = Progress()
    progress.feed(vertex(started=T0))
    status = {"vertex": "sha256:1", "id": "sha256:abc", "current": 25, "total": 50}
    (event,) = progress.feed(json.dumps({"statuses": [status]}).encode())
    assert isinstance(event, Status) and event.text == "sha256:abc 50%"


def test_warnings_of_the_dockerfile_are_told() -> None:
    short = base64.b64encode(b"JSONArgsRecommended: use JSON").decode()
    (event,) = Progress().feed(json.dumps({"warnings": [{"short": short}]}).encode())
    assert event == Note("JSONArgsRecommended: use JSON", warning=True)


def test_the_title_hides_the_flags_of_mounts_only() -> None:
    progress = Progress()
    name = "[vllm 3/4] RUN --mount=type=cache,target=/c     --mount=type=secret,id=jobs     make --flag=x"
    progress.feed(json.dumps({"vertexes": [{"digest": "d", "name": name, "started": T0}]}).encode())
    assert progress.visible[0].title == "vllm: RUN make --flag=x"


@pytest.mark.parametrize(
    "line",
    [
        b"", b"   ", b"{", b"[]", b"null", b"{}", b'{"vertexes": 3}', b'{"vertexes": [null, 1, {}]}',
        b'{"logs": [{"vertex": {}, "data": 5}]}', b'{"logs": [{"vertex": "x", "data": "%%%"}]}',
        b'{"statuses": [{"vertex": "x", "current": "?"}]}', b'{"warnings": [{"short": 1}]}', b"\xff\xfe{",
        b'{"vertexes": [{"digest": "a", "started": "soon", "completed": []}]}', b"{" * 100_000,
    ],
)  # fmt: skip
def test_odd_lines_never_fail(line: bytes) -> None:
    Progress().feed(line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
FIELDS = ("digest", "name", "started", "completed", "cached", "error", "vertex", "id", "current", "total", "stream",
          "data", "short", "timestamp")  # fmt: skip
ENTRY = st.dictionaries(
    st.sampled_from(FIELDS),
    JSON | st.sampled_from(["sha256:1", T0, T9]),
)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["vertexes", "statuses", "logs", "warnings"]), st.lists(ENTRY) | JSON) | JSON
    )
)
def test_any_json_is_taken(documents: list[object]) -> None:
    progress = Progress()
    for document in documents:
        for event in progress.feed(json.dumps(document).encode()):
            assert isinstance(event, (Started, Done, Line, Status, Note))
    assert progress.total == len(progress.visible)


@given(st.binary())
def test_any_bytes_are_taken(line: bytes) -> None:
    Progress().feed(line)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T00:00:01.5Z", 1.5),
        ("1970-01-01T01:00:00+01:00", 0.0),
        ("1969-12-31T23:00:00-01:00", 0.0),
        ("0001-01-01T00:00:00Z", -62135596800.0),
        ("2026-11-21T03:19:31.910965988Z", 1795231171.910965988),
    ],
)
def test_times_of_go(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "now", "2026-11-21", None, 5, "2026-11-21T03:19:31"])
def test_what_is_no_time(text: object) -> None:
    assert seconds_of(text) is None
