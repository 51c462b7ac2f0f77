"""The folder of a series on disk: a new patch, a changed one, one less."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from envgen import files
from envgen.errors import Place, Problem, ProjectError, RefusedError, UsageError
from envgen.patches.header import head_of
from envgen.patches.series import UNDERWAY, make_patch

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


def series_file(root: Path, folder: str) -> Path:
    """The path of a series. A folder that leads out of the project is refused."""
    path = (root / folder).resolve()
    if not path.is_relative_to(root.resolve()):
        raise RefusedError(f"{folder} leads out of the project")
    return root / folder / "series"


def listed(file: Path) -> str:
    """The text of a series; empty where there is none yet."""
    return files.read(file).decode() if file.exists() else ""


def entries(text: str) -> list[str]:
    """The names in a series, in order."""
    return [entry for line in text.splitlines() if (entry := line.split("#", 1)[0].strip())]


def next_name(names: list[str], title: str) -> str:
    """``0004-title.patch``: one more than the highest number there is."""
    if not _NAME.fullmatch(title):
        hint = "small letters, digits and single dashes, as in: faster-moe"
        raise UsageError(f"{title!r} is not a name for a patch", hint=hint)
    numbers = [int(name[:4]) for name in names if name[:4].isdigit()]
    return f"{max(numbers, default=0) + 1:04d}-{title}.patch"


def add(root: Path, folder: str, title: str, head: str, diff: bytes) -> str:
    """Write a new patch and name it last in the series. Returns its path."""
    file = series_file(root, folder)
    text = listed(file)
    content = head.encode() + b"\n" + diff
    there = sorted(path.name for path in file.parent.glob("*.patch"))
    for other in entries(text):
        if (file.parent / other).is_file() and _diff_of(files.read(file.parent / other)) == diff:
            raise RefusedError(f"{folder}/{other} is this change already", hint="edit the checkout further first")
    name = next_name([*entries(text), *there], title)
    for other in there:  # written by a run that was killed before it named the file in the series
        if other[4:] == name[4:] and other not in entries(text) and files.read(file.parent / other) == content:
            name = other
    path = f"{folder}/{name}"
    make_patch(name, path, content, Place(path))  # refuses what no patch may do, before anything is written
    files.write(root / path, content, within=root)
    files.write(file, (text + ("\n" if text and not text.endswith("\n") else "") + f"{name}\n").encode())
    return path


def _diff_of(patch: bytes) -> bytes:
    return patch[len(head_of(patch)) :]


def remove(root: Path, folder: str, wanted: str) -> str:
    """Take a patch out of the series and delete it. Returns its path."""
    file = series_file(root, folder)
    lines = listed(file).splitlines(keepends=True)
    name = choose(entries("".join(lines)), wanted)
    kept = [line for line in lines if line.split("#", 1)[0].strip() != name]
    files.write(file, "".join(kept).encode(), within=root)
    (file.parent / name).unlink(missing_ok=True)
    return f"{folder}/{name}"


def choose(names: list[str], wanted: str) -> str:
    """A patch by its name, with or without ``.patch``, or by its number."""
    number = f"{int(wanted):04d}" if wanted.isascii() and wanted.isdigit() and len(wanted) <= 4 else wanted
    found = [name for name in names if wanted in (name, name.removesuffix(".patch")) or name[:4] == number]
    if len(found) != 1:
        hint = "there is " + (", ".join(names) or "none")
        raise UsageError(f"no patch {wanted!r} in the series" if not found else f"{wanted!r} names several", hint=hint)
    return found[0]


def set_field(head: bytes, name: str, value: str) -> bytes:
    """The head of a patch with one field changed, or added at its end."""
    lines = head.decode("utf-8", "surrogateescape").rstrip("\n").splitlines()
    kept: list[str] = []
    at, inside = len(lines), False
    for line in lines:
        inside = line.lower().startswith(f"{name.lower()}:") or (inside and line.startswith((" ", "\t")))
        if inside:
            at = min(at, len(kept))
        else:
            kept.append(line)
    kept.insert(at, f"{name}: {value}")
    return ("\n".join(kept) + "\n\n").encode("utf-8", "surrogateescape")


def rewrite(root: Path, folder: str, contents: Mapping[str, bytes]) -> None:
    """Replace patches (name -> content) by others that pass the same inspection: all of them, or none.

    All contents are in one file before the first patch changes: `complete` brings a killed run to its end.
    """
    for name, content in contents.items():
        _inspect(f"{folder}/{name}", content)
    if contents:
        texts = {name: content.decode("utf-8", "surrogateescape") for name, content in contents.items()}
        files.write(root / folder / UNDERWAY, json.dumps(texts, indent=1).encode(), within=root)
        complete(root, folder)


def complete(root: Path, folder: str) -> None:
    """Finish a `rewrite` that was killed."""
    journal = root / folder / UNDERWAY
    try:
        texts = json.loads(files.read(journal, follow=False))
        contents = {str(name): str(text).encode("utf-8", "surrogateescape") for name, text in texts.items()}
    except FileNotFoundError:
        return
    except (OSError, ValueError, AttributeError) as error:
        raise ProjectError([Problem(f"cannot be read: {error}", Place(f"{folder}/{UNDERWAY}"), "remove it")]) from None
    listed = entries(files.read(series_file(root, folder)).decode())
    for name, content in contents.items():
        if name not in listed or "/" in name:
            raise ProjectError([Problem(f"{name} is not in the series", Place(f"{folder}/{UNDERWAY}"), "remove it")])
        _inspect(f"{folder}/{name}", content)
    for name, content in contents.items():
        files.write(root / folder / name, content, within=root)
    journal.unlink()


def _inspect(path: str, content: bytes) -> None:
    try:
        make_patch(Path(path).name, path, content, Place(path))
    except ProjectError as error:
        raise ProjectError([Problem(f"would not be a patch: {p.message}", p.place) for p in error.problems]) from None
