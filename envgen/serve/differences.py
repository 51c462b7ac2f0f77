"""How a running container differs from the settings of its service, and whether `up` would replace
it.

A running server is replaced only if the user asks for it: loading a large model takes minutes.
Variables that only the first terminal had (HF_TOKEN) are taken from the running container; every
other difference is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from envgen.binding import JsonObject
from envgen.deployment import Deployment, LiveService
from envgen.engine.values import Container, Image
from envgen.errors import Problem, RefusedError, ServiceError
from envgen.profile.model import Profile
from envgen.redact import redact, secret_like
from envgen.render.compose import PROXY
from envgen.text import progress, short_id

CONFIG_HASH = "com.docker.compose.config-hash"
NONE = "none"


class NotReplaced(RefusedError):
    """A service that runs with other settings, and was left alone."""


def recreate_refused(service: LiveService, differences: Sequence[str]) -> NotReplaced:
    """The error for a service that runs with other settings, with the command that replaces it."""
    message = f"{service.name} is running, and a start with the current settings would replace it:"
    first = [Problem(text) for text in differences[:-1]]
    last = Problem(differences[-1], hint=f"{service.hint('up')} --recreate")
    return NotReplaced(problems=(Problem(message), *first, last))


def _kept(deployment: Deployment, running: Container) -> dict[str, str]:
    """The values of ``running`` for variables that this terminal does not set."""
    shell = deployment.shell
    names = [name for name in _passed(deployment.profile) if name not in shell]
    return {name: running.env[name] for name in names if running.env.get(name)}


def keep_moment(deployment: Deployment, running: Container) -> Deployment:
    """``deployment`` with the values of ``running`` for variables that this terminal does not set."""
    env = {**deployment.compose.env, **_kept(deployment, running)}
    return deployment.with_cached(compose=replace(deployment.compose, env=env))


def compared(service: LiveService, running: Container) -> tuple[LiveService, tuple[str, ...]]:
    """``keep_moment`` and the ``differences`` that are left; prints which variables are kept."""
    secrets = service.profile.secrets
    for name in _kept(service.deployment, running):
        if name in secrets:
            kept = f"{service.name} keeps the value it was started with"
            progress(f"  note: {name} is not set in this terminal; {kept}")
    same = service.on(keep_moment(service.deployment, running))
    return same, differences(same, running)


def settings_differ(deployment: Deployment, containers: Iterable[Container]) -> dict[str, bool]:
    """Container ID -> whether Compose would replace it because of its settings. What can't be
    compared is left out.

    Compose labels a container with a digest of its service's settings, which does not cover the
    image.
    """
    asked = {}
    answers = {}
    for container in containers:
        compose = keep_moment(deployment, container).compose
        question = tuple(sorted(compose.env.items()))
        if question not in asked:
            asked[question] = compose.digests()
        digest = asked[question].get(container.service)
        if digest is not None:
            answers[container.id] = digest != container.labels.get(CONFIG_HASH)
    return answers


def differences(service: LiveService, running: Container) -> tuple[str, ...]:
    """A line for each setting that makes Compose replace ``running``; empty if Compose would keep
    it.

    Compose's digest of the settings decides, and the image; the lines are ours. ProcessError if
    Compose fails.
    """
    deployment = service.deployment
    engine = service.engine
    image = tuple(_image(deployment.image, running))
    digest = deployment.compose.digests().get(service.name)
    if digest and digest == running.labels.get(CONFIG_HASH):
        return image
    wanted = deployment.compose.service(service.name)
    if not wanted:
        raise ServiceError(f"docker compose config describes no service {service.name}")
    document = engine.inspect(running.id) or {}
    config = document.get("Config") or {}
    host = document.get("HostConfig") or {}
    base = engine.image(running.image_id)
    inherited = base.env if base else {}
    passed = _passed(service.profile)
    lines = (
        *image,
        *_words("command", wanted.get("command"), config.get("Cmd")),
        *_words("entrypoint", wanted.get("entrypoint"), config.get("Entrypoint")),
        *_environment(wanted.get("environment") or {}, running, inherited, passed),
        *(
            f"{name}: {old} is now {new}"
            for name, old, new in _settings(wanted, host, running)
            if old != new
        ),
    )
    return lines or ("other settings of the Compose file",)


def _passed(profile: Profile) -> tuple[str, ...]:
    return (*profile.secrets, *PROXY)


def _image(image: Image | None, running: Container) -> Iterator[str]:
    if image is not None and image.id != running.image_id:
        yield f"image: {short_id(running.image_id)} is now {short_id(image.id)}"


def _words(key: str, wanted: Any, running: Sequence[str] | None) -> Iterator[str]:
    old = list(running or [])
    if not isinstance(wanted, list) or wanted == old:
        return
    removed = [f"-{redact(word)}" for word in old if word not in wanted]
    added = [f"+{redact(word)}" for word in wanted if word not in old]
    yield f"{key}: {' '.join(removed + added) or 'the same words in another order'}"


def _settings(
    wanted: JsonObject, host: JsonObject, running: Container
) -> Iterator[tuple[str, str, str]]:
    """Name, old and new value of where a container's mounts and ports lead, and of what lets it do
    more on its machine.
    """
    user = str(wanted.get("user") or "root")
    if "user" in wanted or ":" in running.user:  # an unset user is the image's
        yield "user", running.user or "root", user
    yield from _mounts(wanted.get("volumes") or (), running)
    open_ = {f"{port.host}:{port.container}" for port in running.ports}
    published = {f"{one.get('published')}:{one.get('target')}" for one in wanted.get("ports") or ()}
    yield "ports", _listed(open_), _listed(published)
    had = _capabilities(host.get("CapAdd"))
    gets = _capabilities(wanted.get("cap_add"))
    yield "cap_add", had, gets
    yield "pid", host.get("PidMode") or NONE, wanted.get("pid") or NONE
    was_privileged = bool(host.get("Privileged"))
    is_privileged = bool(wanted.get("privileged"))
    yield "privileged", str(was_privileged), str(is_privileged)
    was_on_host = host.get("NetworkMode") == "host"
    is_on_host = wanted.get("network_mode") == "host"
    yield "on the host's network", str(was_on_host), str(is_on_host)


def _mounts(wanted: Sequence[Any], running: Container) -> Iterator[tuple[str, str, str]]:
    mounted = {mount.target: mount.source for mount in running.mounts}
    sources = {}
    for volume in wanted:
        source = volume.get("source") or volume.get("type")
        sources[volume["target"]] = str(source)
    for target in sorted(mounted.keys() | sources.keys()):
        old = mounted.get(target, NONE)
        new = sources.get(target, NONE)
        is_named = new != NONE and not new.startswith("/")
        if old == NONE or not is_named:  # else Compose has another name for the same volume
            yield f"mount {target}", old, new


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or NONE


def _capabilities(names: Sequence[str] | None) -> str:
    return _listed(name.upper().removeprefix("CAP_") for name in names or ())


def _environment(
    wanted: JsonObject,
    running: Container,
    inherited: Mapping[str, str],
    passed: Collection[str],
) -> Iterator[str]:
    for name, value in sorted(wanted.items()):
        old = running.env.get(name)
        new = str(value)
        # None: passed on from the terminal, where it is not set
        if value is None or old == new:
            continue
        if name in passed or secret_like(name):
            yield f"environment: {name} has another value"
        elif old is None:
            yield f"environment: {name}={redact(new)} is new"
        else:
            yield f"environment: {name}={redact(old)} is now {redact(new)}"
    for name in sorted(set(running.env) - set(wanted)):
        if inherited.get(name) != running.env[name]:
            yield f"environment: {name} is no longer set"
