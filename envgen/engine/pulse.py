"""Whether an engine still answers, while another program works with it."""

from __future__ import annotations

import time
from concurrent.futures import Future

from envgen.engine.endpoint import Endpoint
from envgen.engine.process import in_background
from envgen.errors import EngineTimeout
from envgen.text import progress

# seconds without an answer, after which an engine is given up while another program waits for it
SILENT = 60.0
_BETWEEN = 5.0  # seconds between two questions to it


class Pulse:
    """Watches whether an engine still answers while ``what``, another program, works with it. Call
    it now and then.

    Compose has no limit of its own: with an engine that is stopped or hangs it would wait for ever.
    """

    def __init__(self, endpoint: Endpoint, what: str, *, only_says: bool = False) -> None:
        """``only_says``: for what a user runs and can end."""
        self._endpoint, self._what, self._only_says = endpoint, what, only_says
        self._answered = self._asked = time.monotonic()
        self._question: Future[None] | None = None
        self._told = False

    def __call__(self) -> None:
        """EngineTimeout if the engine has not answered for ``SILENT`` seconds."""
        now = time.monotonic()
        if self._question is not None and self._question.done():
            if self._question.exception() is None:
                self._answered, self._told = now, False
            self._question = None
        if self._question is None and now - self._asked >= _BETWEEN:
            self._asked, self._question = now, in_background(self._ask)
        silent = now - self._answered
        if silent >= SILENT and not self._only_says:
            reason = (
                f"the Docker Engine at {self._endpoint.host} has not answered for {SILENT:.0f} s"
            )
            raise EngineTimeout(
                f"{reason}, while {self._what} waited for it", hint="systemctl status docker"
            )
        if silent >= SILENT / 3 and not self._told:
            self._told = True
            progress(
                f"  {self._what} waits for the Docker Engine, which has not answered for {silent:.0f} s"
            )

    def _ask(self) -> None:
        from envgen.engine import sdk  # only after seconds

        sdk.greet(self._endpoint)
