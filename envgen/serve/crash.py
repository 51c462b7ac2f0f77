"""What is left of a service that failed, collected before anything is removed: the members of a crash bundle.

``collect`` never raises for what it can't get: the member then says why. It writes nothing; the caller does, with
``envgen.bundle``, which takes secrets and names out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envgen import files
from envgen.bundle import as_json
from envgen.engine import process
from envgen.engine.client import Engine
from envgen.engine.values import Container, Mount
from envgen.errors import EngineError, ProcessError
from envgen.serve.processes import processes, tree
from envgen.text import last_printed, reason_of

LOG_LINES = 1_000_000  # the most that a bundle holds of a server's log: hours of it at any real rate
_KERNEL_LINES = 2000
_PATIENCE = 20.0  # seconds for one question to a container that may be stuck

# FlashInfer's own logs: what its JIT did, and (from 0.6, where FLASHINFER_LOGDEST names a file) which calls were made.
_FLASHINFER = (
    'base="${FLASHINFER_WORKSPACE_BASE:-${HOME:-/root}}/.cache/flashinfer"; '
    "dest=$(printf %s \"${FLASHINFER_LOGDEST:-}\" | sed 's/%i/*/g'); "
    'for f in "$base"/*/flashinfer_jit.log "$base"/*/*/flashinfer_jit.log $dest; do '
    'if [ -f "$f" ]; then printf "==> %s <==\\n" "$f"; tail -c 2000000 "$f"; fi; done; true'
)
_CGROUP = (
    "for f in memory.max memory.current memory.peak memory.swap.current memory.events pids.current; do "
    'if [ -f /sys/fs/cgroup/$f ]; then printf "==> %s <==\\n" $f; cat /sys/fs/cgroup/$f; fi; done; true'
)

ABOUT = """\
What a service left behind when it failed. Tokens, keys, home folders, host and user names are taken out.

findings.json      the reason, its likely cause, how long each phase took, what the log had to show
explanations.json  what the rules about failures know of the log's lines, the likeliest first
doctor.json        what `envgen doctor` found right after it
server.log         all that the service wrote, never filtered, each line with the engine's time (UTC)
container.json     the engine's view: state, exit code, restarts, health checks, mounts, limits
compose.txt        every container of the same Compose project
processes.txt      the processes inside, as a tree, zombies marked
memory.txt         memory of the machine and of the container
gpu.txt            nvidia-smi
kernel.log         the end of the kernel's messages (GPU errors are "NVRM: Xid", the memory killer is "oom-kill")
flashinfer.log     FlashInfer's JIT log, and its API log where FLASHINFER_LOGDEST names a file
rendered/          the Compose files that were used
Where something could not be had, its file says why.
"""


def collect(
    engine: Engine,
    container_id: str,
    service: str,
    *,
    findings: Mapping[str, Any] | None = None,
    compose_files: Sequence[Path] = (),
    secrets: Iterable[str] = (),
) -> Mapping[str, bytes]:
    """The members of a crash bundle, by name.

    ``container_id``: "" where no container was made. ``findings``: what the caller knows (the reason first); plain
    data. ``compose_files``: the rendered files in use. ``secrets``: names of variables whose values must not be kept.
    """
    container = _ask(lambda: engine.container(container_id)) if container_id else None
    found: Container | None = container if isinstance(container, Container) else None
    running = found is not None and found.state == "running"
    members: dict[str, Callable[[], str]] = {
        "README.txt": lambda: ABOUT,
        "findings.json": lambda: as_json({"service": service, **(findings or {})}),
        "server.log": lambda: engine.logs(container_id, tail=LOG_LINES, timestamps=True) if found else _none(service),
        "container.json": lambda: _container(engine, container_id, frozenset(secrets)) if found else _none(service),
        "compose.txt": lambda: _neighbours(engine, found) if found else _none(service),
        "processes.txt": lambda: tree(processes(engine, container_id)) if running else _not_running(found),
        "memory.txt": lambda: _memory(engine, container_id, running),
        "gpu.txt": lambda: _gpu(engine, container_id, running),
        "kernel.log": lambda: _kernel(engine),
        "flashinfer.log": lambda: _flashinfer(engine, found, running),
    }
    for file in compose_files:
        members[f"rendered/{file.name}"] = lambda file=file: files.read(file, follow=False).decode()  # type: ignore[misc]
    return {name: _text(make).encode() for name, make in members.items()}


def _ask(make: Callable[[], Any]) -> Any:
    """What ``make`` gives, or the sentence why it could not."""
    try:
        return make()
    except (EngineError, ProcessError, OSError, ValueError) as error:
        return f"not available: {reason_of(error)}\n"


def _text(make: Callable[[], str]) -> str:
    text = str(_ask(make))
    return text if not text or text.endswith("\n") else text + "\n"


def _none(service: str) -> str:
    return f"not available: no container of {service} was there\n"


def _not_running(container: Container | None) -> str:
    if container is None:
        return "no container: nothing of it runs\n"
    # The kernel ends whatever is left in a container when its first process ends.
    return f"the container is {container.state} (exit code {container.exit_code}): no process of it is left\n"


def _container(engine: Engine, container_id: str, secrets: frozenset[str]) -> str:
    document = dict(engine.inspect(container_id) or {})
    config = dict(document.get("Config") or {})
    pairs = (pair.partition("=") for pair in config.get("Env") or ())
    config["Env"] = [f"{name}={'(secret)' if name in secrets and value else value}" for name, _, value in pairs]
    document["Config"] = config
    return as_json(document)


def _neighbours(engine: Engine, container: Container) -> str:
    project = container.labels.get("com.docker.compose.project")
    found = engine.containers(project, all=True) if project else (container,)
    rows = [
        f"{one.name}: {one.state}"
        + (f" ({one.health})" if one.health else "")
        + f", exit code {one.exit_code}, restarts: {one.restarts}, since {one.started_at}, image {one.image_id}"
        + (", killed because memory ran out" if one.oom_killed else "")
        + (f", {one.error}" if one.error else "")
        for one in found
    ]
    return "\n".join(rows) + "\n"


def _memory(engine: Engine, container_id: str, running: bool) -> str:
    parts = []
    if engine.info().endpoint.startswith("unix://"):
        parts.append("==> /proc/meminfo <==\n" + Path("/proc/meminfo").read_text(encoding="utf-8"))
    if running:
        done = engine.exec(container_id, ["sh", "-c", _CGROUP], timeout=_PATIENCE)
        parts.append(done.stdout.decode(errors="replace"))
    return "".join(parts) or "not available: the container doesn't run, and the engine is on another machine\n"


def _gpu(engine: Engine, container_id: str, running: bool) -> str:
    """By the container's own nvidia-smi, else by this machine's."""
    if running:
        done = engine.exec(container_id, ["sh", "-c", "command -v nvidia-smi && exec nvidia-smi -q"], timeout=_PATIENCE)
        if done.code == 0:
            return done.stdout.decode(errors="replace")
    if not engine.info().endpoint.startswith("unix://"):
        return "not available: the container has no nvidia-smi that works, and the engine is on another machine\n"
    return process.run(["nvidia-smi", "-q"], timeout=_PATIENCE).stdout.decode(errors="replace")


def _kernel(engine: Engine) -> str:
    if not engine.info().endpoint.startswith("unix://"):
        return "not available: the engine is on another machine\n"
    done = process.run(["dmesg"], timeout=_PATIENCE, check=False)
    if done.code:
        reason = last_printed(done.stderr, done.code)
        return f"not available: {reason}\nwith more rights: sudo dmesg -T | tail -n {_KERNEL_LINES}\n"
    lines = done.stdout.decode(errors="replace").splitlines()[-_KERNEL_LINES:]
    return "\n".join(lines) + "\n" if lines else "the kernel has no messages\n"


def _flashinfer(engine: Engine, container: Container | None, running: bool) -> str:
    if container is None:
        return "not available: no container was there\n"
    if running:
        done = engine.exec(container.id, ["sh", "-c", _FLASHINFER], timeout=_PATIENCE)
    else:
        # Its folders outlive it on their mounts; what it wrote elsewhere can't be reached without its processes.
        mounts = [
            Mount(one.source, one.target, one.kind, True)
            for one in container.mounts
            if one.kind in ("bind", "volume") and "flashinfer" in one.target
        ]
        if not mounts:
            return "not available: the container has ended, and FlashInfer's folder is on no mount of it\n"
        env = {name: value for name, value in container.env.items() if name in ("FLASHINFER_WORKSPACE_BASE", "HOME")}
        done = engine.run_once(
            container.image_id, ["sh", "-c", _FLASHINFER], mounts=mounts, env=env, timeout=_PATIENCE
        )  # fmt: skip
    found = done.stdout.decode(errors="replace")
    return found or "there is no FlashInfer log: nothing was compiled, or it isn't used\n"
