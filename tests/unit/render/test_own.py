"""Lines, files and folders of the user's own in an image: where they stand, and what counts as a change of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envgen.errors import EnvgenError, RefusedError
from envgen.profile.load import load_project
from envgen.profile.model import Profile
from envgen.render import outputs
from envgen.render.outputs import Rendered, lay_out, render_profile
from envgen.render.quote import docker_line

FILE = """\
version: 1
name: demo
profiles:
  prod:
    mode: production
    base: {image: debian:12}
    cuda: {arch_list: 12.1a}
    compose: over.yaml
    dockerfile_extra:
      base: [ENV A=1]
      end: [COPY own/ ./one.txt /opt/, RUN /opt/say, COPY ./src/ /opt/src/]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {"envgen.yaml": FILE, "over.yaml": "", "one.txt": "", "own/say": "x", "own/deep/a": "", "src/mine.py": ""}
    skipped = {"own/__pycache__/a.pyc": "", "own/b.pyc": "", "src/.git/config": "", "other": ""}
    for name, text in {**files, **skipped}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def profile(root: Path) -> Profile:
    return load_project(file=root / "envgen.yaml").project.profiles["prod"]


def rendered(root: Path) -> Rendered:
    return render_profile(profile(root), root=root)


def test_only_what_is_named_goes_into_the_build(root: Path) -> None:
    found = rendered(root)
    assert found.context_files == ("one.txt", "own/deep/a", "own/say", "src/mine.py")
    ignore = found.files[".dockerignore"].decode().splitlines()
    assert [line for line in ignore if line.startswith("!")] == ["!docker/", "!patches/", "!one.txt", "!own", "!src"]


def test_every_change_of_content_makes_another_image(root: Path) -> None:
    digests = [rendered(root).digest]
    (root / "own/say").write_text("y")
    digests.append(rendered(root).digest)
    (root / "own/say").chmod(0o755)
    digests.append(rendered(root).digest)
    (root / "src/new.py").write_text("")
    digests.append(rendered(root).digest)
    (root / "other").write_text("changed")
    (root / "own/__pycache__/a.pyc").write_text("changed")
    assert len(set(digests)) == 4 and rendered(root).digest == digests[-1]


def test_the_workspace_follows_the_folder(root: Path) -> None:
    (root / "own/say").chmod(0o755)
    folder = lay_out(rendered(root), profile(root), root).folder
    assert (folder / "own/say").stat().st_mode & 0o111 and not (folder / "own/deep/a").stat().st_mode & 0o111
    (root / "own/deep/a").unlink()
    (root / "src/new.py").write_text("")
    os.utime(folder, (0, 0))
    before, folder = folder, lay_out(rendered(root), profile(root), root).folder
    assert not before.exists()  # nobody has used it for weeks
    assert not (folder / "own/deep/a").exists() and (folder / "src/new.py").exists()
    assert not (folder / "own/b.pyc").exists()


def test_links_that_leave_the_project_and_too_much_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = root / "own/link"
    link.symlink_to("/etc/hostname")
    with pytest.raises(RefusedError, match="own/link is a link that leaves the project"):
        rendered(root)
    link.unlink()
    link.symlink_to("/etc")
    with pytest.raises(RefusedError, match="own/link is a link to a folder"):
        rendered(root)
    link.unlink()
    monkeypatch.setattr(outputs, "MOST", 3)
    with pytest.raises(RefusedError, match="holds more than 3 files"):
        rendered(root)
    with pytest.raises(EnvgenError, match="needs the project's folder"):
        outputs.files_of(profile(root), None)


@pytest.mark.parametrize("text", ["FROM x", "RUN a\nUSER b", "RUN a \\", "RUN cat <<A", "run a", "USER x"])
def test_the_template_prints_nothing_else_than_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="line"):
        docker_line(text)
