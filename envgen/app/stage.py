"""One service in several forms, one after the other: what ran before runs again afterwards."""

from __future__ import annotations

from functools import partial
from types import TracebackType

from envgen.app import lifecycle
from envgen.app.cluster.machines import head_of, machines_of, on_all
from envgen.app.session import Session, with_running_variant
from envgen.app.start import StartOptions
from envgen.app.up import check
from envgen.deployment import LiveService
from envgen.errors import EngineError
from envgen.text import progress

PLAIN = "plain"  # the profile without a variant


def sessions_of(session: Session, name: str) -> Session | None:
    """The session of the variant (``a+b``: several; ``plain``: none) or profile ``name``; None
    where it is neither.
    """
    profile = session.profile()
    if name not in profile.variants and name == PLAIN:
        return session.with_(variant="")
    if set(name.split("+")) <= set(profile.variants):
        return session.with_(variant=name)
    if name in session.loaded().project.profiles:
        return session.with_(profile_name=name, variant="")
    return None


class VariantSwitch:
    """Where the forms of a service are shown. At the end what ran before starts again, but not
    after Ctrl-C.
    """

    def __init__(self, session: Session, service: str) -> None:
        self.service = service
        head = head_of(session.deployment(), service)
        running = head.ours(head.engine.containers(head.profile.compose_name, service))
        self.before: Session | None = None
        if running:
            self.before = with_running_variant(session, service, lambda: head.engine)
        self.now = self.before

    def show(self, session: Session) -> float:
        """Start the service as ``session`` says, in place of what runs. Returns the seconds until
        it was ready.
        """
        wanted = session.deployment()
        if self.now and self.now.profile().compose_name != wanted.profile.compose_name:
            self.clear()
        checked = check(LiveService(wanted, self.service))
        self.now = (
            session  # also where it fails on the way: then nothing, or a part of it, is there
        )
        return checked.start(lambda _question: True, StartOptions(recreate=True)).seconds

    def clear(self) -> None:
        """Remove what runs."""
        if self.now is None:
            return
        remove = partial(
            lifecycle.remove,
            names=[self.service],
            volumes=False,
            dry_run=False,
        )
        _, left = on_all(machines_of(self.now.deployment(), [self.service]), remove)
        if left:
            raise EngineError(left[0])
        self.now = None

    def __enter__(self) -> VariantSwitch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _at: TracebackType | None
    ) -> None:
        if self.now is self.before:
            return
        again = self.before.profile().hint("up", self.service) if self.before else ""
        if kind is KeyboardInterrupt:
            self.clear()
            if again:
                progress(f"what ran before starts again with: {again}")
        elif self.before:
            progress(f"starting again what ran before: {again}")
            self.show(self.before)
        else:
            self.clear()
