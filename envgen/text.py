"""Text for a terminal: makes text from others safe to print.

File names, keys, source lines, log lines and engine answers come from others. Characters that could
control a terminal, hide text or reorder it become escapes (``\\x1b``, ``\\u202e``).
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, ClassVar, TextIO

GIB = 1 << 30  # bytes

# C0 and C1 controls, DEL; soft hyphen; bidi controls; zero-width characters; line and paragraph
# separators (also NEL, which is C1); annotation anchors; invisible tags and variation selectors;
# lone surrogates.
_UNSAFE = (
    "\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e"
    "\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff0-\\ufffb\\U000e0000-\\U000e0fff\\ud800-\\udfff"
)
_IN_LINE = re.compile(f"[{_UNSAFE}]")
_IN_LINES = re.compile(rf"(?![\n\t])[{_UNSAFE}]")
# Not allowed in values of a project file: ends a line, or reorders the text around it.
_NO_TEXT = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)
# Colours, cursor movements and titles that a program writes for a terminal.
_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-9;?]{0,20}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])"
)


def visible(text: str, *, lines: bool = False) -> str:
    """``text`` safe for a terminal, in one line; with ``lines``, line breaks and tabs stay."""
    if text.isprintable() and text.isascii():  # the common case; invisible letters are printable
        return text
    unsafe = _IN_LINE
    if lines and not text.isprintable():
        unsafe = _IN_LINES
        text = text.replace("\r\n", "\n")
    return unsafe.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def shell_line(words: Iterable[str]) -> str:
    """``words`` as one printable line that a shell reads as just these words.

    A name of a file may hold a line break or a control character: bash's and zsh's $'...' writes
    those as escapes.
    """
    return " ".join(
        _dollar_quoted(word) if _IN_LINE.search(word) else shlex.quote(word) for word in words
    )


def _dollar_quoted(word: str) -> str:
    def escape(match: re.Match[str]) -> str:
        is_byte = "\udc80" <= match[0] <= "\udcff"
        how = "surrogateescape" if is_byte else "surrogatepass"  # else it is no text at all
        encoded = match[0].encode("utf-8", how)
        return "".join(f"\\x{byte:02x}" for byte in encoded)

    quoted = re.sub(r"(['\\])", r"\\\1", word)
    return "$'" + _IN_LINE.sub(escape, quoted) + "'"


def whole_number(text: str) -> int | None:
    """The number of at most 15 ASCII digits, None for other text: `int` takes more signs, fewer
    than `str.isdigit`, and
    refuses thousands of digits."""
    return int(text) if len(text) <= 15 and text.isascii() and text.isdecimal() else None


def plain_text(text: str) -> str:
    """``text`` without terminal sequences: vLLM colours the names of its processes even without a
    terminal.
    """
    return _SEQUENCE.sub("", text) if "\x1b" in text else text


def masked(text: str) -> str:
    """``text`` with ``?`` for each unsafe character but tabs: as wide as it was, for a line above a
    caret.
    """
    return _IN_LINE.sub(lambda match: "\t" if match[0] == "\t" else "?", text)


def forbidden_character(text: str) -> str:
    """The first character that no value of a project file may hold; "" without one.

    Control characters (NEL among them), line and paragraph separators, bidi controls and lone
    surrogates.
    """
    match = _NO_TEXT.search(text)
    return match[0] if match else ""


def instant(text: str) -> str:
    """An instant of the engine (``2026-01-02T03:04:05.6Z``) in seconds, as its API takes them; ""
    for anything else.
    """
    match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)$", text)
    if not match:
        return ""
    zone = match[3].replace("Z", "+00:00")
    try:
        whole = datetime.fromisoformat(match[1] + zone).astimezone(timezone.utc)
    except ValueError:
        return ""
    # A float has too few digits for nanoseconds.
    return f"{int(whole.timestamp())}.{(match[2] or '').ljust(9, '0')}"


def shorten(text: str, limit: int) -> str:
    """``text`` made visible and cut to ``limit`` characters."""
    text = visible(text[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def counted(number: int, one: str, several: str = "") -> str:
    """``1 package``, ``2 packages``; ``several`` where it is not just an s more: ``counted(n,
    "entry", "entries")``.
    """
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def first_of(lines: Sequence[str], most: int) -> list[str]:
    """At most ``most`` lines; the last one then counts the others."""
    if len(lines) > most:
        lines = [*lines[: most - 1], f"and {len(lines) - most + 1} more"]
    return list(lines)


def short_id(image_id: str) -> str:
    """An image's id as `docker image ls` shows it."""
    return image_id.removeprefix("sha256:")[:12]


def reason_of(error: BaseException) -> str:
    """An exception's message; its name where it has none."""
    return str(getattr(error, "strerror", None) or error).strip() or type(error).__name__


def network_reason(error: BaseException | str) -> str:
    """Why a server was not reached, out of the texts that urllib3 puts around it."""
    text = str(getattr(error, "__cause__", None) or error)
    reasons = re.findall(
        r"(?:Failed to resolve '[^']*'|Connection refused|Network is unreachable|No route to host"
        r"|Name or service not known|certificate verify failed|[Tt]imed out)",
        text,
    )
    return reasons[0] if reasons else shorten(text, 200)


KILLED = "it was killed: memory ran out, or somebody stopped it"


def last_printed(printed: bytes | str, code: int, lines: int = 1) -> str:
    """The last lines of a program's output; without any, how it ended."""
    if isinstance(printed, bytes):
        printed = printed.decode("utf-8", "replace")
    kept = [line.rstrip() for line in printed.splitlines() if line.strip()]
    if kept:
        return "\n".join(kept[-lines:])
    if code in (137, -9):
        return KILLED
    return f"exit code {code}, and it printed nothing"


def table(
    rows: Sequence[Sequence[str]], *, right: Collection[int] = (), indent: str = ""
) -> list[str]:
    """Aligned columns, one line per row, each cell made visible. ``right``: columns aligned to the
    right.
    """
    columns = []
    for number, column in enumerate(zip(*rows, strict=True)):
        cells = [visible(cell) for cell in column]
        width = max(map(len, cells))
        pad = str.rjust if number in right else str.ljust
        columns.append([pad(cell, width) for cell in cells])
    lines = map("  ".join, zip(*columns, strict=True))
    return [indent + line.rstrip() for line in lines]


def size(count: int) -> str:
    """A number of bytes in binary units: 8GiB, 1.5MiB, 12B."""
    for number, name in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        unit = 1 << 10 * number
        if count >= unit:
            return f"{count / unit:.1f}".removesuffix(".0") + name
    return f"{count}B"


def duration(seconds: float) -> str:
    """A time in its largest unit: 45s, 5m, 3h, 12d."""
    whole = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= length:
            return f"{whole // length}{unit}"
    return f"{whole}s"


class Styled(str):
    """Text with envgen's own colours. Text of others in it must have gone through ``visible``."""

    __slots__ = ()

    def __add__(self, other: str) -> Styled:
        return Styled(str.__add__(self, other))


def paint(text: str, code: str, colour: bool) -> str:
    """``text`` in a colour (an SGR code such as ``31;1``), or as it is."""
    return Styled(f"\x1b[{code}m{text}\x1b[0m") if colour else text


def step_line(name: str, seconds: float, what: str = "") -> Styled:
    """The line of a step that has ended well, for standard error. ``what``: what took the seconds."""
    mark = paint("ok  ", "32", wants_colour(sys.stderr, os.environ))
    return Styled(f"  {mark}  {visible(name):<7} {seconds:6.1f} s  {visible(what)}".rstrip())


def with_own_colours(line: str) -> Styled:
    """A line of a program's output with its colours, which end with it; of a progress bar the last
    state.
    """
    last = line.removesuffix("\r").rsplit("\r", 1)[-1]
    return Styled(last + "\x1b[0m" if "\x1b[" in last else last)


def wants_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """By NO_COLOR and FORCE_COLOR; else True for a terminal that is not dumb."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and environ.get("TERM", "") != "dumb"


class SafeStream:
    """A text stream that makes everything printed visible.

    Only ``Styled`` text keeps colours. Characters that the terminal's encoding lacks are escaped.
    """

    encoding = "utf-8"
    errors = "strict"
    before_write: ClassVar[Callable[[], None]] = staticmethod(lambda: None)  # removes a live line

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream  # for a live display, which moves the cursor
        self.hidden: dict[str, str] = {}  # text that must not be printed -> its replacement

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() needs text, not {type(text).__name__}")
        type(self).before_write()
        for value, instead in self.hidden.items():
            if value in text:
                text = type(text)(text.replace(value, instead))
        safe = _styled(text, os.environ) if isinstance(text, Styled) else visible(text, lines=True)
        encoding = self.raw.encoding or "utf-8"
        self.raw.write(safe.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


_COLOUR = re.compile(r"(\x1b\[[0-9;]{0,20}m)")


def _styled(text: str, environ: Mapping[str, str]) -> str:
    """Colours stay, unless NO_COLOR is set or the terminal is dumb."""
    plain = environ.get("NO_COLOR") or (
        environ.get("TERM") == "dumb" and not environ.get("FORCE_COLOR")
    )
    parts = _COLOUR.split(text)
    return "".join(
        ("" if plain else part) if number % 2 else visible(part, lines=True)
        for number, part in enumerate(parts)
    )


def hide(values: Mapping[str, str]) -> None:
    """From now on, print each value instead of its key."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, SafeStream):
            stream.hidden.update(values)


class Verbosity:
    """``on``: each program that is run is printed (`-v`)."""

    on = False


def is_terminal() -> bool:
    """Whether progress may be drawn: standard error is a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def progress(line: str) -> None:
    """One line of progress, on stderr."""
    sys.stderr.write(line + "\n")  # `print` would make plain text of Styled
    sys.stderr.flush()


def did_you_mean(known: Iterable[str], *words: str, most: int = 1, cutoff: float = 0.6) -> str:
    """``did you mean `x`?`` for the known names that resemble ``words``, at most ``most`` for
    each; "" if none does.
    """
    plain = {}
    for name in known:
        key = name.lower().replace("-", "_")
        plain[key] = name
    similar: dict[str, None] = {}
    for word in words:
        key = word.lower().replace("-", "_")
        for match in difflib.get_close_matches(key, plain, most, cutoff):
            name = visible(plain[match])
            similar[f"`{name}`"] = None
    if not similar:
        return ""
    return f"did you mean {', '.join(similar)}?"
