"""Operation ``clear``: plan, guard, act, in one call. docs/jit-cache.md: what it removes, and what
a kill leaves.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field

from envgen.inside.common import Doc
from envgen.inside.jit import tree
from envgen.inside.jit.judge import Judge, describe
from envgen.inside.jit.layout import Choice, Shelf, Shelves, asked, choose, root_of
from envgen.inside.jit.libraries import package_of
from envgen.inside.jit.locks import Hold, close_all, scratch, sweep
from envgen.inside.jit.ninja import parse
from envgen.inside.jit.shapes import Cleared, Generated, Module, ModuleTarget


def only_stale(
    cache: Shelves, request: Doc, choices: list[Choice], guesses: list[str]
) -> list[Choice]:
    """The choices with only those modules that are proven stale. A link is not a module."""
    judge = Judge(cache, request, package_of())
    for choice in choices:
        for name, kind in list(choice.entries.items()):
            module = None
            if kind == "folder":
                module = describe(choice.shelf, name, kind, cache.problems)
            if module is not None:
                judge.judge(choice.shelf, module)
            if module is None or not is_stale(module, guesses):
                del choice.entries[name]
                choice.others.append(name)
    return [choice for choice in choices if choice.entries]


def is_stale(module: Module, guesses: list[str]) -> bool:
    """Whether a module is proven stale; one that may be is added to ``guesses``."""
    guesses += [module.name] if module.state == "stale" and module.guess else []
    return module.state == "stale" and not module.guess


# A module is its folder, and the generated sources that its build.ninja compiles.
#
# These are not always in ``generated/<module>``: fused_moe_120 compiles
# ``cutlass_instantiations/120``, silu_and_mul a file. The next build globs stale ``*.generated.cu``
# again, so the whole folder goes, not only the named files.

# Folders of ``generated`` with one folder per module or arch.
GROUPS = ("cutlass_instantiations", "trtllm_export")


@dataclass
class Part:
    """A module (``cached_ops/NAME``) or a path below ``generated`` to remove.

    ``names``: the generated paths that a module compiles. ``kept_for``: modules that compile this
    path and stay.
    """

    shelf: Shelf
    path: str  # in the folder ``base`` of its shelf
    measure: tree.Measure = field(default_factory=tree.Measure)
    names: list[str] = field(default_factory=list)
    damaged: bool = False
    kept_for: list[str] = field(default_factory=list)
    gone: bool = False

    @property
    def name(self) -> str:
        return self.path.partition("/")[2]

    @property
    def shown(self) -> str:
        return f"{self.shelf.prefix}/{self.path}"


def target_of(shelf: Shelf, name: str, root: str) -> Part | None:
    """Inspect one module; None where it no longer exists. Raises Fault for what must not be
    cleared.
    """
    target = Part(shelf, f"cached_ops/{name}")
    try:
        with tree.opened(name, shelf.fd) as fd:
            tree.measure(fd, target.measure)
            try:
                text = os.fsdecode(tree.read_file("build.ninja", fd))
            except OSError as error:
                target.damaged = error.errno not in tree.GONE
                return target
    except OSError as error:
        if error.errno in tree.GONE:
            return None
        raise tree.Fault(
            "refused", f"{target.shown} can't be opened: {tree.reason(error)}"
        ) from None
    names, whole = generated_names(text, shelf, root)
    target.names = names
    target.damaged = not whole
    return target


def generated_names(text: str, shelf: Shelf, root: str) -> tuple[list[str], bool]:
    """The generated paths that a build.ninja compiles, and whether all of its lines were
    understood.
    """
    edges, whole = parse(text)
    parts = (generated_part(path, shelf, root) for edge in edges for path in edge.inputs)
    return list(dict.fromkeys(filter(None, parts))), whole


def generated_part(path: str, shelf: Shelf, root: str) -> str:
    """The path below ``generated`` to remove for a source: its folder, or the file itself at the
    top; "" for none.

    FlashInfer writes resolved absolute paths. From another mount the root differs, but its last two
    folders are always ``.cache/flashinfer``; the result is only used below the open ``generated``
    folder of this shelf.
    """
    marker = f"/{shelf.prefix}/generated/"
    _, _, rest = path.partition(f"/.cache/flashinfer{marker}")
    for head in (root, shelf.root):
        if path.startswith(head + marker):
            rest = path[len(head + marker) :]
            break
    parts = rest.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        return ""
    return "/".join(parts[: 2 if parts[0] in GROUPS else 1])


def generated_of(targets: list[Part], choices: list[Choice], root: str) -> list[Part]:
    """The generated paths of all targets: those to remove, and those that a module that stays
    compiles, too.
    """
    parts = {}
    for target in targets:
        for path in target.names:
            parts[target.shelf.fd, path] = Part(target.shelf, f"generated/{path}")
    for choice in choices:
        shelf = choice.shelf
        items = [item for (fd, _), item in parts.items() if fd == shelf.fd]
        for name in choice.others if items else ():
            try:
                text = os.fsdecode(tree.read_file(f"{name}/build.ninja", shelf.fd))
            except OSError as error:
                stays = [] if error.errno in tree.GONE else items  # in doubt, keep them
            else:
                names, whole = generated_names(text, shelf, root)
                stays = [item for item in items if item.name in names]
                if not whole:
                    stays = [item for item in items if item.name in names or item.name in text]
            for item in stays:
                item.kept_for.append(name)
    return [item for item in parts.values() if item.kept_for or _guard(item)]


def _guard(item: Part) -> bool:
    """Measure a generated path; False where it is missing. Raises Fault for a link, or a path
    behind one.
    """
    *folders, name = item.path.split("/")
    try:
        with tree.below(item.shelf.base, folders) as fd:
            kind = tree.kind_of(name, fd)
            if kind not in ("folder", "file", "gone"):
                raise tree.Fault(
                    "refused",
                    f"{item.shown} is a {kind}, not a folder or file; nothing was touched",
                )
            measured = tree.measure_path(name, fd)
    except OSError as error:
        if error.errno in tree.GONE:
            return False
        what = f"{item.shelf.prefix}/{'/'.join(folders)}"
        raise tree.Fault(
            "refused",
            f"{what} is not a plain folder ({tree.reason(error)}); nothing was touched",
        ) from None
    item.measure = measured or item.measure
    return measured is not None


def _module(target: Part) -> ModuleTarget:
    shelf = target.shelf
    measure = target.measure
    return ModuleTarget(
        shelf.version,
        shelf.arch,
        target.name,
        measure.bytes,
        measure.files,
        target.damaged,
        target.gone,
    )


def _generated(part: Part) -> Generated:
    return Generated(
        part.shown,
        part.measure.bytes,
        part.measure.files,
        tuple(part.kept_for),
        part.gone,
    )


def run_clear(request: Doc) -> Doc:
    """Clear the modules that the patterns match, or ``all``; ``stale``: only those; ``dry_run``:
    change nothing.
    """
    dry = bool(request.get("dry_run"))
    patterns = request.get("patterns") or []
    stale = bool(request.get("stale"))
    errors: list[str] = []
    guesses: list[str] = []
    with asked(request) as cache:
        # First: after a kill, the module may already be gone.
        swept = sweep(cache.fd, errors, dry=dry)
        everything = bool(request.get("all")) or (stale and not patterns)
        choices = choose(cache, patterns, everything)
        if stale:
            choices = only_stale(cache, request, choices, guesses)
        _refuse_links(choices)
        chosen = [(choice.shelf, list(choice.entries)) for choice in choices]
        hold = Hold(chosen, dry=dry)
        try:
            targets = []
            for shelf, names in chosen:
                for name in names:
                    # build.ninja is only final under the locks.
                    target = target_of(shelf, name, root_of(request))
                    if target is not None:
                        targets.append(target)
            generated = generated_of(targets, choices, root_of(request))
            go = [item for item in generated if not item.kept_for]
            if targets and not dry:
                _act(cache, go + targets, hold, errors)
        finally:
            hold.release()
        freed = sum(part.measure.bytes for part in targets + generated if part.gone or dry)
        return asdict(
            Cleared(
                root=root_of(request),
                dry_run=dry,
                modules=tuple(map(_module, targets)),
                generated=tuple(map(_generated, generated)),
                leftovers=swept,
                freed=freed + (0 if dry else swept.bytes),
                problems=tuple(cache.problems),
                errors=tuple(errors),
                guesses=tuple(guesses),
            )
        )


def _refuse_links(choices: list[Choice]) -> None:
    links = []
    for choice in choices:
        for name, kind in choice.entries.items():
            if kind == "link":
                links.append(f"{choice.shelf.shown}/{name}")
    if links:
        message = f"{', '.join(links)}: a link, not a module; nothing was touched"
        raise tree.Fault("refused", message)


def _act(cache: Shelves, parts: list[Part], hold: Hold, errors: list[str]) -> None:
    """Rename everything away, release the modules' locks, delete."""
    with scratch(cache.fd, errors) as work:
        for number, part in enumerate(parts):
            *folders, name = part.path.split("/")
            try:
                with tree.below(part.shelf.base, folders) as fd:
                    os.rename(name, str(number), src_dir_fd=fd, dst_dir_fd=work)
                part.gone = True
            except OSError as error:
                tree.note_unless_gone(errors, part.shown, error)
                part.gone = error.errno in tree.GONE
        close_all(hold.modules)
