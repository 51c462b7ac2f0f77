"""An existing Compose file, or a recipe, as a project file that loads: read, write, check, take out what fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envgen import files
from envgen.errors import EnvgenError, Problem, ProjectError, RefusedError
from envgen.move_in.compose import Reader, read_foreign
from envgen.move_in.draft import Draft, Unplaced, local_text, text_of
from envgen.move_in.recipe import as_compose, is_recipe
from envgen.profile.load import FILE_NAME, LOCAL_NAME, load_project
from envgen.profile.shape import NAME, matches
from envgen.render import outputs
from envgen.text import reason_of

_ORDER = (
    "mode", "dockerfile", "base", "cuda", "build", "apt", "pip", "sources", "python_path", "env", "secrets", "caches",
    "gpu", "ipc", "ulimits", "working_dir", "services",
)  # fmt: skip
_ROUNDS = 12  # taking out a value may show what leaned on it


@dataclass(frozen=True)
class Moved:
    """What was made: the files, the services by their old names, what found no place. ``broken``: it does not load."""

    written: tuple[str, ...]
    services: dict[str, str]
    unplaced: tuple[Unplaced, ...]
    broken: str = ""


def draft_of(source: Path, dockerfiles: Sequence[Path], folder: Path, name: str, *, fixed: bool = False) -> Draft:
    """The profile that ``source`` describes; nothing is written. Raises ProjectError for a file that can't be read."""
    draft = Draft(name, _profile_of(source))
    draft.values = {"mode": "production", "base": {}, "cuda": {}}
    top = read_foreign(source, source.name)
    if is_recipe(top):
        top = as_compose(top, draft)
    reader = Reader(draft, source, folder, {path.name: path for path in dockerfiles})
    reader.read(top)
    draft.values.pop("_image", None)
    if fixed:  # by --name
        draft.name = name
    _complete(draft, folder)
    return draft


def _profile_of(source: Path) -> str:
    """docker-compose.dev.yml is the profile dev; any other `main`."""
    word = source.stem.rpartition(".")[2] if "." in source.stem else ""
    return word if word and matches(NAME, word) else "main"


def _complete(draft: Draft, folder: Path) -> None:
    """What every profile must have, and names that would be in the way."""
    if not draft.get("base", "image"):
        draft.put("base", "image", value="nvcr.io/nvidia/pytorch:25.12-py3")
        draft.remark("base", "image", text="Not known: this is a guess.")
    if draft.get("cuda", "arch_list") is None:
        draft.put("cuda", "arch_list", value="12.1a")
        draft.remark(
            "cuda", "arch_list", text="A guess: GB10 (DGX Spark). `nvidia-smi --query-gpu=compute_cap --format=csv`."
        )
    taken = [name for name in ("Dockerfile", f"Dockerfile.{draft.profile}") if (folder / name).exists()]
    if "Dockerfile" in taken:
        free = f"Dockerfile.{draft.profile}" if len(taken) == 1 else f"Dockerfile.envgen-{draft.profile}"
        draft.put("dockerfile", value=free)
        draft.remark("dockerfile", text="Your own Dockerfile stays as it is.")
    draft.values = {key: draft.values[key] for key in _ORDER if draft.values.get(key) not in (None, {}, [])}


def write(draft: Draft, sources: str, folder: Path) -> Moved:
    """Write envgen.yaml (and envgen.local.yaml) that load: what the loader refuses is taken out, and listed."""
    path, machine = folder / FILE_NAME, folder / LOCAL_NAME
    has_local = bool(draft.local)
    if has_local and machine.exists():
        raise RefusedError(f"{machine} is there already", hint="move it away; it would change what is read")
    broken = ""
    for number in range(_ROUNDS):
        _complete(draft, folder)
        write_file(path, text_of(draft, sources), new=not number)
        if has_local:
            write_file(machine, local_text(draft), new=not number)
        broken, problems = _trouble(path)
        found = {one.place.key: f"{one.message}; {one.hint}".removesuffix("; ") for one in problems if one.place}
        # Of a list the last first: the others keep their numbers.
        keys = sorted(found, key=lambda key: (len(key), key), reverse=True)
        if not sum(draft.drop(key, found[key]) for key in keys):
            break
    written = (FILE_NAME, LOCAL_NAME) if has_local else (FILE_NAME,)
    return Moved(written, draft.services, tuple(draft.unplaced), broken)


def write_file(path: Path, text: str, *, new: bool = True) -> None:
    """Write ``path`` whole or not at all; a ``new`` one is never written over another."""
    try:
        files.write(path, text.encode(), new=new)
    except FileExistsError:
        raise RefusedError(f"{path} is there already", hint="nothing was changed") from None
    except OSError as error:
        raise RefusedError(f"{path} cannot be written: {reason_of(error).lower()}") from None


def _trouble(path: Path) -> tuple[str, Sequence[Problem]]:
    """Whether the file loads and renders: what is wrong, and its problems with their lines."""
    try:
        outputs.render_project(load_project(file=path, local=False).project)
        load_project(file=path)
    except ProjectError as error:
        return str(error), error.problems
    except (EnvgenError, ValueError) as error:
        return str(error), ()
    return "", ()
