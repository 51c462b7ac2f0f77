"""Build logs on disk, and what a build shows."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from envgen.cli.images.display import Display, done_line, running_line
from envgen.engine.buildlog import BuildLog
from envgen.engine.progress import Step


def step(name: str = "[final 2/2] RUN make all", **more: object) -> Step:
    return Step(name, **more)  # type: ignore[arg-type]


def test_everything_is_in_the_log(tmp_path: Path) -> None:
    with BuildLog(tmp_path / "logs", "dev") as log:
        log.say("$ buildx")
        log.say("#1 [final 2/2] RUN make all")
        assert log.path.read_text() == "$ buildx\n#1 [final 2/2] RUN make all\n"


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
    assert done_line(step(ended=True, seconds=12.34)) == "[final 2/2] RUN make all  12.3s"
    assert done_line(step(cached=True)).endswith("  cached")
    assert done_line(step(error="exit code: 1")).endswith("FAILED")
    assert done_line(step(error="context canceled")).endswith("called off")
    running = step(status="[5/9] \x1b[31mBuilding\x1b[0m")
    assert running_line(running, 61.2) == "[final 2/2] RUN make all … 61s: [5/9] \\x1b[31mBuilding\\x1b[0m"


def test_a_plain_display_prints_a_line_for_each_finished_step() -> None:
    out = io.StringIO()
    display = Display(out)
    one, chore = step(), step("[internal] load")
    for each in (one, chore):
        display.step(each)
        each.ended, each.seconds = True, 1.0
        display.step(each)
    display.tick()
    display.close()
    assert out.getvalue() == "[final 2/2] RUN make all  1.0s\n"


def test_a_plain_display_is_never_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out = io.StringIO()
    display = Display(out)
    display.step(step())
    for _ in range(10):
        now[0] += 10
        display.tick()
    assert out.getvalue().splitlines() == [f"[final 2/2] RUN make all … {s}s" for s in (40, 80)]


def test_a_live_display_erases_what_it_drew(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out = io.StringIO()
    display = Display(out, live=True)
    one = step()
    display.step(one)
    now[0] += 2
    display.tick()
    one.ended, one.seconds = True, 2.0
    display.step(one)
    display.close()
    erased = "\r\x1b[K"
    assert out.getvalue() == f"{erased}[final 2/2] RUN make all … 2s{erased}[final 2/2] RUN make all  2.0s\n{erased}"


def test_the_wrappers_of_a_download_are_not_shown_and_the_outcome_always() -> None:
    name = "[base 2/2] RUN sh /run/envgen/with-network python3 /run/envgen/with-index sh /run/envgen/bootstrap python3"
    one = step(name, seconds=7.0)
    assert done_line(one) == "[base 2/2] RUN bootstrap python3  7.0s"
    assert done_line(one, 25) == "[base 2/2] RUN boo…  7.0s"
