"""An existing Compose file, or a recipe, as a project file that loads: read, write, check, comment out what fails."""

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
from envgen.profile.patterns import NAME, matches
from envgen.profile.tree import TEXT, plain_kind
from envgen.profile.values import ImageRef
from envgen.redact import redact_secrets
from envgen.render import outputs
from envgen.text import reason_of

_ORDER = (
    "mode", "dockerfile", "base", "cuda", "build", "apt", "pip", "sources", "python_path", "env", "secrets", "caches",
    "gpu", "ipc", "ulimits", "working_dir", "services",
)  # fmt: skip
_ROUNDS = 12  # commenting out a value may show what leaned on it


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
    image = str(draft.get("base", "image") or "")
    try:
        ImageRef.parse(image)
    except ValueError:
        if image:
            draft.note(FILE_NAME, 1, "base.image", "the file's own is not an image name")
        image = ""
    if plain_kind(image) != TEXT:
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
    """Write envgen.yaml (and envgen.local.yaml) that load. What doesn't load is commented out, and listed."""
    path, local = folder / FILE_NAME, local_text(draft)
    if local and (folder / LOCAL_NAME).exists():
        raise RefusedError(f"{folder / LOCAL_NAME} is there already", hint="move it away; it would change what is read")
    texts = {FILE_NAME: text_of(draft, sources)} | ({LOCAL_NAME: local} if local else {})
    for name, text in texts.items():
        _write(folder / name, text, new=True)
    removed: list[Unplaced] = []
    broken = ""
    for _ in range(_ROUNDS):
        broken, problems = _trouble(path)
        places = [(problem.place, problem.message) for problem in problems if problem.place and problem.place.line]
        if not places:
            break
        for name in texts:
            lines = {place.line: message for place, message in places if Path(place.file).name == name}
            texts[name] = _without(texts[name], name, lines, removed)
            _write(folder / name, texts[name], new=False)
    return Moved(tuple(texts), draft.services, (*draft.unplaced, *removed), broken)


def _write(path: Path, text: str, *, new: bool) -> None:
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


def _without(text: str, file: str, problems: dict[int, str], removed: list[Unplaced]) -> str:
    """``text`` with the blocks that begin in these lines commented out, each with its reason."""
    lines = text.split("\n")
    for number in sorted(problems, reverse=True):
        at = number - 1
        if at >= len(lines) or not lines[at].strip() or lines[at].lstrip().startswith("#"):
            continue
        depth = _depth(lines[at])
        end = at + 1
        while end < len(lines) and lines[end].strip() and _depth(lines[end]) > depth:
            end += 1
        what = lines[at].strip().partition(":")[0]
        removed.append(Unplaced(file, number, what, redact_secrets(problems[number])))
        pad = " " * depth
        block = [f"{pad}# {redact_secrets(line[depth:])}" for line in lines[at:end]]
        lines[at:end] = [f"{pad}# Commented out: {redact_secrets(problems[number])}", *block]
        _close(lines, at)
    return "\n".join(lines)


def _close(lines: list[str], at: int) -> None:
    """Comment out the parents of line ``at`` that have nothing left: a key without a value removes what it names."""
    while at > 0 and (depth := _depth(lines[at])) > 0:
        while at > 0 and (_is_comment(lines[at]) or _depth(lines[at]) >= depth):
            at -= 1
        end = at + 1
        while end < len(lines) and lines[end].strip() and _depth(lines[end]) > _depth(lines[at]):
            if not _is_comment(lines[end]):
                return
            end += 1
        pad = " " * _depth(lines[at])
        lines[at] = f"{pad}# {lines[at].strip()}"


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#") or not line.strip()


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
