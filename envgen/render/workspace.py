"""What `build` and `up` really use: the files of a profile rendered with all layers, in `.envgen/render/PROFILE/`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from envgen import files
from envgen.files import state_dir
from envgen.lock.model import ProfileLock
from envgen.profile.model import Profile
from envgen.render.assemble import Rendered, render_profile
from envgen.render.outputs import write
from envgen.render.own import paths_of


@dataclass(frozen=True)
class Workspace:
    """``folder`` holds the rendered files."""

    folder: Path
    rendered: Rendered


def prepare(profile: Profile, root: Path, lock: ProfileLock | None = None) -> Workspace:
    """Render ``profile`` into its folder below ``root``; files that did not change keep their times."""
    rendered = render_profile(profile, lock, root=root)
    folder = state_dir(root, "render", profile.name)
    with files.folder(folder, root):
        pass
    made = dict(rendered.files)
    # The folder is the whole context of the build: what it reads of the project is there, too.
    for path in rendered.context_files:
        with contextlib.suppress(FileNotFoundError):  # a local encoding file is only the first of several places
            made[path] = files.read(root / path)
    programs = {path for path in made if path not in rendered.files and (root / path).stat().st_mode & 0o100}
    write(folder, made, programs)
    for path in paths_of(profile):  # a file that is gone from a folder must not be built any more
        for file in (folder / path).rglob("*"):
            if file.is_file() and file.relative_to(folder).as_posix() not in made:
                file.unlink()
    return Workspace(folder, rendered)
