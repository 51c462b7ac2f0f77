"""Something that mostly waits, done in a thread while the caller goes on: imports, for the most part."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_PROMPT = 0.0002  # seconds
_USUAL = sys.getswitchinterval()


class Aside(Generic[T]):
    """``ask()``, under way in a daemon thread from now on."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answers: list[T] = []
        self._errors: list[BaseException] = []
        # The thread does little between long waits. At Python's usual 5 ms it would queue behind the caller's imports
        # each time it wakes.
        sys.setswitchinterval(_PROMPT)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answers.append(self._ask())
        except BaseException as error:
            self._errors.append(error)
        finally:
            sys.setswitchinterval(_USUAL)

    def result(self) -> T:
        """Wait for the end: the answer, or whatever was raised."""
        self._thread.join()
        if self._errors:
            raise self._errors[0]
        return self._answers[0]
