"""Checks before a service starts, all problems at once; and its folders and volumes, made ready."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envgen.deployment import Deployment
from envgen.engine import host
from envgen.engine.client import Engine
from envgen.engine.gpu import NO_GPU
from envgen.engine.host import mem_available
from envgen.engine.owner import ROOT, caller, run_as
from envgen.engine.values import Container, ContainerMount
from envgen.errors import EngineError, EnvgenError, ExitCode, Problem, RefusedError
from envgen.profile.exposure import API_KEY, asks_for_key, exposed, on_loopback, renumbered
from envgen.profile.model import REPOSITORIES, GpuMode, Mode, Profile, Source
from envgen.profile.values import ByteSize, PortMapping
from envgen.render import environment as names
from envgen.render.environment import OVERLAY, overlay_volume
from envgen.render.locking import with_version
from envgen.render.outputs import RENDER_LABEL
from envgen.text import GIB, first_of, progress

Holder = Callable[[PortMapping], str]  # who uses a port, in words; "" if it is free
# "Bind for 127.0.0.1:8000 failed: port is already allocated", "failed to bind host port 127.0.0.1:8000/tcp: address
# already in use", "failed to bind host port for 127.0.0.1:8000:172.18.0.2:8000/tcp: ..."
_BIND = re.compile(
    r"[Bb]ind (?:for|host port(?: for)?) \S*?:(\d{1,5})(?:[:/ ].*)? .*(?:already allocated|already in use)"
)
# runc: 'error mounting "/src/lib" to rootfs at "/lib": stat /src/lib: no such file or directory'; before it the engine,
# of a container that has ended: 'bind source path does not exist: /src/lib/.git'
_VANISHED = re.compile(
    r'error mounting "([^"]+)" to rootfs .*no such file or directory|bind source path does not exist: (.+)'
)
# 'failed to set up container networking: network 1c9f... not found', with the ID of the network
_NETWORK = re.compile(r"network [0-9a-f]{64} not found")


class PreflightError(EnvgenError):
    """The service can't start; all reasons. ``only_lacking``: nothing stands in the way but an image or weights that
    `up` can make."""

    exit_code = ExitCode.REFUSED

    def __init__(self, service: str, problems: tuple[Problem, ...], *, only_lacking: bool = False) -> None:
        super().__init__(problems=(Problem(f"{service} was not started:"), *problems))
        self.only_lacking = only_lacking


@dataclass(frozen=True)
class Preflight:
    """What the checks found: the GPU mode to use, the container that already runs, and notes to print."""

    gpu: GpuMode
    running: Container | None
    notes: tuple[str, ...] = ()


def check(deployment: Deployment, name: str, weights: Callable[[], Iterable[Problem]] = tuple) -> Preflight:
    """Check image, mounts, ports, GPU, files and weights. PreflightError with every problem.

    ``weights``: what keeps the service from loading its model; asked only if the image exists and the service does not
    run. Nothing is started, pulled or written.
    """
    notes: list[str] = []
    profile, engine = deployment.profile, deployment.engine
    mine = engine.containers(profile.compose_name, name)
    image = tuple(of_image(deployment))
    problems = [*refusals(deployment, name, running=bool(mine), notes=notes)]
    if engine.info().local:
        problems += ports(engine, profile, name, mine)
    notes += exposure(profile, name)
    gpu = deployment.gpu
    if gpu is GpuMode.NONE and profile.gpu is GpuMode.AUTO:
        notes.append(f"{name} starts without a GPU: {NO_GPU} (`gpu: required` refuses then, `gpu: none` is silent)")
    looked = profile.services[name].model is not None and not mine and deployment.image is not None
    lacking = tuple(weights()) if looked else ()
    if image or problems or lacking:
        raise PreflightError(name, (*image, *problems, *lacking), only_lacking=not problems)
    return Preflight(gpu, mine[0] if mine else None, tuple(notes))


def exposure(profile: Profile, name: str) -> list[str]:
    """A note if every machine in the network can reach the service."""
    service, open_to_all = profile.services[name], exposed(profile, name)
    if not open_to_all:
        return []
    near = f"publish it as '{on_loopback(service)}'" if service.network is None else "write args: {host: 127.0.0.1}"
    return [open_to_all + ("" if asks_for_key(profile, service) else f"; {near}, or add {API_KEY} to `secrets`")]


def check_once(deployment: Deployment, name: str) -> None:
    """What a one-off container needs: image, checkouts, files, and the GPU of the profile. PreflightError."""
    problems = [*of_image(deployment), *refusals(deployment, name, running=True)]
    if problems:
        raise PreflightError(name, tuple(problems))


def refusals(
    deployment: Deployment, name: str, *, running: bool, notes: list[str] | None = None
) -> tuple[Problem, ...]:
    """What `up` refuses besides an old image and taken ports: checkouts, files, memory, the GPU.

    ``running``: the service already has its memory. ``notes`` gets what may still go wrong.
    """
    profile, root = deployment.profile, deployment.root
    service, problems = profile.services[name], list[Problem]()
    if deployment.is_local:  # a remote engine's machine can't be checked from here
        problems += [*_mounts(deployment), *_own_mounts(profile, root, name), *deployment.missing_files]
        problems += _cache_folders(deployment)
        if service.needs_memory is not None and not running:
            short, memory_notes = check_memory(service.needs_memory.bytes, unified=profile.gpu is not GpuMode.NONE)
            problems += short
            notes = [] if notes is None else notes
            notes += memory_notes
        if floor := names.memory_floor(profile, name) if not running else "":
            problems += check_floor(deployment.shell.get(names.FLOOR_VARIABLE) or floor)
        if notes is not None and not running:
            notes += memory_plan(profile, name, deployment.shell.get(names.FLOOR_VARIABLE) or floor)
    return (*problems, *([deployment.lacks_gpu] if deployment.lacks_gpu else []))


def of_image(deployment: Deployment) -> Iterator[Problem]:
    """Whether the profile's image is missing or older than what is rendered now."""
    profile, image = deployment.profile, deployment.image
    what = "is not built"
    if image is not None:
        what = "is older than the profile" if RENDER_LABEL in image.labels else "was not built by envgen"
        if changes := first_of([str(one) for one in deployment.outdated], 4):
            what += f" ({'; '.join(changes)})"
    if not deployment.is_current:
        hint = f"envgen build {profile.chosen}"
        if deployment.needs_lock:
            hint = f"{profile.lock_command} && {hint}"
        yield Problem(f"the image {profile.image_name} {what}", hint=hint)


def check_again(deployment: Deployment, container: Container) -> None:
    """PreflightError if folders that ``container`` mounts are gone: it would stop and not start again."""
    if deployment.is_local:
        profile, root = deployment.profile, deployment.root
        mounted = {mount.source for mount in container.mounts}
        problems = [*_mounts(deployment, mounted), *_own_mounts(profile, root, container.service, mounted)]
        if problems:
            raise PreflightError(container.service, tuple(problems))


def _place(root: Path, path: str) -> Path:
    """The absolute path of a folder of the profile, as Compose resolves it."""
    return Path(os.path.normpath(root / Path(path).expanduser()))


def _elsewhere(profile: Profile, name: str) -> str:
    """The hint for a checkout that is somewhere else."""
    wanted = f"sources: {{{name}: {{origin: {{checkout: /path/to/{name}}}}}}}"
    return f"write `{wanted}` below profiles.{profile.name} in envgen.local.yaml"


def _clone(deployment: Deployment, source: Source, folder: Path) -> str:
    """The hint for a checkout for the `binaries` of a source, after its first quote; "" if it is not known."""
    if source.binaries is None or source.distribution not in REPOSITORIES:
        return ""
    version = with_version(source.binaries, deployment.locked).version
    if not version:  # the release that fits is what the others ask for
        return f"envgen lock -p {deployment.profile.name}` and this again: it names the release to clone"
    words = ("git", "clone", "--branch", f"v{version}", "--recurse-submodules", REPOSITORIES[source.distribution])
    return shlex.join([*words, os.path.relpath(folder)]) + "`"


def _mounts(deployment: Deployment, among: Collection[str] | None = None) -> Iterator[Problem]:
    """What is wrong with checkouts; with ``among``, only with those folders."""
    profile, root = deployment.profile, deployment.root
    for name, source in profile.mounted_sources.items():
        assert source.origin.checkout is not None
        folder, hint = _place(root, source.origin.checkout.path), _elsewhere(profile, name)
        if among is not None and str(folder) not in among:
            continue
        if not folder.exists() and (clone := _clone(deployment, source, folder)):
            hint = f"`{clone}, or {hint}"
        if not folder.is_dir():
            yield Problem(f"sources.{name}: folder {folder} does not exist", hint=hint)
        elif not os.access(folder, os.R_OK | os.X_OK):
            yield Problem(f"sources.{name}: {folder} can't be read", hint=f"ls -ld {folder}")
        elif not any(folder.iterdir()):
            yield Problem(f"sources.{name}: {folder} is empty", hint=hint)
        elif not _has_package(folder, source.package):
            others = [other for other, one in profile.sources.items() if _has_package(folder, one.package)]
            instead = f"; it looks like {others[0]}" if others else ""
            yield Problem(f"sources.{name}: {folder} has no Python package {source.package}{instead}", hint=hint)


def _own_mounts(profile: Profile, root: Path, name: str, among: Collection[str] | None = None) -> Iterator[Problem]:
    for key, mount in profile.services[name].mounts.items():
        place = _place(root, mount.host.path)
        if not place.exists() and (among is None or str(place) in among):
            where = f"services.{name}.mounts.{key}"
            yield Problem(f"{where}: {place} does not exist", hint=f"make it, or correct {where}.host")


def _cache_folders(deployment: Deployment) -> Iterator[Problem]:
    """Cache folders that Docker would have to create from a specification SOURCE:TARGET."""
    for name, mount in deployment.caches.items():
        if mount.kind == "bind" and ":" in mount.source:
            wanted = f"caches: {{{name}: {{host: /other/folder}}}}"
            hint = (
                f"move the project, or write `{wanted}` below profiles.{deployment.profile.name} in envgen.local.yaml"
            )
            yield Problem(f"caches.{name}: Docker can't mount {mount.source}, which has a colon in it", hint=hint)


def _has_package(folder: Path, package: str) -> bool:
    places = [folder / sub / package for sub in ("", "src")]
    return any((p / "__init__.py").is_file() or p.with_name(f"{package}.py").is_file() for p in places)


def ports(engine: Engine, profile: Profile, name: str, mine: tuple[Container, ...]) -> Iterator[Problem]:
    """Ports of the service that something other than its own containers ``mine`` uses."""
    service = profile.services[name]
    own = {port.host for container in mine for port in container.ports}
    wanted = [port for port in service.host_ports if port.host not in own]
    if not wanted or (service.network is not None and mine):  # then the listener is the service itself
        return
    holder = holders(engine)
    taken = {port: found for port in wanted if (found := holder(port))}
    hint = _free_ports(profile, name, holder, *(port.host for port in taken))
    for port, found in taken.items():
        yield Problem(f"port {port.host} is taken by {found}", hint=hint)


def _free_ports(profile: Profile, name: str, holder: Holder, *taken: int) -> str:
    """The hint for taken ports: all ports of the service, the taken ones with the next free number."""
    service = profile.services[name]
    if service.network is not None:
        return "stop it, or let the server listen on another port"
    used, numbers = {port.host for one in profile.services.values() for port in one.ports}, {}
    for port in service.ports:
        if port.host in taken:
            others = (replace(port, host=number) for number in range(port.host + 1, 65536) if number not in used)
            numbers[port.host] = next((other.host for other in others if not holder(other)), port.host)
            used.add(numbers[port.host])
    return f'stop it, or take a free one: --set "services.{name}.ports={renumbered(service, numbers)}"'


def changed_meanwhile(deployment: Deployment, name: str, lines: Sequence[str]) -> RefusedError | None:
    """The check's error for what Compose printed, if a port was taken or a mounted folder removed since the check."""
    profile, root = deployment.profile, deployment.root
    gone = next((found[1] or found[2] for line in lines if (found := _VANISHED.search(line))), None)
    if gone is None:
        refused = {int(found[1]) for line in lines if (found := _BIND.search(line))}
        port = next((one for one in profile.services[name].ports if one.host in refused), None)
        if port is None:
            return None
        holder = holders(deployment.engine)
        who = holder(port) or "another program"
        taken = f"{name} was not started: port {port.host} was taken by {who} in the meantime"
        return RefusedError(taken, hint=_free_ports(profile, name, holder, port.host))
    path, up = Path(gone.strip()), f"envgen up {name} {profile.chosen_variant}"
    for source, one in profile.mounted_sources.items():
        assert one.origin.checkout is not None
        folder = _place(root, one.origin.checkout.path)
        if path.is_relative_to(folder) and not folder.is_dir():
            hint = f"bring it back, or {_elsewhere(profile, source)}; then: {up}"
            return RefusedError(f"{name} was not started: sources.{source}: folder {folder} does not exist", hint=hint)
    why = f"its container was made with {path}, which is no longer there"
    return RefusedError(f"{name} was not started: {why}", hint=f"to make it with what the profile names: {up}")


def network_gone(lines: Sequence[str]) -> bool:
    """Whether Compose failed to start an existing container whose network was removed, as `docker network prune` does.

    Compose creates the network again, but the container keeps the ID of the old one.
    """
    return any(_NETWORK.search(line) for line in lines)


def holders(engine: Engine) -> Holder:
    """Who uses a port of the engine's machine. On a remote one, only its containers are known."""
    listeners = host.listening() if engine.info().local else ()
    everybody = engine.containers()

    def holder(port: PortMapping) -> str:
        for container in everybody:  # a port that a firewall rule forwards has no listener
            if any(one.host == port.host for one in container.ports):
                return f"container {container.name}"
        taken = host.conflict(listeners, port.host, port.address)
        return host.owner(taken) if taken else ""

    return holder


def is_development(profile: Profile) -> bool:
    """Whether sources are mounted and installed into the overlay."""
    return profile.mode is Mode.DEVELOPMENT and bool(profile.mounted_sources)


def check_memory(needed: int, *, unified: bool, root: Path = Path("/")) -> tuple[list[Problem], list[str]]:
    """A problem if less than ``needed`` bytes are available on this machine; else notes on what may still go wrong.

    ``unified``: a GPU is used; if it shares this memory, CUDA counts the page cache as used.
    """
    try:
        meminfo = (root / "proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        meminfo = ""
    available = mem_available(meminfo)
    if available is None:
        return [], ["free memory is unknown: it is not in /proc/meminfo"]
    if available < needed:
        message = f"it needs {needed / GIB:.1f} GiB of memory, and {available / GIB:.1f} GiB are available"
        hint = "stop something (`ps axo rss,pid,comm --sort=-rss | head` shows the largest), or lower needs_memory"
        return [Problem(message, hint=hint)], []
    found = re.search(r"^MemFree:\s+(\d+) kB$", meminfo, re.MULTILINE)
    if not (unified and found and (free := int(found[1]) << 10) < needed):
        return [], []
    note = f"of the {available / GIB:.1f} GiB available, only {free / GIB:.1f} GiB are unused, the rest is page "
    note += "cache; a GPU that shares this memory may count that as used: sync; echo 3 | sudo tee "
    return [], [note + "/proc/sys/vm/drop_caches"]


def memory_plan(profile: Profile, name: str, floor: str, root: Path = Path("/")) -> list[str]:
    """Notes: how much memory the guard keeps free, and limits that contradict the profile."""
    service, notes = profile.services[name], list[str]()
    with contextlib.suppress(OSError, AttributeError):
        meminfo = (root / "proc/meminfo").read_text(encoding="utf-8")
        total = int(re.search(r"^MemTotal:\s+(\d+) kB$", meminfo, re.MULTILINE)[1]) << 10  # type: ignore[index]
        plan = re.fullmatch(r"auto(?::(0?\.\d+))?", floor)
        if plan:  # as docker/runtime/lib/memory-guard
            kept = min(6 << 30, total // 20, int(total * float(plan[1] or 1) / 4))
            notes.append(f"memory-guard ends {name} when less than {kept / GIB:.1f} GiB of the machine are available")
    limit, needed = profile.memory.limit, service.needs_memory
    if limit is not None and needed is not None and limit.bytes < needed.bytes and profile.gpu is GpuMode.NONE:
        notes.append(f"memory.limit is {limit}, and needs_memory of {name} is {needed}: Docker would end it")
    return notes


def check_floor(floor: str, root: Path = Path("/")) -> list[Problem]:
    """A problem if the machine has no more memory than ``floor``: memory-guard would end the service at once.

    ``floor``: a size from the profile or ENVGEN_MEMORY_FLOOR; `auto` fits every machine.
    """
    if floor == "off" or floor.startswith("auto"):
        return []
    try:
        wanted = ByteSize.parse(floor).bytes
        available = mem_available((root / "proc/meminfo").read_text(encoding="utf-8"))
    except ValueError as error:
        return [Problem(f"{names.FLOOR_VARIABLE}: {error}", hint="or off")]
    except OSError:
        return []
    if available is None or wanted < available:
        return []
    message = f"memory.floor keeps {wanted / GIB:.1f} GiB free, and {available / GIB:.1f} GiB are available"
    return [
        Problem(message, hint="stop something, lower memory.floor, or start without the guard: ENVGEN_MEMORY_FLOOR=off")
    ]


LIMIT = 900.0  # seconds, for a cache of a million files
# The whole overlay: a single file of root would stop pip. A cache may be large, so its folder's owner decides.
_HAND_OVER = """\
owner=$1 overlay=$2; shift 2; uid=${owner%:*}; gid=${owner#*:}
for folder; do
  if [ "$folder" = "$overlay" ] || [ "$(stat -c %u "$folder")" != "$uid" ]; then
    find "$folder" -xdev ! -uid "$uid" -exec chown -h "$uid:$gid" {} + || exit
  fi
done
"""


def prepare(deployment: Deployment, service: str) -> None:
    """Create missing cache folders on this machine, and give existing volumes to the service's user."""
    profile, engine, image = deployment.profile, deployment.engine, deployment.image
    create_volumes(deployment, service)
    folders = [Path(mount.source) for mount in deployment.caches.values() if mount.kind == "bind"]
    if folders and engine.info().local:
        for folder in folders:
            make_folder(folder)
    owner = run_as(engine, profile, service)
    if folders and owner in ("", ROOT) and engine.info().remapped:
        user = "host" if caller()[0] else "UID:GID"  # root itself is remapped, too
        progress(f"  note: under userns-remap, {service} is root only in its container and may not write to")
        progress(f"  {', '.join(map(str, folders))} unless it has `services.{service}.user: {user}`")
    if owner in ("", ROOT) or image is None:
        return
    volumes = [mount for mount in deployment.caches.values() if mount.kind == "volume"]
    if profile.mounted_sources:
        volumes.append(ContainerMount(overlay_volume(profile), OVERLAY, "volume"))
    mounts = [mount for mount in volumes if engine.volume(mount.source) is not None]
    if mounts:
        owner = owner if ":" in owner else f"{owner}:0"
        words = ["sh", "-c", _HAND_OVER, "sh", owner, OVERLAY, *(mount.target for mount in mounts)]
        done = engine.run_once(image.id, words, mounts=mounts, user=ROOT, unmapped=True, timeout=LIMIT)
        if done.code:
            error = (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.code}"])[-1]
            raise EngineError(f"the volumes of {profile.compose_name} could not be given to user {owner}: {error}")


def create_volumes(deployment: Deployment, service: str) -> None:
    """Create the missing volumes of a service, as Compose would, with the label of this folder.

    The committed Compose files hold no folder of a machine, so Compose can't write that label.
    """
    profile = deployment.profile
    own = [mount.source for mount in deployment.caches.values() if mount.kind == "volume"]
    own += [overlay_volume(profile)] if profile.mounted_sources else []
    if profile.compose is None and all(deployment.engine.volume(name) is not None for name in own):
        return
    document = deployment.compose.config()
    used = {str(one.get("source")) for one in document["services"][service].get("volumes") or ()}
    for key, one in (document.get("volumes") or {}).items():
        name = str(one.get("name", key))
        if key in used and not one.get("external") and deployment.engine.volume(name) is None:
            deployment.create_volume(name, key, str(one.get("driver") or ""), one.get("driver_opts"))


def make_folder(folder: Path) -> None:
    """Create a folder and its parents for the user who runs envgen; under sudo, for the user who called sudo."""
    missing = [at for at in (folder, *folder.parents) if not at.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if missing and os.getuid() == 0:
            for at in missing:
                os.chown(at, *caller(), follow_symlinks=False)
    except OSError as error:
        raise RefusedError(
            f"the cache folder {folder} can't be created: {error.strerror}",
            hint="name another folder in envgen.local.yaml (caches.NAME.host), or create it yourself",
        ) from None
    if missing:
        progress(f"  created the folder {folder}")
