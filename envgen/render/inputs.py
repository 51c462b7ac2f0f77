"""The inputs of an image, by the names that users know: a label, and the changes since a build.

The render digest decides whether an image is out of date; this label only explains why.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import PurePosixPath
from urllib.parse import quote, unquote

from envgen.lock.model import InputChange
from envgen.profile.model import Source
from envgen.profile.schema import plain
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
    """Name -> value, or ``#`` and a digest of a value that is long, of several lines, or looks like a secret.

    Only what the plan prints, so that each change changes the image. ``files``: path -> digest of its content.
    """
    profile, lock = plan.profile, plan.lock
    inputs: dict[str, object] = {key: plain(attrgetter(key)(profile)) for key in _KEYS}
    inputs |= {
        "base.image": plan.base_image,
        "dockerfile_extra.base": [_hidden(line.text) for line in profile.dockerfile_extra.base],
        "dockerfile_extra.end": [_hidden(line.text) for line in profile.dockerfile_extra.end],
        "caches": [cache.path.path for cache in profile.caches.values()] if plan.opened else (),
        "folders open to every user": "yes" if plan.opened else "",
    }
    if profile.cuda.arch_list.archs:
        inputs |= {"cuda.arch_list": str(profile.cuda.arch_list), "cuda.home": profile.cuda.home.path}
    if any(source.origin.wheel is None for source in profile.sources.values()):
        inputs["build.ccache"] = "true" if plan.ccache else "false"
    if plan.encodings:
        inputs["tiktoken.directory"] = profile.tiktoken.directory.path
        inputs |= {f"tiktoken.encodings.{name}": _hidden(str(one)) for name, one in profile.tiktoken.encodings.items()}
    for name, source in profile.sources.items():
        inputs |= {f"sources.{name}.{key}": value for key, value in _of_source(plan, name, source).items()}
    if lock is not None:
        inputs |= {f"{LOCK}: git {name}": git.commit[:12] for name, git in lock.git.items()}
        inputs[LOCK] = _hidden(lock.digest)
    inputs |= _grouped({path: digest for path, digest in files.items() if not _of_the_lock(path)})
    texts = {name: _text(value) for name, value in inputs.items()}
    return {name: texts[name] for name in sorted(texts) if texts[name]}


# Keys of the profile that every image depends on.
_KEYS = ("base.python", "base.platform", "base.apt", "apt.build", "apt.runtime", "pip.index", "pip.extra_indexes",
         "pip.tools", "pip.deps", "pip.override", "pip.remove", "pip.protect", "python_path",
         "working_dir")  # fmt: skip


def _of_source(plan: ImagePlan, name: str, source: Source) -> dict[str, object]:
    origin, install, mounted = source.origin, source.install, source.origin.checkout is not None
    facts: dict[str, object] = {
        "origin": "checkout" if mounted else "",  # its path is a fact of this machine
        **{f"origin.{key}": plain(getattr(origin, key)) for key in ("ref", "pull", "pypi", "wheel", "folder")},
        "origin.git": without_login(origin.git or ""),
        "distribution": source.distribution,
        "binaries": plain(source.binaries),
        "install.dependencies": "true" if install.dependencies and source.binaries is None else "",
        "submodule_origins": _hidden(str(source.submodule_origins)) if source.submodule_origins and origin.git else "",
        "package": source.package if name in plan.patches or mounted else "",
        "mount": source.mount.path if mounted else "",
    }
    if name in plan.patches:
        facts["patches"] = [PurePosixPath(patch.path).name for patch in plan.patches[name].patches]
    if origin.is_built or mounted:
        facts |= {"install.requires": install.requires, "install.prepare": install.prepare}
        facts["install.env"] = _hidden(str(sorted(install.env.items()))) if install.env else ""
    if origin.is_built:
        facts |= {f"install.inputs.{key}": f"{without_login(one.git)} {one.ref}" for key, one in install.inputs.items()}
    return facts


def _of_the_lock(path: str) -> bool:
    """Whether a file only repeats the lock, which is an input of its own."""
    return "/runtime/manifest.json" in path or "/locked/" in path


def _grouped(files: Mapping[str, str]) -> dict[str, str]:
    """A short digest of each file; with many files, of each folder."""
    if len(files) <= FILES:
        return {path: _hidden(digest) for path, digest in files.items()}
    folders: dict[str, list[str]] = {}
    for path, digest in sorted(files.items()):
        folders.setdefault("/".join(path.split("/")[:2][: path.count("/")]) or path, []).append(f"{path} {digest}")
    return {folder: _hidden("\n".join(lines)) for folder, lines in folders.items()}


def _hidden(text: str) -> str:
    return f"#{hashlib.sha256(text.encode()).hexdigest()[:SHORT]}"


def _text(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = " ".join(value)
    text = "" if value is None else str(value)
    plain = len(text) <= LONGEST and text.isprintable() and not secret_in(text)
    return text if plain or not text else _hidden(text)


def label_of(inputs: Mapping[str, str]) -> str:
    """One word per input, sorted and percent-encoded."""
    return " ".join(f"{quote(name, safe=_SAFE)}={quote(value, safe=_SAFE)}" for name, value in sorted(inputs.items()))


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
    before = read_label(label)
    changes = [
        InputChange(name, before.get(name, ""), now.get(name, ""))
        for name in sorted({*before, *now})
        if before.get(name, "") != now.get(name, "")
    ]
    # The digest of the whole lock only counts where nothing else has changed.
    return [one for one in changes if one.name != LOCK] or changes
