"""`envgen nodes push`: the other machines of a cluster get what the first one has. Nothing is built or downloaded."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from envgen.app import nodes, whose
from envgen.app.copy import End, Folder, archive, copy
from envgen.app.nodes import content
from envgen.app.places import At
from envgen.app.session import Session
from envgen.engine.values import COMPOSE_PROJECT, Image, Mount
from envgen.errors import EngineError, RefusedError
from envgen.profile.model import Profile, Service
from envgen.render import environment as names
from envgen.render.locking import places_of
from envgen.text import counted, progress, size

EVERY = 5.0  # seconds between two lines of progress
UNFINISHED = "-envgen-push"  # ends the name of an image until it is whole
KINDS = ("image", "sources", "model", "caches")
COMPILED = ("flashinfer", "torch", "triton", "vllm")  # caches of what the second machine would compile once more
FOLDER = "/run/envgen/folder"


@dataclass(frozen=True)
class Pushed:
    """What became of one thing on one machine. ``state``: same, sent, "to send" (a dry run), refused, failed."""

    what: str
    node: str
    state: str
    detail: str = ""
    bytes: int = 0
    seconds: float = 0.0
    hint: str = ""


class Meter:
    """Counts what passes, and says so every few seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.bytes, self.began = 0, time.monotonic()
        self._last = self.began

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def through(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """The same parts."""
        for part in parts:
            self.reached(self.bytes + len(part))
            yield part

    def reached(self, count: int) -> None:
        """Note how many bytes there are in all."""
        self.bytes = count
        now = time.monotonic()
        if now - self._last > EVERY:
            self._last = now
            progress(f"{self._what}: {size(self.bytes)} sent, {size(int(self.bytes / self.seconds))}/s")


def shared_layers(image: Image, others: Iterable[Image]) -> int:
    """How many layers of an image, from the lowest on, one of ``others`` has too."""

    def shared(other: Image) -> int:
        pairs = zip(image.layers, other.layers, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    return max(map(shared, others), default=0)


def push_image(source: End, target: End, image: Image, name: str, python: str, dry_run: bool) -> Pushed:
    """Send the layers that ``target`` lacks. Until all is there, the image that has the name keeps it. EngineError.

    ``python``: that of the image.
    """
    what, node, engine = f"image {name}", target.node, target.engine
    old = engine.image(name)
    if old is not None and content(old) == content(image):
        return Pushed(what, node, "same")
    known = shared_layers(image, engine.images())
    detail = f"{len(image.layers) - known} of {counted(len(image.layers), 'layer')}"
    if dry_run:
        return Pushed(what, node, "to send", detail)
    progress(f"{node}: {what}: sending {detail}")
    meter = Meter(f"{node}: {what}")
    unfinished = name + UNFINISHED

    def sent(known: int) -> bool:
        parts = archive(source, target, image, name, unfinished, python, known)
        try:
            engine.load_image(meter.through(parts))
        finally:
            with suppress(ValueError):  # Ctrl-C: the request's thread is in it, and ends with envgen
                parts.close()
        found = engine.image(unfinished)
        same = found is not None and content(found) == content(image)
        return same and (not known or engine.has_whole_image(unfinished))

    try:
        if not sent(known):
            progress(f"{node}: its image store has these layers in another form: sending all of them")
            detail = f"all of {counted(len(image.layers), 'layer')}"
            if not sent(0):
                raise EngineError(f"{name} arrived with other content than it was sent with: run the command again")
        engine.tag_image(unfinished, name)
    finally:
        engine.remove_image(unfinished)  # its name, where it has another one
    if old is not None and old.repo_tags == (name,):
        engine.remove_image(old.id)  # stays where a container uses it
    return Pushed(what, node, "sent", detail, meter.bytes, meter.seconds)


def push(
    session: Session, wanted: str | None, *, kinds: Collection[str], dry_run: bool, force: bool
) -> list[Pushed]:  # fmt: skip
    """Bring all machines of a service to what its first one has. What fails on one machine stops no other.

    ``force``: also over files of a checkout that were changed there. EngineError, RefusedError: the first machine has
    nothing to give.
    """
    profile, root = session.profile(), session.loaded().project.root
    _, service, cluster = nodes.choose(profile, wanted)
    first, *others = cluster.nodes
    name = profile.image_name
    source = End(first, profile.nodes[first], At(profile, first).connect())
    image = source.engine.image(name)
    if image is None:
        raise RefusedError(f"{first}: the image {name} is not there", hint="envgen build")
    found = []
    for node in others:
        what = f"image {name}"
        try:
            target = End(node, profile.nodes[node], At(profile, node).connect())
            if "image" in kinds:
                found.append(push_image(source, target, image, name, profile.base.python, dry_run))
            folders = list(_folders(profile, root, service, source, target, image, kinds))
            if folders and target.engine.image(name) is None:
                message = "its folders can be compared when it has the image"
                found.append(Pushed("folders", node, "to send" if dry_run else "failed", message))
                continue
            for folder in folders:
                what = folder.what
                found += push_folder(profile, root, folder, source, target, dry_run=dry_run, force=force)
        except (EngineError, RefusedError) as error:
            problem = error.problems[0]
            hint = problem.hint
            if "no space left" in problem.message:
                hint = f"make room there: docker --context {shlex.quote(profile.nodes[node].context)} image prune"
            state = "refused" if isinstance(error, RefusedError) else "failed"
            found.append(Pushed(what, node, state, problem.message, hint=hint))
    return found


def _folders(
    profile: Profile, root: Path, service: Service, source: End, target: End, image: Image, kinds: Collection[str]
) -> Iterator[Folder]:
    """The folders that a service uses on each machine: checkouts and what is installed of them, weights, compiled
    kernels."""
    if "sources" in kinds:
        here = names.compose_environment(profile, root)
        for name, one in profile.mounted_sources.items():
            if one.origin.checkout is not None:
                mount = Mount(here[names.checkout_variable(name)], FOLDER, read_only=True)
                yield Folder(f"checkout {name}", "checkout", mount, _writable(mount))
        overlay = Mount(names.overlay_volume(profile), FOLDER, "volume", read_only=True)
        if profile.mounted_sources and source.engine.volume(overlay.source) is not None:
            yield Folder("overlay", "mirror", overlay, _writable(overlay))
    if "model" in kinds:
        mounts, model = nodes.weights_of(source.machine, profile, root, service)
        theirs, _ = nodes.weights_of(target.machine, profile, root, service)
        for mount, other in zip(mounts, theirs, strict=True):
            assert model is not None
            if "folder" in model:
                model = {**model, "folder": model["folder"].removeprefix(f"{nodes.MODEL_HOME}/")}
            yield Folder("model", "model", mount, _writable(other), model)
    if "caches" in kinds:
        for (name, mount), (_, other) in zip(
            _cache_mounts(profile, root, source, image), _cache_mounts(profile, root, target, image), strict=True
        ):
            if mount.kind == "bind" or source.engine.volume(mount.source) is not None:
                yield Folder(f"cache {name}", "tree", replace(mount, read_only=True), _writable(other))


def _writable(mount: Mount) -> Mount:
    return replace(mount, read_only=False, create=mount.kind == "bind")


def _cache_mounts(profile: Profile, root: Path, end: End, image: Image) -> Iterator[tuple[str, Mount]]:
    """What was compiled at run time, as this machine keeps it."""
    places = places_of(profile, root, image.labels)
    for (name, cache), (place, path, kind) in zip(profile.caches.items(), places, strict=True):
        if name in COMPILED:
            own = end.machine.caches.get(name) if kind == "bind" else None
            if own is not None and cache.host is not None:
                here = names.compose_environment(profile, root)[names.cache_variable(name)]
                place = own.path + place.removeprefix(here)  # with the namespace
            yield name, Mount(place, path, kind)


def push_folder(
    profile: Profile, root: Path, folder: Folder, source: End, target: End, *, dry_run: bool, force: bool
) -> list[Pushed]:
    """Send what ``target`` lacks of a folder; nothing where there is nothing to send. EngineError."""
    what, node = folder.what, target.node
    if folder.kind in ("tree", "mirror"):
        for end in (source, target):
            if any(one.running for one in end.engine.containers(profile.compose_name)):
                return [Pushed(what, node, "refused", f"services use it on {end.node}", hint="envgen down")]
    if folder.kind == "mirror":
        whose.demand(target.engine, profile, root)
    if folder.target.kind == "volume" and target.engine.volume(folder.target.source) is None:
        if dry_run:
            return [Pushed(what, node, "to send", "all of it")]
        if folder.kind == "mirror":
            whose.make_volumes(target.engine, profile, root)
        # With the labels that Compose would give it: else it warns of a stranger at each start.
        labels = {COMPOSE_PROJECT: profile.shared_name, "com.docker.compose.volume": what.replace(" ", "-")}
        target.engine.create_volume(folder.target.source, labels)
    meter = Meter(f"{node}: {what}")
    found = copy(profile, folder, source, target, meter.reached, dry_run=dry_run, force=force)
    return [] if "absent" in found and folder.kind == "tree" else [_result(folder, source, node, found, meter, dry_run)]


def _result(folder: Folder, source: End, node: str, found: Mapping[str, Any], meter: Meter, dry_run: bool) -> Pushed:
    what = folder.what
    if "absent" in found:
        hint = "envgen model pull" if folder.kind == "model" else ""
        return Pushed(what, node, "failed", f"{source.node} has none in {folder.source.source}", hint=hint)
    if not found["files"] and not found["removed"]:
        return Pushed(what, node, "same")
    if "changed" in found:
        shown = ", ".join(map(str, found["changed"])) + ", ..." * (found["changes"] > len(found["changed"]))
        message = f"{counted(found['changes'], 'file')} in {folder.target.source} differ, and not by a push: {shown}"
        return Pushed(what, node, "refused", message, hint="`--force` replaces them with what the first machine has")
    if "free" in found:
        message = f"{size(found['bytes'])} are missing, and {size(found['free'])} are free in {folder.target.source}"
        return Pushed(what, node, "refused", message, hint="make room there")
    detail = f"{found['files']} of {counted(found['of'], 'file')}"
    detail += f", {found['removed']} removed" if found["removed"] else ""
    if dry_run:
        return Pushed(what, node, "to send", f"{detail}, {size(found['bytes'])}")
    return Pushed(what, node, "sent", detail, found["bytes"], meter.seconds)
