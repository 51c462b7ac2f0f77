"""A question that mostly waits, asked in a thread while the caller continues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(ask: Callable[[], T]) -> Future[T]:
    """``ask()``, under way from now on. In a daemon thread, unlike an executor's: Ctrl-C never waits for an answer."""
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return answer
