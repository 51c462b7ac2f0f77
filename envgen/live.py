"""A live line at the end of a terminal while a command waits: what it waits for, and for how long.

Other output goes through ``SafeStream``, which removes the line first. Logs and pipes have no such
line.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from envgen.text import SafeStream, is_terminal, visible

STILL = 1.0  # seconds without output after which the line is drawn
TICK = 0.5
BAR = 20  # characters


class _Line:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.rows: dict[str, tuple[str, float]] = {}  # name -> text, start
        self.drawn = False
        self.last = time.monotonic()  # when something else was printed
        self.paused = 0

    def clear(self) -> None:
        """Remove the line, before other output."""
        with self.lock:
            self.last = time.monotonic()
            if self.drawn:
                self.drawn = False
                self._write("\r\x1b[K")

    def draw(self) -> None:
        """Draw the line, unless there was other output just now."""
        with self.lock:
            now = time.monotonic()
            if self.paused or not self.rows or now - self.last < STILL:
                return
            rows = [row for name, row in self.rows.items() if name or len(self.rows) == 1]
            texts = [f"{text}, {now - since:.0f} s" for text, since in rows]
            room = max(20, shutil.get_terminal_size().columns - 5)
            shown = visible(" | ".join(texts))[:room]
            self.drawn = True
            self._write(f"\r\x1b[K  … {shown}")

    @staticmethod
    def _write(text: str) -> None:
        raw = getattr(sys.stderr, "raw", sys.stderr)
        with suppress(OSError, ValueError):  # the reader has left
            raw.write(text)
            raw.flush()


_line = _Line()


@contextmanager
def moving(text: str) -> Iterator[None]:
    """Inside, the terminal shows ``text`` while nothing else is printed; ``doing`` adds to it."""
    if not is_terminal():
        yield
        return
    over = threading.Event()

    def tick() -> None:
        while not over.wait(TICK):
            _line.draw()

    before = SafeStream.before_write
    SafeStream.before_write = _line.clear
    _line.rows[""] = (text, time.monotonic())
    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        _line.clear()
        _line.rows.clear()
        SafeStream.before_write = before


@contextmanager
def doing(name: str, text: str) -> Iterator[None]:
    """Inside, the live line also has ``text``; ``now_doing`` changes it."""
    with _line.lock:
        _line.rows[name] = (text, time.monotonic())
    try:
        yield
    finally:
        with _line.lock:
            _line.rows.pop(name, None)
            if "" in _line.rows:
                _line.rows[""] = (_line.rows[""][0], time.monotonic())


def now_doing(name: str, text: str, share: float | None = None) -> None:
    """Change the text of ``doing``. ``share``: how much of it is done, from 0 to 1, for a bar."""
    if share is not None:
        filled = round(BAR * share)
        text += f" [{'#' * filled}{'-' * (BAR - filled)}]"
    with _line.lock:
        if name in _line.rows:
            _line.rows[name] = (text, _line.rows[name][1])


@contextmanager
def paused() -> Iterator[None]:
    """Inside, the live line is hidden, as for a question."""
    with _line.lock:
        _line.paused += 1
        _line.clear()
    try:
        yield
    finally:
        with _line.lock:
            _line.paused -= 1
