"""What an engine and a machine have about a service, and the archive to send to others.

``collect`` never raises for what it can't get: the member then has the reason. Secrets and names are taken out when the
archive is written: every member redacted, equal bytes for equal members, written whole or not at all.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from envgen import files
from envgen.engine import process
from envgen.engine.client import Engine
from envgen.engine.values import Container
from envgen.errors import EngineError, ProcessError, UsageError
from envgen.redact import redact
from envgen.text import counted, last_printed, plain_text, reason_of, whole_number


def write_bundle(
    target: Path, members: Mapping[str, str], *, known: Iterable[str] = (), within: Path | None = None
) -> None:
    """Write ``members`` (name in the archive -> content) as a .tar.gz with mode 0600, whole or not at all.

    Contents and names are redacted; ``known`` are further secret values. UsageError when it can't be written there.
    """
    try:
        files.write(target, archive(members, known=known), mode=0o600, within=within)
    except OSError as problem:
        hint = "name a file in a folder that is there, is yours and has space"
        raise UsageError(f"{target} can't be written: {reason_of(problem)}", hint=hint) from None


def archive(members: Mapping[str, str], *, known: Iterable[str] = ()) -> bytes:
    """The archive as bytes: names sorted, no times, no owners."""
    known, cleaned = tuple(known), dict[str, bytes]()
    for name, content in members.items():
        path = PurePosixPath(redact(name, known=known))
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"not a name inside an archive: {name!r}")
        cleaned[str(path)] = redact(plain_text(content), known=known).encode("utf-8", "replace")
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in sorted(cleaned.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), 0o644, 0
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), mtime=0)


def as_json(document: Any) -> str:
    """``document`` as JSON; types that JSON lacks become similar ones."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        return sorted(value) if isinstance(value, (set, frozenset)) else str(value)

    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, default=plain) + "\n"


def as_text(content: bytes) -> str:
    """Bytes as text; stray bytes become U+FFFD. What has NULs is only mentioned."""
    if b"\0" in content:
        return f"(left out: {len(content)} bytes that are not text)\n"
    return content.decode("utf-8", "replace")


# One line a process: /proc/PID/stat, a tab, the command line. The shell's own entry is left out; what it starts is
# younger than the list.
_LIST = (
    'for p in /proc/[0-9]*; do [ "${p#/proc/}" = "$$" ] && continue; '
    'if s=$(cat "$p/stat" 2>/dev/null); then '
    "printf '%s\\t%s\\n' \"$s\" \"$(tr '\\0\\n\\t' '   ' <\"$p/cmdline\" 2>/dev/null)\"; fi; done; true"
)
_PAGE = 4096  # bytes: the unit of resident memory in /proc on x86-64 and on ARM kernels with small pages


@dataclass(frozen=True)
class ProcessState:
    """A process as its container sees it. ``state``: the kernel's letter; ``memory``: resident bytes."""

    pid: int
    parent: int
    group: int
    state: str
    memory: int
    name: str
    command: str

    @property
    def zombie(self) -> bool:
        """Whether it has ended and its parent has not collected its exit status."""
        return self.state == "Z"


def processes(engine: Engine, container_id: str, *, timeout: float = 15) -> tuple[ProcessState, ...]:
    """Every process of a running container, by ID. EngineError if it does not run or has no shell."""
    done = engine.exec(container_id, ["sh", "-c", _LIST], timeout=timeout)
    if done.code:
        reason = last_printed(done.stderr or done.stdout, done.code)
        raise EngineError(f"the processes of container {container_id[:12]} could not be listed: {reason}")
    return tuple(sorted(parse(done.stdout.decode(errors="replace").splitlines()), key=lambda one: one.pid))


def parse(lines: Iterable[str]) -> Iterator[ProcessState]:
    """Processes from lines of ``/proc/PID/stat``, a tab and the command line. Other lines are left out."""
    for line in lines:
        stat, _, command = line.partition("\t")
        head, _, rest = stat.rpartition(")")  # a program's name may hold blanks and brackets
        pid, _, name = head.partition("(")
        fields = rest.split()
        numbers = [whole_number(one) for one in (pid.strip(), *fields[1:3], *fields[21:22])]
        if len(numbers) == 4 and None not in numbers:
            number, parent, group, pages = (one or 0 for one in numbers)
            yield ProcessState(number, parent, group, fields[0], pages * _PAGE, name, command.strip())


def listed(found: Sequence[ProcessState]) -> str:
    """The processes, one on each line; zombies are marked."""
    lines = ["    pid  parent   group state  memory  command"]
    for state in found:
        mark, what = "  <-- zombie" if state.zombie else "", state.command or f"[{state.name}]"
        memory = f"{state.memory >> 20}M"
        lines.append(f"{state.pid:>7} {state.parent:>7} {state.group:>7} {state.state:<5} {memory:>7}  {what}{mark}")
    zombies = sum(state.zombie for state in found)
    return "\n".join([*lines, f"{counted(len(found), 'process', 'processes')}, {zombies} of them zombies"]) + "\n"


RECORD = "/run/envgen-memory"  # of docker/runtime/libexec/memory-guard: two minutes, a line a second
LOG_LINES = 100_000  # of a server's log: as many as LOG_LIMIT holds, with lines as servers write them
_KERNEL_LINES = 2000
_PATIENCE = 20.0  # seconds for one question to a container that may be stuck


def collect(engine: Engine, container_id: str, service: str, secrets: Iterable[str] = ()) -> dict[str, str]:
    """What an engine has about a service. ``container_id``: "" where no container was made.

    ``secrets``: names of variables whose values must not be kept.
    """
    container = _ask(lambda: engine.container(container_id)) if container_id else None
    found: Container | None = container if isinstance(container, Container) else None
    running = found is not None and found.state == "running"
    none = f"not available: no container of {service} was there\n"
    members: dict[str, Callable[[], str]] = {
        "server.log": lambda: engine.logs(container_id, tail=LOG_LINES, timestamps=True) if found else none,
        "container.json": lambda: _container(engine, container_id, frozenset(secrets)) if found else none,
        "processes.txt": lambda: listed(processes(engine, container_id)) if running else _not_running(found),
        "memory.txt": lambda: _memory(engine, container_id),
        "gpu.txt": lambda: _gpu(engine, container_id, running),
        "kernel.log": lambda: _kernel(engine),
    }
    return {name: as_member(make) for name, make in members.items()}


def _ask(make: Callable[[], Any]) -> Any:
    """What ``make`` returns, or why it failed."""
    try:
        return make()
    except (EngineError, ProcessError, OSError, ValueError) as error:
        return f"not available: {reason_of(error)}\n"


def as_member(make: Callable[[], str]) -> str:
    """The text that ``make`` returns, or why there is none."""
    text = str(_ask(make))
    return text if not text or text.endswith("\n") else text + "\n"


def _not_running(container: Container | None) -> str:
    if container is None:
        return "no container: nothing of it runs\n"
    # When the first process of a container ends, the kernel ends all others.
    return f"the container is {container.state} (exit code {container.exit_code}): no process of it is left\n"


def _container(engine: Engine, container_id: str, secrets: frozenset[str]) -> str:
    document = dict(engine.inspect(container_id) or {})
    config = dict(document.get("Config") or {})
    pairs = (pair.partition("=") for pair in config.get("Env") or ())
    config["Env"] = [f"{name}={'(secret)' if name in secrets and value else value}" for name, _, value in pairs]
    document["Config"] = config
    return as_json(document)


def _memory(engine: Engine, container_id: str) -> str:
    parts = []
    if engine.info().local:
        parts.append("==> /proc/meminfo <==\n" + Path("/proc/meminfo").read_text(encoding="utf-8"))
    if container_id and (record := engine.read_file(container_id, RECORD)):
        parts.append(f"==> how it went ({RECORD}) <==\n" + record.decode(errors="replace"))
    return "".join(parts) or "not available: there is no guard's record, and the engine is on another machine\n"


def _gpu(engine: Engine, container_id: str, running: bool) -> str:
    """By the container's own nvidia-smi, else by this machine's."""
    if running:
        done = engine.exec(container_id, ["sh", "-c", "command -v nvidia-smi && exec nvidia-smi -q"], timeout=_PATIENCE)
        if done.code == 0:
            return done.stdout.decode(errors="replace")
    if not engine.info().local:
        return "not available: the container has no nvidia-smi that works, and the engine is on another machine\n"
    return process.run(["nvidia-smi", "-q"], timeout=_PATIENCE).stdout.decode(errors="replace")


def _kernel(engine: Engine) -> str:
    if not engine.info().local:
        return "not available: the engine is on another machine\n"
    done = process.run(["dmesg"], timeout=_PATIENCE, check=False)
    if done.code:
        reason = last_printed(done.stderr, done.code)
        return f"not available: {reason}\nwith more rights: sudo dmesg -T | tail -n {_KERNEL_LINES}\n"
    lines = done.stdout.decode(errors="replace").splitlines()[-_KERNEL_LINES:]
    return "\n".join(lines) + "\n" if lines else "the kernel has no messages\n"
