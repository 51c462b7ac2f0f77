"""`envgen up --stay` on one machine: watch a running server until it ends, for a systemd unit or a
terminal.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

from envgen.app.failed import failed
from envgen.deployment import Deployment, LiveService
from envgen.engine.values import Container
from envgen.errors import ServiceError
from envgen.serve.ended import StartFailure, ending, last_end
from envgen.serve.follow import Event, Follower, Kind
from envgen.text import counted, progress

POLL = 1.0  # seconds between two looks
# seconds in which an engine that is being stopped ends, or one that was started starts its
# containers
SETTLE = 10.0
QUIET = 60.0  # seconds after which it is printed again that the engine does not answer


class Stay:
    """Watches the container of a service that runs."""

    def __init__(self, service: LiveService, container: Container) -> None:
        self._live = service
        self._name = service.name
        connect = service.deployment.reconnected
        self._follower = Follower(
            service.engine, container.id, pause=POLL, reads=None, connect=connect
        )
        self._follower.restarts = container.restarts
        self._lost = False  # the engine did not answer since it ran last
        self._stopped = 0.0  # when it was first seen stopped
        self._said = 0.0  # when it was printed last that the engine does not answer

    def watch(self) -> None:
        """Return when the service was stopped or removed on purpose.

        ServiceError, with a crash bundle, if it has ended by itself and Docker does not start it
        again, or if it ended with the engine.
        """
        progress(f"watching {self._name}; Ctrl-C ends only the watching")
        for event in self._follower.events():
            if event.kind is Kind.LOST:
                self._note_loss(event)
            elif event.kind is Kind.RESTARTED and event.container:
                self._note_restart(event.container)
            elif event.kind is Kind.RUNNING:
                self._lost = False
                self._stopped = 0.0
            elif event.kind is Kind.ENDED:
                last = self._end(event.container)
                if last:
                    progress(last)
                    return

    def _end(self, container: Container | None) -> str:
        """How it was ended on purpose; "" if it may run again. ServiceError if it has failed."""
        if container is None:
            there = self._live.on(self._now).containers(all=True)
            if not there:
                return f"{self._name} was removed"
            self._follower.follow(there[0].id)  # it has taken the place of the one that was watched
            return ""
        end = last_end(self._follower.engine, container)
        if end is not None and not end.asked:
            raise self._failed(ending(container))
        self._stopped = self._stopped or time.monotonic()
        settled = time.monotonic() - self._stopped >= SETTLE
        if self._lost and (settled or not container.restart_policy):
            # The end of the engine asks its containers to stop, too.
            raise self._failed(StartFailure("it ended with the engine", container, says_all=True))
        if not settled:
            return ""
        return str(end) if end else f"{self._name} was stopped"

    def _note_loss(self, event: Event) -> None:
        now = time.monotonic()
        if event.error and (not self._lost or now - self._said > QUIET):
            why = event.error.message
            progress(f"the engine does not answer, still trying: {why}")
            self._said = now
        self._lost = True

    def _note_restart(self, container: Container) -> None:
        """Print that Docker has started it again."""
        end = last_end(self._follower.engine, container)
        why = f"; before, {end.why}" if end and end.why else ""
        times = counted(container.restarts, "time")
        progress(f"{self._name} was restarted by Docker ({times}){why}")

    @property
    def _now(self) -> Deployment:
        """The deployment, with the engine's last connection."""
        return self._live.deployment.with_cached(engine=self._follower.engine)

    def _failed(self, failure: StartFailure) -> ServiceError:
        live = self._live.on(self._now)
        return failed(live, failure, verdict="has ended", hint=live.hint("up"))


def notify_ready(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Tell systemd that the service is ready (sd_notify), if this runs in a unit of `Type=notify`."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    message = f"READY=1\nSTATUS={text}\n".encode()
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(message, address)
