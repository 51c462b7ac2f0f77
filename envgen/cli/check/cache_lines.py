"""What `envgen cache` prints: tables, plans, evidence."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from envgen.inside.jit.shapes import Cleared, Inventory, Module, RecordedBaseline
from envgen.jitcache.service import what_is_locked
from envgen.jitcache.warm import Built
from envgen.text import counted, duration, progress, size, table, visible

OUTCOMES = {
    "done": "compiled",
    "fresh": "already compiled",
    "masked": "not compiled: a prebuilt library wins",
    "unknown": "cannot be compiled by name; compiled on first use",
    "failed": "failed",
}


def _age(when: float) -> str:
    """How long ago, in one unit: 5m, 3h, 12d."""
    return duration(time.time() - when) if when else "-"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(map(visible, names[:5]))
    if len(names) > 5:
        shown += f" and {len(names) - 5} more"
    return shown


def _in(version: str, arch: str) -> str:
    return "/".join(part for part in (version, arch) if part)


def inventory(inventory: Inventory) -> Iterator[str]:
    if inventory.place and inventory.exists:
        progress(f"{inventory.root} in {inventory.place}")
    for problem in inventory.problems:
        progress(f"left out: {visible(problem)}")
    if not inventory.modules:
        yield "no compiled modules" if inventory.exists else "no compiled modules, and no cache yet"
    else:
        rows: list[tuple[str, ...]] = [
            ("VERSION", "ARCH", "MODULE", "SIZE", "OBJECTS", "TOOK", "AGE", "STATE")
        ]
        rows += [_row(module) for module in inventory.modules]
        yield from table(rows, right=(3, 4, 5, 6))
        total = sum(module.bytes for module in inventory.modules)
        yield f"{counted(len(inventory.modules), 'module')}, {size(total)}"
        guesses = [module for module in inventory.modules if module.guess]
        if any(module.baseline != "recorded" for module in guesses):
            yield "? = a guess from file times; later answers are certain after `envgen cache warm MODULE`, or a start"
        elif guesses:
            yield "? = a guess; `envgen cache why MODULE` has the reason"
    for line in inventory.package.prebuilt:
        yield f"prebuilt: {visible(line)}"
    for batch in inventory.building:
        yield what_is_locked(batch)


def _row(module: Module) -> tuple[str, ...]:
    if module.kind == "link":
        state = "link (not followed)"
    elif module.locked:
        state = "building"
    elif module.unread:
        state = "unreadable"
    elif module.state == "partial":
        state = "partial, no .so"
    else:
        state = _state(module)
        words = sorted({reason.kind for reason in module.reasons})
        if words and module.state in ("stale", "fresh"):
            state += f": {', '.join(words)}"
    if module.locked is None:
        state = f"{state} lock unreadable".strip()
    return (
        visible(module.version),
        visible(module.arch) or "-",
        visible(module.name),
        size(module.bytes),
        str(module.objects),
        duration(module.seconds) if module.seconds else "-",
        _age(module.modified),
        state,
    )


def _state(module: Module) -> str:
    if module.guess:
        return f"{module.state}?"
    return "-" if module.state == "unknown" else module.state


def evidence(evidence: Inventory) -> Iterator[str]:
    """Each module with its state and the reasons for it."""
    progress(f"{evidence.root} in {evidence.place}")
    package = evidence.package
    imported = "none found"
    if package.root:
        imported = f"FlashInfer {package.version} from {package.root}"
    progress(f"imported: {imported}")
    for module in evidence.modules:
        yield f"{visible(module.name)} ({_in(module.version, module.arch)}): {_state(module)}"
        if module.seconds:
            yield f"  FlashInfer compiled it in {duration(module.seconds)}"
        for reason in module.reasons:
            count = len(reason.files) + reason.more
            files = f"{counted(count, 'file')}: " if count else ""
            yield f"  {files}{visible(reason.message)}"
            for path in reason.files[:10]:
                yield f"    {visible(path)}"
            if count > 10:
                yield f"    and {count - 10} more"
        if module.state == "fresh" and module.baseline == "recorded":
            yield f"  no file that it was compiled from has changed ({counted(module.checked, 'file')})"
        elif module.baseline != "recorded" and module.kind == "ninja" and module.state != "partial":
            what = "no baseline"
            if module.baseline == "outdated":
                what = "the baseline is of an earlier build"
            yield f"  {what}: a guess from the times of {counted(module.checked, 'file')}"
        if module.state in ("stale", "debug"):
            yield f"  fix: envgen cache clear {visible(module.name)}"


def cleared(cleared: Cleared) -> Iterator[str]:
    verb = "would remove" if cleared.dry_run else "removed"
    progress(f"{cleared.root} in {cleared.place}")
    for target in cleared.modules:
        name = f"{visible(target.name)} ({_in(target.version, target.arch)})"
        if target.gone or cleared.dry_run:
            yield f"{verb} {name}, {size(target.bytes)} in {counted(target.files, 'file')}"
        if target.damaged:
            progress(f"{name}: its build.ninja is damaged; generated sources may remain")
    for item in cleared.generated:
        if item.kept_for:
            yield f"kept {visible(item.path)}: also compiled by {_names(item.kept_for)}"
        elif item.gone or cleared.dry_run:
            yield f"{verb} {visible(item.path)}, {size(item.bytes)} in {counted(item.files, 'file')}"
    if cleared.leftovers.count:
        yield f"{verb} leftovers of an interrupted clear, {size(cleared.leftovers.bytes)}"
    if not cleared.modules:
        yield "nothing to clear"
    freed = cleared.freed + (cleared.leftovers.bytes if cleared.dry_run else 0)
    yield f"{'would free' if cleared.dry_run else 'freed'} {size(freed)}"
    if cleared.guesses:
        progress(f"kept (possibly stale): {_names(cleared.guesses)}; clear them by name")
    for error in cleared.errors:
        progress(f"could not remove {visible(error)}")
    for where in cleared.restart:
        yield f"restart {visible(where)}: its programs keep what they have loaded"


def built(built: Sequence[Built], recorded: RecordedBaseline | None) -> Iterator[str]:
    for module in built:
        took = f" in {module.seconds:.1f}s" if module.outcome == "done" else ""
        yield f"{module.name}: {OUTCOMES.get(module.outcome, module.outcome)}{took}"
        for line in module.error.splitlines():
            yield f"    {line}"
        for record in recorded.modules if recorded else ():
            if record.name == module.name and not record.recorded:
                progress(
                    f"{module.name}: no baseline recorded, {record.reason}: {', '.join(record.changed[:3])}"
                )
    if not built:
        yield "nothing to compile: no module is partial or stale"
