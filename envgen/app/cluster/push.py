"""`envgen nodes push`: copy from the first machine of a cluster to the others. Nothing is built or downloaded.

Images are copied by `docker save | docker load`, volumes by tar between two containers, folders by rsync over ssh.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envgen.app.cluster import nodes
from envgen.app.session import Session
from envgen.deployment import Deployment
from envgen.doctor.nodes import content
from envgen.engine import process
from envgen.engine.client import Engine
from envgen.engine.endpoint import SshAddress
from envgen.engine.values import ContainerMount, Image
from envgen.errors import EngineError, RefusedError
from envgen.jitcache.place import is_compiled
from envgen.profile.model import Profile, Service
from envgen.render import environment as names
from envgen.text import progress, size, visible

EVERY = 3.0  # seconds between two lines of progress
KINDS = ("image", "sources", "model", "caches")
FOLDER = "/run/envgen/folder"
ASIDE = ".envgen-push"  # folder in a volume for an incomplete copy
# Each machine creates its own; `nodes check` does not compare them.
LEFT_OUT = ("build", "dist", ".venv", "venv", "node_modules", "__pycache__", ".deps", ".envgen")
INSTALL = "on that machine: sudo apt-get install rsync"

LISTED = f"cd {FOLDER} && find . ! -type d -printf '%P %s %T@ %l\\n' | LC_ALL=C sort | sha256sum"
PACK = f"tar --format=posix --exclude=./{ASIDE} -C {FOLDER} -cf - ."
# Unpack aside, then move into place by hard links, which takes no time.
UNPACK = f"""set -e
cd {FOLDER}
rm -rf {ASIDE}
mkdir {ASIDE}
tar -C {ASIDE} -xpf -
[ "$1" = add ] || find . -mindepth 1 -maxdepth 1 ! -name {ASIDE} -exec rm -rf {{}} +
cp -alf {ASIDE}/. .
rm -rf {ASIDE}"""


@dataclass(frozen=True)
class Pushed:
    """The result for one thing on one machine. ``state``: same, sent, "to send" (dry run), refused, failed."""

    what: str
    node: str
    state: str
    detail: str = ""
    bytes: int = 0
    seconds: float = 0.0
    hint: str = ""


@dataclass(frozen=True)
class Copied:
    """A folder or volume to copy. ``mirror``: delete what the first machine doesn't have."""

    what: str
    source: ContainerMount
    target: ContainerMount
    mirror: bool = False
    idle: bool = False  # only while no service runs


class Meter:
    """Counts sent bytes, and prints progress every few seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.bytes, self.began = 0, time.monotonic()
        self._last = self.began

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def add(self, count: int) -> None:
        """Count bytes."""
        self.bytes += count
        self.show(f"{size(self.bytes)} sent, {size(int(self.bytes / max(self.seconds, 0.1)))}/s")

    def show(self, text: str) -> None:
        """Print a line of progress, at most every few seconds."""
        if time.monotonic() - self._last > EVERY:
            self._last = time.monotonic()
            progress(f"{self._what}: {text}")


def push(session: Session, wanted: str | None, *, kinds: Collection[str], dry_run: bool) -> list[Pushed]:
    """Copy from the first machine of a service to the others. A failure on one machine does not stop the others.

    EngineError, RefusedError: the first machine does not answer, or has no image.
    """
    deployment = session.deployment()
    profile = deployment.profile
    service, cluster = nodes.choose(profile, wanted)
    first, *others = cluster.nodes
    name = profile.image_name
    source = deployment.on(first)
    image = source.image
    if image is None:
        raise RefusedError(f"{first} has no image {name}", hint=f"envgen build {profile.chosen}")
    found = []
    for node in others:
        what = f"image {name}"
        try:
            target = deployment.on(node).with_cached(lock=source.lock)
            if "image" in kinds:
                found.append(push_image(source, target, image, name, dry_run))
            for folder in _folders(profile.services[service], source, target, kinds):
                what = folder.what
                found.append(push_folder(folder, source, target, dry_run))
        except (EngineError, RefusedError) as error:
            problem = error.problems[0]
            hint = problem.hint
            if "no space left" in problem.message.lower():
                hint = f"free space there: docker --context {shlex.quote(profile.nodes[node].context)} image prune"
            state = "refused" if isinstance(error, RefusedError) else "failed"
            found.append(Pushed(what, node, state, problem.message, hint=hint))
    return found


def push_image(source: Deployment, target: Deployment, image: Image, name: str, dry_run: bool) -> Pushed:
    """`docker save | docker load`, unless the same image is there. EngineError."""
    what, node = f"image {name}", target.node
    old = target.engine.image(name)
    if old is not None and content(old) == content(image):
        return Pushed(what, node, "same")
    if dry_run:
        return Pushed(what, node, "to send", size(image.size))
    progress(f"{node}: {what}: sending {size(image.size)}")
    meter = Meter(f"{node}: {what}")
    process.pipe(source.docker("save", name), target.docker("load", "--quiet"), meter.add)
    new = target.engine.image(name)
    if new is None or content(new) != content(image):
        raise EngineError(f"{name} is different on {node} after the copy", hint="run the command again")
    if old is not None and old.repo_tags == (name,):
        target.engine.remove_image(old.id)  # stays where a container uses it
    return Pushed(what, node, "sent", "", meter.bytes, meter.seconds)


def _folders(service: Service, source: Deployment, target: Deployment, kinds: Collection[str]) -> Iterator[Copied]:
    """The folders and volumes of a service: checkouts and their overlay, weights, caches of compiled kernels."""
    if "sources" in kinds:
        profile, variables = source.profile, names.compose_environment(source.profile, source.root)
        for name, one in profile.mounted_sources.items():
            if one.origin.checkout is not None:
                mount = ContainerMount(variables[names.checkout_variable(name)], FOLDER)
                yield Copied(f"checkout {name}", mount, mount, mirror=True)
        overlay = ContainerMount(names.overlay_volume(profile), FOLDER, "volume")
        if profile.mounted_sources and source.engine.volume(overlay.source) is not None:
            yield Copied("overlay", overlay, overlay, mirror=True, idle=True)
    if "model" in kinds:
        for mine, theirs in zip(*(_weights(end, service) for end in (source, target)), strict=True):
            yield Copied("model", mine, theirs)
    if "caches" in kinds:
        for name in filter(is_compiled, source.caches):
            mine, theirs = source.caches[name], target.caches[name]
            there = Path(mine.source).is_dir() if mine.kind == "bind" else source.engine.volume(mine.source)
            if there:
                yield Copied(f"cache {name}", mine, theirs, idle=True)


def _weights(end: Deployment, service: Service) -> list[ContainerMount]:
    """Where a machine has the weights: a whole volume, the folders of model and draft in the cache, or one folder."""
    mounts, model = nodes.weights_of(end, service)
    if not mounts or model is None:
        return []
    [mount] = mounts
    if mount.kind != "bind":
        return [replace(mount, target=FOLDER)]
    if "repo" not in model:
        return [ContainerMount(mount.source + model["folder"].removeprefix(nodes.MODEL_HOME), FOLDER)]
    return [
        ContainerMount(f"{mount.source}/hub/models--{one.repo.replace('/', '--')}", FOLDER) for one in service.models
    ]


def push_folder(folder: Copied, source: Deployment, target: Deployment, dry_run: bool) -> Pushed:
    """Send what ``target`` lacks of a folder or volume. EngineError, RefusedError."""
    if folder.idle:
        for end in (source, target):
            if any(one.running for one in end.engine.containers(end.profile.compose_name)):
                hint = f"envgen down {source.profile.chosen}"
                raise RefusedError(f"running services use it on {end.node}", hint=hint)
    if folder.source.kind == "bind":
        return _rsync(folder, source, target, dry_run)
    return _volume(folder, source, target, dry_run)


# --- volumes ----------------------------------------------------------------------------------------------------------


def _volume(folder: Copied, source: Deployment, target: Deployment, dry_run: bool) -> Pushed:
    """Copy a volume by tar in a container of the image at each end."""
    profile, name, what, node = target.profile, folder.source.source, folder.what, target.node
    there, image = target.engine.volume(name) is not None, target.engine.image(profile.image_name)
    if there and image and _listed(source.engine, profile, name) == _listed(target.engine, profile, name):
        return Pushed(what, node, "same")
    if image is None and not dry_run:
        raise RefusedError(f"{node} has no image to unpack it with", hint="add --image")
    if dry_run:
        return Pushed(what, node, "to send", "all of it")
    if folder.mirror:
        target.require_name()
    if not there:
        target.create_volume(name, what.replace(" ", "-"))
    meter = Meter(f"{node}: {what}")
    run = ("run", "--rm", "-i", "--network=none", "--log-driver=none", "--user=0:0", "--entrypoint=sh", "-v")
    pack = (f"{name}:{FOLDER}:ro", profile.image_name, "-c", PACK)
    unpack = (f"{name}:{FOLDER}", profile.image_name, "-c", UNPACK, "sh", "all" if folder.mirror else "add")
    process.pipe(source.docker(*run, *pack), target.docker(*run, *unpack), meter.add)
    return Pushed(what, node, "sent", "", meter.bytes, meter.seconds)


def _listed(engine: Engine, profile: Profile, volume: str) -> bytes:
    """A digest of the names, sizes and times of all files in a volume."""
    mount = ContainerMount(volume, FOLDER, "volume", read_only=True)
    done = engine.run_once(profile.image_name, ["sh", "-c", LISTED], mounts=[mount], user="0:0", timeout=600)
    if done.code:
        raise EngineError(f"can't list the files of {volume}: {visible(done.stderr.decode(errors='replace'))}")
    return done.stdout


# --- folders ----------------------------------------------------------------------------------------------------------


def _rsync(folder: Copied, source: Deployment, target: Deployment, dry_run: bool) -> Pushed:
    """Copy a folder by rsync over the ssh address of the machine's Docker context."""
    what, node = folder.what, target.node
    if not source.engine.endpoint.local:
        hint = f"run `envgen nodes push {source.profile.chosen}` on {source.node}"
        raise RefusedError(f"{folder.source.source} is on {source.node}, not on this machine", hint=hint)
    if not Path(folder.source.source).is_dir():
        hint = f"envgen model pull {source.profile.chosen}" if what == "model" else ""
        raise EngineError(f"{source.node} has no {folder.source.source}", hint=hint)
    host = target.engine.endpoint.host
    if not host.startswith("ssh://"):
        hint = f"docker context update {target.profile.nodes[node].context} --docker host=ssh://HOST"
        raise RefusedError(f"rsync needs ssh, and the Docker context of {node} is {host}", hint=hint)
    if shutil.which("rsync") is None:
        raise EngineError("rsync is not installed on this machine", hint="sudo apt-get install rsync")
    address, there = SshAddress.parse(host), folder.target.source.rstrip("/")
    words = ["rsync", "--archive", "--protect-args", "--partial", "--mkpath", f"--rsh={shlex.join(address.login)}"]
    if folder.mirror:
        # Keep replaced and deleted files beside the checkout.
        words += ["--delete", "--backup", f"--backup-dir={there}.before-push"]
        words += [f"--exclude={name}" for name in LEFT_OUT]
    ends = [f"{folder.source.source.rstrip('/')}/", f"{address.host}:{there}/"]
    rows = _rows([*words, "--dry-run", "--out-format=%i %l", *ends], node, Meter(""))
    counts = [int(row.split()[1]) for row in rows if row[:2] in ("<f", "cL")]
    removed = sum(row.startswith("*deleting") for row in rows)
    if not counts and not removed:
        return Pushed(what, node, "same")
    detail = f"{len(counts)} files" if len(counts) != 1 else "1 file"
    detail += f", {removed} removed" if removed else ""
    if dry_run:
        return Pushed(what, node, "to send", f"{detail}, {size(sum(counts))}")
    meter = Meter(f"{node}: {what}")
    _rows([*words, "--out-format=%n", *ends], node, meter)
    return Pushed(what, node, "sent", detail, sum(counts), meter.seconds)


def _rows(argv: Sequence[str], node: str, meter: Meter) -> list[str]:
    """Run rsync. Returns its line for each file. EngineError with its message."""
    rows = []

    def note(channel: str, line: bytes) -> None:
        if channel == "stdout":
            rows.append(line.decode(errors="replace"))
            meter.show(visible(rows[-1]))

    done = process.stream(argv, note)
    if not done.code:
        return rows
    error = done.stderr.decode(errors="replace").strip()
    if done.code == 127 or "rsync: command not found" in error or "rsync: not found" in error:
        raise EngineError(f"rsync is not installed on {node}", hint=INSTALL)
    hint = "run the command again: it resumes" if done.code in (10, 12, 30, 35, 255) else ""
    raise EngineError(f"rsync: {visible(error.splitlines()[0] if error else f'exit code {done.code}')}", hint=hint)
