"""`envgen up --stay` on one machine: watch a running server until it ends, for a systemd unit or a
terminal.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping

from envgen.app.failed import failed
from envgen.deployment.service import LiveService
from envgen.engine.client import Engine, connect
from envgen.engine.values import Container
from envgen.errors import EngineError, EnvgenError, ServiceError
from envgen.serve.ended import StartFailure, ending, last_end
from envgen.text import counted, progress

POLL = 1.0  # seconds between two looks
# seconds in which an engine that is being stopped ends, or one that was started starts its
# containers
SETTLE = 10.0
QUIET = 60.0  # seconds after which it is printed again that the engine does not answer


class Stay:
    """Watches the container of a service that runs. Time comes from ``now`` and ``sleep``, in
    seconds.
    """

    def __init__(
        self,
        service: LiveService,
        container: Container,
        *,
        connect: Callable[[], Engine] = connect,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._live, self._service, self._container = service, service.name, container
        self._engine, self._connect, self._now, self._sleep = service.engine, connect, now, sleep
        self._restarts = container.restarts

    def watch(self) -> None:
        """Return when the service was stopped or removed on purpose.

        ServiceError, with a crash bundle, if it has ended by itself and Docker does not start it
        again, or if it ended with the engine.
        """
        progress(f"watching {self._service}; Ctrl-C ends only the watching")
        while True:
            self._sleep(POLL)
            container, lost = self._look()
            if container is None:
                progress(f"{self._service} was removed")
                return
            self._note(container)
            if container.running or container.state == "restarting":
                continue
            end = last_end(self._engine, container)
            if end is not None and not end.asked:
                raise self._failed(ending(container))
            again, lost = (container, True) if lost else self._settled(container)
            if again is None or again.running:
                continue  # the next look finds out
            if lost:  # the end of the engine asks its containers to stop, too
                raise self._failed(StartFailure("it ended with the engine", again, says_all=True))
            progress(str(end) if end else f"{self._service} was stopped")
            return

    def _look(self) -> tuple[Container | None, bool]:
        """The service's container now, and whether the engine did not answer meanwhile."""
        lost, said = False, 0.0
        while True:
            try:
                container = self._engine.container(self._container.id)
                if container is None:  # a container that has taken its place is watched instead
                    there = self._engine.containers(
                        self._live.profile.compose_name, self._service, all=True
                    )
                    container = there[0] if there else None
                    self._container = container or self._container
                    self._restarts = container.restarts if container else 0
                if (
                    lost
                    and container is not None
                    and not container.running
                    and container.restart_policy
                ):
                    self._sleep(SETTLE)  # it may start it
                    container = self._engine.container(container.id)
                return container, lost
            except EngineError as error:
                if not lost or self._now() - said > QUIET:
                    progress(
                        f"the engine does not answer, still trying: {error.problems[0].message}"
                    )
                    said = self._now()
                lost = True
                self._sleep(POLL)
                with contextlib.suppress(EnvgenError):
                    self._engine = self._connect()

    def _settled(self, container: Container) -> tuple[Container | None, bool]:
        """What has become of a stopped container a moment later, and whether its engine ended right
        after it.
        """
        until, last, lost = self._now() + SETTLE, container, False
        while self._now() < until and not lost:
            self._sleep(POLL)
            seen, lost = self._look()
            if seen is None or seen.running:
                return seen, lost
            last = seen
        return last, lost

    def _note(self, container: Container) -> None:
        """Print that Docker has started it again."""
        if container.running and container.restarts > self._restarts:
            end = last_end(self._engine, container)
            why = f"; before, {end.why}" if end and end.why else ""
            progress(
                f"{self._service} was restarted by Docker ({counted(container.restarts, 'time')}){why}"
            )
        self._restarts = container.restarts

    def _failed(self, failure: StartFailure) -> ServiceError:
        live = self._live.on(self._live.deployment.with_cached(engine=self._engine))
        return failed(live, failure, verdict="has ended", hint=live.hint("up"))


def notify_ready(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Tell systemd that the service is ready (sd_notify), if this runs in a unit of `Type=notify`."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    address = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(f"READY=1\nSTATUS={text}\n".encode(), address)
