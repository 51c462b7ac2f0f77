"""The inputs of an image, by the names that users know: a label, and the changes since a build.

The render digest decides whether an image is out of date; this label only explains why.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import PurePosixPath
from urllib.parse import quote, unquote

from envgen.lock.model import InputChange, changes
from envgen.profile.schema import flat, plain
from envgen.profile.tree import join_path
from envgen.redact import secret_in, without_login
from envgen.render.plan import ImagePlan
from envgen.text import visible

LABEL = "dev.envgen.inputs"
LOCK = "envgen.lock"
SHORT = 8  # digits of a digest
LONGEST = 100  # characters of a value; a longer one becomes a digest
FILES = 60  # with more, each folder counts as one
_MOST = 1000  # inputs read from a label


def inputs_of(plan: ImagePlan, files: Mapping[str, str]) -> dict[str, str]:
    """Name -> value, or ``#`` and a digest of a value that is long, of several lines, or looks like
    a secret.

    ``files``: path -> digest of its content.
    """
    profile = plan.profile
    lock = plan.lock
    inputs = {}
    for path, value in flat(plain(profile)):
        key = join_path(path)
        if not _KEYS.match(key):
            continue
        if ".install.env." in key:
            value = _hidden(str(value))
        elif key.endswith(".git") and value:
            value = without_login(str(value))
        inputs[key] = value
    inputs["base.image"] = plan.base_image
    inputs["caches"] = ()
    inputs["folders open to every user"] = ""
    if plan.opened:
        inputs["caches"] = [cache.path.path for cache in profile.caches.values()]
        inputs["folders open to every user"] = "yes"
    for name in profile.mounted_sources:
        inputs[f"sources.{name}.origin"] = "checkout"  # its path is a fact of a machine
    for name, series in plan.patches.items():
        paths = [PurePosixPath(patch.path) for patch in series.patches]
        inputs[f"sources.{name}.patches"] = [path.name for path in paths]
    if lock is not None:
        for name, git in lock.git.items():
            inputs[f"{LOCK}: git {name}"] = git.commit[:12]
        inputs[LOCK] = _hidden(lock.digest)
    inputs |= _grouped({path: digest for path, digest in files.items() if not _of_the_lock(path)})
    texts = {name: _text(value) for name, value in inputs.items()}
    return {name: texts[name] for name in sorted(texts) if texts[name]}


# Keys that images are built from.
_KEYS = re.compile(
    r"(base|cuda|apt|tiktoken|dockerfile_extra|python_path|working_dir)\b|build\.ccache|pip\.(?!netrc)"
    r"|sources\.\w+\.(?!origin\.checkout|package|mount|console_scripts|patches)"
)


def _of_the_lock(path: str) -> bool:
    """Whether a file only repeats the lock, which is an input of its own."""
    return "/runtime/manifest.json" in path or "/locked/" in path


def _grouped(files: Mapping[str, str]) -> dict[str, str]:
    """A short digest of each file; with many files, of each folder."""
    if len(files) <= FILES:
        return {path: _hidden(digest) for path, digest in files.items()}
    folders: dict[str, list[str]] = {}
    for path, digest in sorted(files.items()):
        *above, _ = path.split("/")
        folder = "/".join(above[:2]) or path
        lines = folders.setdefault(folder, [])
        lines.append(f"{path} {digest}")
    digests = {}
    for folder, lines in folders.items():
        text = "\n".join(lines)
        digests[folder] = _hidden(text)
    return digests


def _hidden(text: str) -> str:
    return f"#{hashlib.sha256(text.encode()).hexdigest()[:SHORT]}"


def _text(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = " ".join(value)
    text = (
        ""
        if value is None or value == {}
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )
    plain = len(text) <= LONGEST and text.isprintable() and not secret_in(text)
    return text if plain or not text else _hidden(text)


def label_of(inputs: Mapping[str, str]) -> str:
    """One word per input, sorted and percent-encoded."""
    return " ".join(
        f"{quote(name, safe=_SAFE)}={quote(value, safe=_SAFE)}"
        for name, value in sorted(inputs.items())
    )


_SAFE = "/:@+,<>!~#*;[]()"  # of ASCII; no `=`, blank, quote, `$` or backslash


def read_label(label: str) -> dict[str, str]:
    """The inputs in a label, of any image: limited, and safe to print."""
    pairs = (word.partition("=") for word in islice(label.split(), _MOST))
    return {_safe(name): _safe(value) for name, _, value in pairs}


def _safe(text: str) -> str:
    return visible(unquote(text))[: 2 * LONGEST]


def changed(label: str, now: Mapping[str, str]) -> list[InputChange]:
    """The changes since an image with this label was built; [] without a label."""
    if not label:
        return []
    differences = changes(read_label(label), now)
    # The digest of the whole lock only counts where nothing else has changed.
    return [one for one in differences if one.name != LOCK] or differences
