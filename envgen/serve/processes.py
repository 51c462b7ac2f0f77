"""Which processes a container holds, and which of them are zombies: read from /proc, for images without `ps`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from envgen.engine.client import Engine
from envgen.errors import EngineError
from envgen.text import counted, last_printed

# One line a process: /proc/PID/stat, a tab, the command line. The shell's own entry is left out; what it starts is
# younger than the list.
_LIST = (
    'for p in /proc/[0-9]*; do [ "${p#/proc/}" = "$$" ] && continue; '
    'if s=$(cat "$p/stat" 2>/dev/null); then '
    "printf '%s\\t%s\\n' \"$s\" \"$(tr '\\0\\n\\t' '   ' <\"$p/cmdline\" 2>/dev/null)\"; fi; done; true"
)
_PAGE = 4096  # bytes; what /proc counts resident memory in, on x86-64 and on ARM kernels with small pages


@dataclass(frozen=True)
class Process:
    """One process as its container sees it. ``state`` is the kernel's letter; ``memory`` resident bytes."""

    pid: int
    parent: int
    group: int
    state: str
    memory: int
    name: str
    command: str

    @property
    def zombie(self) -> bool:
        """True when it has ended and its parent has not collected its exit status."""
        return self.state == "Z"


def processes(engine: Engine, container_id: str, *, timeout: float = 15) -> tuple[Process, ...]:
    """Every process of a running container, by number. EngineError when it doesn't run or has no shell."""
    done = engine.exec(container_id, ["sh", "-c", _LIST], timeout=timeout)
    if done.code:
        reason = last_printed(done.stderr or done.stdout, done.code)
        raise EngineError(f"the processes of container {container_id[:12]} could not be listed: {reason}")
    return tuple(sorted(parse(done.stdout.decode(errors="replace").splitlines()), key=lambda one: one.pid))


def parse(lines: Iterable[str]) -> Iterator[Process]:
    """Processes from lines of ``/proc/PID/stat``, a tab and the command line. Other lines are left out."""
    for line in lines:
        stat, _, command = line.partition("\t")
        head, _, rest = stat.rpartition(")")  # a program's name may hold blanks and brackets
        pid, _, name = head.partition("(")
        fields = rest.split()
        if not pid.strip().isdigit() or len(fields) < 22 or not all(_is_number(f) for f in fields[1:22]):
            continue
        memory = int(fields[21]) * _PAGE
        yield Process(int(pid), int(fields[1]), int(fields[2]), fields[0], memory, name, command.strip())


def tree(found: Sequence[Process]) -> str:
    """The processes as an indented tree; zombies are marked. A trailing newline ends the last line."""
    by_parent: dict[int, list[Process]] = {}
    known = {one.pid for one in found}
    for one in found:
        by_parent.setdefault(one.parent if one.parent in known else 0, []).append(one)
    lines = ["    pid   group state  memory  command"]

    def add(parent: int, depth: int) -> None:
        for one in by_parent.pop(parent, []):
            what = one.command or f"[{one.name}]"
            mark = "  <-- zombie" if one.zombie else ""
            megabytes = f"{one.memory / (1 << 20):.0f}M"
            lines.append(f"{one.pid:>7} {one.group:>7} {one.state:<5} {megabytes:>7}  {'  ' * depth}{what}{mark}")
            add(one.pid, depth + 1)

    add(0, 0)
    zombies = sum(one.zombie for one in found)
    lines.append(f"{counted(len(found), 'process', 'processes')}, {zombies} of them zombies")
    return "\n".join(lines) + "\n"


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit()
