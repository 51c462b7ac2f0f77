"""The variant that a container was started with: what is asked about it must be asked of that variant."""

from __future__ import annotations

from envgen.cli.common import Session

LABEL = "dev.envgen.variant"


def of_running(session: Session, service: str | None) -> Session:
    """``session`` with the variant of the running ``service`` (None: any of the profile's); itself if there is none."""
    from envgen.engine.docker import connect
    from envgen.errors import EngineError

    profile = session.profile()
    try:
        found = connect().containers(profile.compose_name, service)
    except EngineError:
        return session  # whoever asks next has the sentence for it
    names = {container.labels.get(LABEL, "") for container in found}
    variant = names.pop() if len(names) == 1 else ""
    if variant not in profile.variants:
        return session
    return Session(session.file, session.profile_name, session.sets, variant)
