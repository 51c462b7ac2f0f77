"""Text of strangers on a terminal: nothing steers it, nothing is hidden, no secret of this run is printed."""

from __future__ import annotations

import io
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.cli.program import _streams, main
from envgen.errors import ProcessError
from envgen.text import (
    KILLED,
    SafeStream,
    Styled,
    counted,
    duration,
    hide,
    last_printed,
    masked,
    paint,
    progress,
    reason_of,
    shorten,
    size,
    step_line,
    table,
    visible,
    whole_number,
    with_own_colours,
)

STEERING = {"Cc", "Cs", "Zl", "Zp"}
STEERED = ["\x1b]0;PWN\x07", "\x1b[31m", "\x9b31m", "\u202eabc", "\u2066x"]
HOSTILE = [*STEERED, "a\u2028b", "a\x85b", "\u200b", "\ufeff", "\udc80"]


@given(st.text(st.characters(exclude_categories=[])))
def test_what_steers_is_spelled_out(text: str) -> None:
    for shown, allowed in ((visible(text), ""), (visible(text, lines=True), "\n\t"), (masked(text), "\t")):
        assert not [c for c in shown if unicodedata.category(c) in STEERING and c not in allowed]
        assert not set(shown) & set("\u200b\u200d\u200e\u202e\u2066\u2069\ufeff\u061c\u00ad")
    assert len(masked(text)) == len(text)


@pytest.mark.parametrize("text", ["plain", "é ü 日本語 😀", "a b", "back\\slash", "e\u0301"])
def test_what_people_write_stays(text: str) -> None:
    assert visible(text) == text == masked(text)


def test_lines() -> None:
    assert visible("a\r\nb\tc\rd", lines=True) == "a\nb\tc\\rd"
    assert visible("a\r\nb\tc") == "a\\r\\nb\\tc"
    assert shorten("abcdef", 5) == "abcd…" and shorten("abc", 5) == "abc" and shorten("\x1b\x1b\x1b", 6) == "\\x1b\\…"


def stream(encoding: str = "utf-8") -> tuple[SafeStream, io.BytesIO]:
    raw = io.BytesIO()
    return SafeStream(io.TextIOWrapper(raw, encoding, write_through=True)), raw


@pytest.mark.parametrize("text", HOSTILE)
def test_a_stream_prints_no_raw_control(text: str) -> None:
    safe, raw = stream()
    safe.write(f"{text}\n")
    assert not [c for c in raw.getvalue().decode() if unicodedata.category(c) in {*STEERING, "Cf"} and c != "\n"]


def test_only_our_own_colours_pass() -> None:
    safe, raw = stream()
    safe.write(paint("red", "31", True) + " \x1b[2J\x1b]0;x\x07\n")
    assert raw.getvalue().decode() == "\x1b[31mred\x1b[0m \\x1b[2J\\x1b]0;x\\x07\n"
    assert isinstance(paint("red", "31", True) + "x", Styled)


def test_an_encoding_that_lacks_a_letter_is_no_error() -> None:
    safe, raw = stream("ascii")
    safe.write("é\n")
    assert raw.getvalue() == b"\\xe9\n"


def test_known_values_are_printed_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    with _streams():
        hide({"hunter2-hunter2": "[redacted: known secret]"})
        sys.stdout.write("password hunter2-hunter2!\n")
        sys.stderr.write("hunter2-hunter2")
    assert capsys.readouterr() == ("password [redacted: known secret]!\n", "[redacted: known secret]")


def test_no_error_prints_a_hostile_name_or_a_secret_of_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "correct-horse-battery")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envgen.yaml").write_text('version: 1\nname: t\n"\\e[31m\\u202e": 1\nprofiles: {"\\e": {}}\n')
    for words in (["render"], ["render", "-f", "correct-horse-battery.yaml"], ["explain", "n\x1b[31m"], ["\u202e"]):
        assert main(words) == 2
        printed = capsys.readouterr().err
        assert printed and "correct-horse" not in printed
        assert not [c for c in printed if unicodedata.category(c) in {*STEERING, "Cf"} and c != "\n"]


def test_a_table() -> None:
    rows = [("name", "size"), ("a\x1b", "12B"), ("longer", "1KiB")]
    assert table(rows, right=[1], indent=" ") == [" name    size", " a\\x1b    12B", " longer  1KiB"]
    assert table([]) == []


def test_sizes_and_times() -> None:
    assert [size(count) for count in (0, 1023, 1536, 8 << 30, 3 << 40)] == ["0B", "1023B", "1.5KiB", "8GiB", "3TiB"]
    assert [duration(count) for count in (-1, 59.9, 60, 7200, 86400 * 400)] == ["0s", "59s", "1m", "2h", "400d"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain\r", "plain"),
        ("\x1b[31mred", "\x1b[31mred\x1b[0m"),
        ("10%\r50%\r100%", "100%"),
        ("\x1b]0;title\x07x\x1b[2J", "\\x1b]0;title\\x07x\\x1b[2J\x1b[0m"),
    ],
)
def test_a_log_keeps_its_colours_alone(line: str, shown: str) -> None:
    safe, raw = stream()
    safe.write(with_own_colours(line) + "\n")
    assert raw.getvalue().decode() == shown + "\n"


def test_counts_have_their_grammar() -> None:
    assert [counted(n, "package is", "packages are") for n in (0, 1, 2)] == [
        "0 packages are",
        "1 package is",
        "2 packages are",
    ]
    assert [counted(n, "file") for n in (0, 1, 2)] == ["0 files", "1 file", "2 files"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(TimeoutError(), "TimeoutError"), (OSError(28, "No space left on device", "/x"), "No space left on device"),
     (EOFError("  "), "EOFError"), (ValueError("wrong"), "wrong"), (OSError("no number"), "no number")],
)  # fmt: skip
def test_a_reason_is_never_empty(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


@pytest.mark.parametrize(
    ("printed", "code", "lines", "words"),
    [(b"", 137, 1, KILLED), ("\n \n", -9, 1, KILLED), ("", 3, 1, "exit code 3, and it printed nothing"),
     (b"a\nb\xff\n\n", 1, 1, "b\ufffd"), ("a\n\nb\n", 137, 2, "a\nb")],
)  # fmt: skip
def test_a_silent_program_has_a_reason_too(printed: bytes | str, code: int, lines: int, words: str) -> None:
    assert last_printed(printed, code, lines) == words
    assert str(ProcessError(["uv", "pip"], code, "")).rpartition(": ")[2]


@given(st.text(st.characters(categories=["Nd", "No"]), max_size=20) | st.integers(0).map(str))
def test_only_digits_are_a_number(text: str) -> None:
    found = whole_number(text)
    assert found is None or (str(found) == (text.lstrip("0") or "0") and len(text) <= 15)
    assert (found is None) == (not text or len(text) > 15 or any(char not in "0123456789" for char in text))


def test_progress_keeps_envgens_own_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", SafeStream(out))
    progress(step_line("serve: \x1b[31mstart", 1.0, "\x1b[0m"))
    assert out.getvalue() == "  \x1b[32mok  \x1b[0m  serve: \\x1b[31mstart    1.0 s  \\x1b[0m\n"
