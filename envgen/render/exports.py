"""Files for other tools: devcontainer.json and systemd. Pure like all rendering."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from envgen.errors import RefusedError
from envgen.profile.model import Profile
from envgen.profile.values import own_path
from envgen.render.environment import OVERLAY
from envgen.render.quote import render


def devcontainer(profile: Profile, name: str, folder: str, options: Sequence[str] = ()) -> str:
    """The settings for service ``name``. ``folder``: of the file, relative to the project.
    ``options``: for `up`.
    """
    composed = [profile.compose_file]
    if profile.compose is not None:
        composed.append(own_path(profile.compose.path))
    mounted = profile.mounted_sources
    context = {
        "profile": profile,
        "service": name,
        "start": ["envgen", "up", name, "--profile", profile.name, *options],
        "files": [posixpath.relpath(path, folder) for path in composed],
        "folder": (profile.services[name].working_dir or profile.working_dir).path,
        "packages": [source.package for source in mounted.values()],
        # The overlay has the mounted sources.
        "python": f"{OVERLAY}/bin/python" if mounted else profile.base.python,
    }
    return render("devcontainer.json.j2", context)


# --- systemd
# ----------------------------------------------------------------------------------------------------------

_UNIT = """\
# Written by `envgen export systemd` for this machine. docs/recipes.md has its installation.

[Unit]
Description={title}
Wants=docker.service network-online.target
After=docker.service network-online.target
StartLimitIntervalSec=1h
StartLimitBurst=3

[Service]
Type=notify
NotifyAccess=all
User={user}
WorkingDirectory={folder}
{environment}ExecStart={start}
ExecStop={stop}
Restart=on-failure
RestartSec=30s
SuccessExitStatus=130 143
TimeoutStartSec={patience}s
TimeoutStopSec=5min

[Install]
WantedBy=multi-user.target
"""


def systemd(
    profile: Profile,
    name: str,
    *,
    program: Sequence[str],
    folder: str,
    user: str,
    environment: Mapping[str, str],
    options: Sequence[str] = (),
) -> str:
    """The unit that starts service ``name`` with the machine. RefusedError for text that no unit
    can hold.

    ``environment``: the variables of this shell that select the engine or change the profile.
    ``options``: --file and --set.
    """
    chosen = [name, "--profile", profile.name, *options]
    start = [*program, "up", *chosen]
    if profile.variant:
        start += ["--variant", profile.variant]
    patience = 600  # of `up` itself, and its checks before
    ready = profile.services[name].ready
    if ready:
        patience += ready.timeout.seconds
    variables = [_quoted(f"{key}={value}") for key, value in environment.items()]
    return _UNIT.format(
        title=_plain(f"{name} of {profile.compose_name}"),
        user=_plain(user),
        folder=_plain(folder),
        start=_words([*start, "--stay"]),
        stop=_words([*program, "stop", *chosen]),
        environment="".join(f"Environment={one}\n" for one in variables),
        patience=patience,
    )


def _plain(text: str) -> str:
    """A value that systemd reads literally, except for % specifiers."""
    if not text.isprintable() or text != text.strip() or text.endswith("\\"):
        raise RefusedError(
            f"{text!r} is not possible in a systemd unit", hint="use a folder with a plain name"
        )
    return text.replace("%", "%%")


def _words(words: Sequence[str]) -> str:
    """A command line, quoted for systemd."""
    return " ".join(_quoted(one).replace("$", "$$") for one in words)


def _quoted(text: str) -> str:
    return '"' + _plain(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
