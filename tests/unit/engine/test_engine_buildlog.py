"""Build logs on disk, and what a build shows."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from envgen.cli.images.display import LiveDisplay, PlainDisplay, done_line, printable, running_line
from envgen.engine.buildlog import BuildLog
from envgen.engine.rawjson import Done, Line, Note, Started, Step


def step(**more: object) -> Step:
    return Step("d", "[final 2/2] RUN make all", **more)  # type: ignore[arg-type]


def test_everything_is_in_the_log(tmp_path: Path) -> None:
    one = step(number=1, started=0.0, completed=2.5)
    with BuildLog(tmp_path / "logs", "dev") as log:
        log.say("$ buildx")
        for event in (Started(one), Line(one, "gcc -c"), Note("a note"), Done(one)):
            log.event(event)
    assert log.path.read_text() == "$ buildx\n#1 [final 2/2] RUN make all\n#1 gcc -c\na note\n#1 DONE 2.5s\n"


def test_an_interrupted_build_says_so_in_its_log(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), BuildLog(tmp_path, "dev") as log:
        raise KeyboardInterrupt
    assert "ended by KeyboardInterrupt" in log.path.read_text()


def test_the_newest_twenty_are_kept_for_each_profile(tmp_path: Path) -> None:
    for second in range(30):
        (tmp_path / f"build-dev-20260101T0000{second:02}.log").touch()
    (tmp_path / "build-prod-20200101T000000.log").touch()
    with BuildLog(tmp_path, "dev") as log:
        pass
    kept = sorted(path.name for path in tmp_path.glob("build-dev-*"))
    assert len(kept) == 20 and log.path.name in kept and "build-dev-20260101T000029.log" in kept
    assert (tmp_path / "build-prod-20200101T000000.log").exists()


def test_two_builds_in_one_second_have_two_logs(tmp_path: Path) -> None:
    with BuildLog(tmp_path, "a") as first, BuildLog(tmp_path, "a") as second:
        assert first.path != second.path


def test_lines_of_steps() -> None:
    assert done_line(step(number=3, started=0.0, completed=12.34), 17) == "[ 3/17] final: RUN make all  12.3s"
    assert done_line(step(number=3, cached=True), 17).endswith("  cached")
    assert done_line(step(number=3, error="exit code: 1"), 17).endswith("FAILED")
    assert done_line(step(number=3, error="context canceled"), 17).endswith("called off")
    running = step(number=3)
    running.lines.append("[5/9] \x1b[31mBuilding\x1b[0m")
    assert running_line(running, 17, 61.2) == "[ 3/17] final: RUN make all … 61s: [5/9] \\x1b[31mBuilding\\x1b[0m"


def test_output_cannot_drive_the_terminal() -> None:
    assert "\x1b" not in printable("\x1b]0;title\x07 a\tb\n", 80)
    assert printable("x" * 100, 10) == "x" * 9 + "…"


def test_a_plain_display_says_a_line_a_finished_step() -> None:
    out = io.StringIO()
    display = PlainDisplay(out)
    one, chore = step(number=1, started=0.0, completed=1.0), Step("c", "[internal] load")
    for event in (Started(one), Line(one, "noise"), Done(one), Done(chore), Note("careful", warning=True)):
        display.event(event, 2)
    display.tick()
    assert out.getvalue() == "[1/2] final: RUN make all  1.0s\nwarning: careful\n"


def test_a_plain_display_is_never_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out = io.StringIO()
    display = PlainDisplay(out)
    display.event(Started(step(number=1)), 2)
    for _ in range(10):
        now[0] += 10
        display.tick()
    assert out.getvalue().splitlines() == [f"[1/2] final: RUN make all … {s}s" for s in (40, 80)]


def test_a_live_display_erases_what_it_drew() -> None:
    out = io.StringIO()
    display = LiveDisplay(out)
    one = step(number=1, started=0.0, completed=1.0)
    display.event(Started(one), 2)
    display.event(Done(one), 2)
    display.close()
    text = out.getvalue()
    assert text.count("\x1b[1A\x1b[J") >= 1
    assert text.rstrip("\n").endswith("[1/2] final: RUN make all  1.0s")


def test_the_wrappers_of_a_download_are_not_shown_and_the_outcome_always() -> None:
    name = "[base 2/2] RUN sh /run/envgen/with-network python3 /run/envgen/with-index sh /run/envgen/bootstrap python3"
    one = Step("d", name, number=2, started=0.0, completed=7.0)
    assert done_line(one, 9) == "[2/9] base: RUN bootstrap python3  7.0s"
    assert done_line(one, 9, 30) == "[2/9] base: RUN bootstr…  7.0s"
