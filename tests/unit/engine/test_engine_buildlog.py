"""Build logs on disk, and what a build shows."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from envgen.cli.build.display import Display
from envgen.engine.buildx import BuildLog, BuildStep, names_in


def step(name: str = "[final 2/2] RUN make all", **more: object) -> BuildStep:
    return BuildStep(name, **more)  # type: ignore[arg-type]


def test_everything_is_in_the_log(tmp_path: Path) -> None:
    with BuildLog(tmp_path / "logs", "dev") as log:
        log.say("$ buildx")
        log.say("#1 [final 2/2] RUN make all")
        assert log.path.read_text() == "$ buildx\n#1 [final 2/2] RUN make all\n"


def test_an_interrupted_build_says_so_in_its_log(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), BuildLog(tmp_path, "dev") as log:
        raise KeyboardInterrupt
    assert log.path.read_text() == "cancelled\n"


def test_two_builds_in_one_second_have_two_logs(tmp_path: Path) -> None:
    with BuildLog(tmp_path, "a") as first, BuildLog(tmp_path, "a") as second:
        assert first.path != second.path


NAMES = {"RUN make all": "Builds all"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(*steps: BuildStep, names: dict[str, str] = NAMES) -> list[str]:
    """What is printed of steps that begin and end."""
    out = io.StringIO()
    display = Display(names, out)
    for each in steps:
        ended, each.ended = each.ended, False
        display.step(each)
        each.ended = ended or True
        display.step(each)
    display.tick()
    display.close()
    return out.getvalue().splitlines()


def test_steps_are_shown_by_name_with_their_outcome() -> None:
    assert shown(
        step(seconds=12.34), step(cached=True), step(error="exit code: 1"), step(error="context canceled")
    ) == ["    12.3s  Builds all", "   cached  Builds all", "   FAILED  Builds all", "cancelled  Builds all"]


def test_what_is_internal_is_shown_where_it_fails_and_a_command_without_a_name_as_it_is() -> None:
    copy, base = "[scripts 1/1] COPY --chmod=0755 docker/ /", "[origin 1/2] FROM debian:12"
    assert shown(step("[internal] load"), step(copy, seconds=9.0), step(base), step("[a 2/3] WORKDIR /x")) == []
    assert shown(step(copy, error="not found"), step(base, seconds=33.0), step("[a 2/3] RUN x", seconds=1)) == [
        "   FAILED  [scripts 1/1] COPY docker/ /", "    33.0s  Base image debian:12", "     1.0s  [a 2/3] RUN x",
    ]  # fmt: skip


def test_the_export_of_an_image_is_shown_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes gigabytes, and BuildKit calls it a step of its own."""
    now, out = [100.0], io.StringIO()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    display = Display(NAMES, out)
    one = step("exporting to image", status="exporting layers")
    display.step(one)
    now[0] += 40
    display.tick()
    one.ended, one.seconds = True, 41.0
    display.step(one)
    assert out.getvalue().splitlines() == [
        "    … 40s  Exports the image: exporting layers", "    41.0s  Exports the image",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("Resolved 138 packages in 1.20s", "Resolved 138 packages in 1.20s, now downloading"),
        ("Prepared 1 package in 20ms", "Prepared 1 package in 20ms, now installing"),
        ("Uninstalled 2 packages in 202ms", "Uninstalled 2 packages in 202ms, now installing"),
        ("Installed 138 packages in 6.1s", "Installed 138 packages in 6.1s"),
        ("Downloaded torch", "Downloaded torch"),
    ],
)
def test_the_end_of_a_phase_is_not_shown_for_what_runs(
    status: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, out = [100.0], io.StringIO()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    display = Display(NAMES, out)
    display.step(step(status=status))
    now[0] += 40
    display.tick()
    assert out.getvalue().splitlines() == [f"    … 40s  Builds all: {expected}"]


def test_a_plain_display_is_never_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out = io.StringIO()
    display = Display(NAMES, out)
    display.step(step(status="[5/9] \x1b[31mBuilding\x1b[0m"))
    for _ in range(10):
        now[0] += 10
        display.tick()
    assert out.getvalue().splitlines() == [f"    … {s}s  Builds all: [5/9] \\x1b[31mBuilding\\x1b[0m" for s in (40, 80)]


def test_a_live_display_erases_what_it_drew(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    display = Display(NAMES, out, live=True)
    one = step()
    display.step(one)
    display.step(step("[final 3/3] RUN x"))
    now[0] += 2
    display.tick()
    one.ended, one.seconds = True, 2.0
    display.step(one)
    display.close()
    erased = "\r\x1b[K"
    running = "     … 2s  Builds all (and 1 more)"
    assert out.getvalue() == f"{erased}{running}{erased}     2.0s  Builds all\n{erased}"


def test_a_dumb_terminal_is_not_drawn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    display = Display(NAMES, out, live=True)
    display.step(step(ended=True, seconds=1.0))
    display.close()
    assert out.getvalue() == "     1.0s  Builds all\n"


DOCKERFILE = """\
# What every stage shares.
FROM debian:12 AS base

# Installs packages: ca-certificates, git. They are locked.
RUN --mount=type=secret,id=ca \\
    --mount=from=scripts,source=/a,target=/b \\
    sh /b git 1.2
COPY a b
RUN no comment
"""


def test_the_names_of_steps_are_the_comments_of_the_dockerfile() -> None:
    names = names_in(DOCKERFILE)
    assert names == {
        "RUN sh /b git 1.2": "Installs packages: ca-certificates, git",
        "RUN no comment": "What every stage shares",
    }
    one = BuildStep(
        "[base 2/3] RUN --mount=type=secret,id=ca     --mount=from=scripts,source=/a,target=/b     sh /b git 1.2"
    )
    assert one.instruction in names


def test_every_command_of_the_shipped_dockerfiles_has_a_name() -> None:
    for path in Path(__file__).parents[3].glob("Dockerfile*"):
        text = path.read_text()
        commands = set(re.findall(r"^RUN .*", text.replace("\\\n", " "), re.M))
        assert commands and len(names_in(text)) == len(commands), path.name


def test_a_name_is_one_sentence() -> None:
    text = "FROM x AS y\n# Home is open to all. (A new volume is made\n# from these folders.)\nRUN z\n"
    assert names_in(text) == {"RUN z": "Home is open to all"}
