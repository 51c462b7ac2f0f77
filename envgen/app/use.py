"""`use`: which profile commands take on this machine, written into envgen.local.yaml."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from envgen import files
from envgen.errors import RefusedError
from envgen.profile.load import LOCAL_NAME
from envgen.profile.tree import label_of, text_of

KEY = "default_profile"
_NEW = "# What holds on this machine: the same shape as envgen.yaml, and stronger. Not for git.\n"


def write_default(root: Path, profile: str) -> Path:
    """Make ``profile`` the default in the envgen.local.yaml of ``root``; its other text stays. Returns the file.

    RefusedError where it can't be changed, ProjectError where it can't be read.
    """
    path = root / LOCAL_NAME
    there = path.exists() or path.is_symlink()
    text = text_of(path, label_of(path)) if there else _NEW
    after = with_default(text, profile)
    if after is None:
        hint = f"write `{KEY}: {profile}` at its top"
        raise RefusedError(f"{label_of(path)} is not a block mapping, so nothing was changed", hint=hint)
    if after != text or not there:
        try:
            files.write(files.inside(path, root), after.encode(), new=not there)
        except OSError as error:
            raise files.trouble(error) from None
    return path


def with_default(text: str, profile: str) -> str | None:
    """The text of a local file with ``profile`` as its default. None where that can't be put into the text."""
    spelled = profile if isinstance(yaml.safe_load(profile), str) else f'"{profile}"'  # `true` is a name, too
    after, found = re.subn(rf"(?m)^{KEY}:[^\n#]*?(?=[ \t]*(#.*)?$)", f"{KEY}: {spelled}", text, count=1)
    if not found:
        after = f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{KEY}: {spelled}\n"
    try:
        before, now = (yaml.load(one, yaml.BaseLoader) for one in (text, after))
    except yaml.YAMLError:
        return None
    return after if now == {**(before or {}), KEY: profile} else None
