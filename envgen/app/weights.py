"""The weights of a service: download them into the Hugging Face cache, and check them before a
start.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from envgen.app.session import the_service
from envgen.binding import JsonDict, JsonObject, ShapeError, bind
from envgen.deployment import Deployment, LiveService
from envgen.engine.owner import host_user
from envgen.engine.values import MEMORY, ContainerMount
from envgen.errors import ExitCode, LockError, Problem, RefusedError, UsageError
from envgen.inside import run
from envgen.profile.caches import HUGGINGFACE
from envgen.profile.model import Profile
from envgen.profile.service import ModelRef
from envgen.render import environment as names
from envgen.render.compose import PROXY
from envgen.serve.prepare import make_folder
from envgen.text import GIB, network_reason, progress

PROGRAM = run.Program("hub")
FETCHER = run.Program("hub", watch=True)  # ends with envgen: a download may run in the background
HUB = "huggingface-hub"  # the package that downloads
CACHE = HUGGINGFACE.name
HOME = "/run/envgen/huggingface"  # where the cache is mounted in a temporary container
LOOK = 60.0  # seconds to read the headers of all shards
READ = 3600.0  # seconds to read all shards
FETCH = 24 * 3600.0
FETCH_MEMORY = 8 << 30  # bytes, including the page cache
TOKEN = "HF_TOKEN"
ENDPOINT = "HF_ENDPOINT"
PROGRESS = "envgen-progress "
EVERY = 5.0  # seconds between two lines of progress


T = TypeVar("T")
Say = Callable[[str, float], None]  # a line of progress, and the share that is done


@dataclass(frozen=True)
class Weights:
    """A service's model or draft in the cache. ``state``: absent, partial, damaged or whole;
    ``bytes`` on disk.
    """

    service: str
    repo: str
    revision: str
    state: str = "absent"
    commit: str = ""
    bytes: int = 0
    files: int = 0
    problems: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether a server can load it without a network."""
        return self.state == "whole"


def choose(profile: Profile, wanted: str | None) -> str:
    """The wanted service, or the only one with a `model`."""
    with_model = [name for name, service in profile.services.items() if service.model is not None]
    line = f"services: {{{wanted or 'serve'}: {{model: {{repo: openai/gpt-oss-120b}}}}}}"
    return the_service(profile, wanted, with_model, "names no model", f"write `{line}`")


def _request(verb: str, deployment: Deployment, model: ModelRef) -> JsonDict:
    lock = deployment.lock_file
    commit = lock.commit_of(model) if lock else ""
    return {"verb": verb, "repo": model.repo, "revision": model.revision, "commit": commit}


def look(service: LiveService, *, deep: bool = False) -> list[Weights]:
    """Check the weights of a service in the cache, offline: its model, then its draft. ``deep``:
    read every byte.
    """
    return [_look(service, model, deep) for model in service.described.models]


def _look(service: LiveService, model: ModelRef, deep: bool) -> Weights:
    described = service.described
    # A draft has its model's vocabulary; some services name that of another repository, or none.
    elsewhere = {"tokenizer", "skip-tokenizer-init"} & described.args.keys()
    request = _request("check", service.deployment, model)
    request["reads"] = model == described.model and not elsewhere
    request["deep"] = deep
    patience = READ if deep else LOOK
    answer = _ask(service.deployment, request, patience) or {}
    named = {"service": service.name, "repo": model.repo, "revision": model.revision}
    return _read(Weights, {**answer, **named})


@dataclass(frozen=True)
class DownloadResult:
    """A download that has ended. ``problem``: why it failed, of the ``kind`` that has a hint;
    ``missing``: bytes.
    """

    commit: str = ""
    bytes: int = 0
    problem: str = ""
    kind: str = ""
    missing: int = 0
    free: int = 0


def fetch(
    deployment: Deployment,
    model: ModelRef,
    *,
    image: str = "",
    say: Say = lambda line, _share: progress(line),
) -> DownloadResult:
    """Download missing files of a model; HF_TOKEN and HF_ENDPOINT come from this shell.

    ``image``: one with Python and pip, which installs huggingface_hub first; "": the profile's own,
    which has it.
    ``say`` gets the progress. LockError with the reason if the download fails.
    """
    request = _request("pull", deployment, model)
    request |= {
        "ignore": list(model.ignore),
        "token": deployment.shell.get(TOKEN, ""),
        "endpoint": deployment.shell.get(ENDPOINT, ""),
        "ca": names.CA_FILE,
        "install": _hub_requirement(deployment) if image else "",
    }
    fetched = _read(
        DownloadResult, _ask(deployment, request, FETCH, on_line=_Progress(model, say), image=image)
    )
    if fetched.problem:
        raise _refused(model, fetched, token=bool(deployment.shell.get(TOKEN)))
    return fetched


def _hub_requirement(deployment: Deployment) -> str:
    """huggingface_hub at the version that the lock has for the image, if it has one."""
    for python in deployment.lock.python.values() if deployment.lock else ():
        for step in python.sets.values():
            for pin in step:
                if pin.name == HUB:
                    return f"{HUB}=={pin.version}"
    return HUB


@dataclass(frozen=True)
class _Present:
    bytes: int
    total: int


class _Progress:
    """Says the progress of a download every few seconds, with the rate and the time left."""

    def __init__(self, model: ModelRef, say: Say) -> None:
        self.model = model
        self.say = say
        self.last = 0.0
        self.began = time.monotonic()
        self.first: int | None = None

    def __call__(self, line: str) -> None:
        if not line.startswith(PROGRESS) or time.monotonic() - self.last < EVERY:
            return
        try:
            now = bind(_Present, json.loads(line.removeprefix(PROGRESS)))
        except ValueError:
            return
        self.last = time.monotonic()
        self.first = now.bytes if self.first is None else self.first
        rate = (now.bytes - self.first) / max(self.last - self.began, 0.001)
        line = f"{self.model.repo}: {now.bytes / GIB:.2f} of {now.total / GIB:.2f} GiB"
        if rate:
            minutes = (now.total - now.bytes) / rate / 60
            line += f", {minutes:.0f} min left at {rate / (1 << 20):.1f} MiB/s"
        self.say(line, now.bytes / max(1, now.total))


def preflight(service: LiveService) -> Iterator[Problem]:
    """A problem if the service can't load its weights offline."""
    for held in look(service):
        state = f"{held.state}: {'; '.join(held.problems[:3]) or 'the download is unfinished'}"
        if held.state == "absent":
            state = "not in the Hugging Face cache"
        if not held.whole:
            message = f"the weights of {held.repo} are {state}"
            yield Problem(message, hint=service.hint("model pull"))


def _refused(model: ModelRef, fetched: DownloadResult, *, token: bool) -> LockError:
    kind = fetched.kind
    message = fetched.problem
    if kind == "network":
        message = f"the hub was not reached: {network_reason(message)}"
    access = f"check the access of {TOKEN}" if token else f"export {TOKEN}=... in this shell"
    hints = {
        "access": f"{access}, and accept the model's licence on its page",
        "missing": "check services.SERVICE.model.repo and .revision",
        "network": "run the command again: it resumes",
        "space": "free space in the folder of caches.huggingface, or choose another one",
        "image": "add huggingface_hub to the image: `pip: {tools: [huggingface_hub]}`",
    }
    if kind == "space" and fetched.missing:
        message = f"{fetched.missing / GIB:.1f} GiB are missing, and {fetched.free / GIB:.1f} GiB are free"
    error = LockError(f"{model.repo} could not be downloaded: {message}", hint=hints.get(kind, ""))
    error.exit_code = ExitCode.REFUSED if kind == "space" else ExitCode.LOCK
    return error


def _mount(deployment: Deployment, *, make: bool = False) -> ContainerMount | None:
    """The Hugging Face cache as a mount; None if it doesn't exist. ``make``: create it, owned by
    the user.
    """
    engine = deployment.engine
    profile = deployment.profile
    if CACHE not in profile.caches:
        line = HUGGINGFACE.line("~/.cache/huggingface")
        raise UsageError(
            f"profile {profile.name} has no cache `{CACHE}` to keep weights in",
            hint=f"write `{line}`",
        )
    mount = replace(deployment.caches[CACHE], target=HOME, read_only=not make)
    if mount.kind == "volume" and engine.volume(mount.source) is None:
        if not make:
            return None
        deployment.create_volume(mount.source, f"cache-{CACHE}")
    elif mount.kind == "bind" and deployment.is_local:
        folder = Path(mount.source)
        if make:
            make_folder(folder)
        elif not folder.is_dir():
            return None
    return mount


def _ask(
    deployment: Deployment,
    request: JsonObject,
    timeout: float,
    *,
    on_line: Callable[[str], None] | None = None,
    image: str = "",
) -> JsonObject | None:
    """The answer of inside/hub.py; None without a cache. ``on_line``: gets the progress of a
    download.

    It runs in ``image`` (default: the profile's). Without an image, a look at a folder of this
    machine runs here.
    """
    profile = deployment.profile
    fetches = on_line is not None
    mount = _mount(deployment, make=fetches)
    if mount is None:
        return None
    if not image and deployment.image is not None:
        image = profile.image_name
    if not image and mount.kind == "bind" and not fetches and deployment.is_local:
        here = {**request, "home": mount.source}
        answer = run.ask(run.on_host({}), sys.executable, PROGRAM, here, timeout=timeout)
        return _checked(answer)
    if not image:
        message = f"the image {profile.image_name} is not built"
        raise RefusedError(message, hint=profile.hint("build"))
    mounts = [mount]
    env = {"HOME": "/tmp"}
    # Files in a folder of the host belong to the user (with sudo: to the caller).
    user = "" if mount.kind == "volume" else "{}:{}".format(*host_user(deployment.engine))
    if fetches:
        env |= {name: value for name, value in os.environ.items() if name in PROXY}
        own_ca = deployment.own_files.get("network.ca_certificates")
        if own_ca:
            mounts.append(ContainerMount(str(own_ca), names.CA_FILE, read_only=True))
    execute = run.in_image(
        deployment.engine,
        image,
        mounts=mounts,
        env=env,
        user=user,
        on_line=on_line,
        hold=fetches,
        network="bridge" if fetches else "none",
        memory=FETCH_MEMORY if fetches else MEMORY,
    )
    program = FETCHER if fetches else PROGRAM
    there = {**request, "home": HOME}
    return _checked(run.ask(execute, run.shell_python(profile), program, there, timeout=timeout))


def _checked(answer: JsonDict | run.NoAnswer) -> JsonObject:
    if isinstance(answer, run.NoAnswer):
        raise LockError(f"the Hugging Face cache could not be inspected: {answer}")
    return answer


def _read(kind: type[T], answer: JsonObject | None) -> T:
    try:
        return bind(kind, answer)
    except ShapeError as error:
        raise LockError(f"the Hugging Face cache could not be inspected: {error}") from None
