"""The folder of the rendered files is of one command at a time where their content differs."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from envgen.profile.load import load_project
from envgen.render.outputs import Workspace, lay_out, render_profile

FILE = """\
version: 1
name: p
profiles:
  prod:
    mode: production
    base: {image: "localhost/none:1"}
    cuda: {arch_list: "12.1a"}
    gpu: none
    services: {web: {command: [x], env: {A: one}}}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "envgen.yaml").write_text(FILE)
    return tmp_path


def laid_out(root: Path, *sets: str) -> Workspace:
    profile = load_project(file=root / "envgen.yaml", sets=sets).project.profiles["prod"]
    return lay_out(render_profile(profile, None, root=root), profile, root)


def value_in(made: Workspace) -> str:
    text = (made.folder / "compose/prod.yaml").read_text()
    return text.split("A: ")[1].split("\n")[0]


def in_another_process(work: Callable[[], None], then: Callable[[], None]) -> None:
    """``then`` here, while another process that has done ``work`` is still there."""
    (ready, done), (waits, goes_on) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            work()
            os.write(done, b"x")
            os.close(goes_on)
            os.read(waits, 1)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(done)
    os.close(waits)
    try:
        assert os.read(ready, 1) == b"x"
        then()
    finally:
        os.close(goes_on)
        os.close(ready)
        os.waitpid(child, 0)


def test_another_command_does_not_change_what_a_start_with_set_uses(root: Path) -> None:
    shared = root / ".envgen/render/prod/compose/prod.yaml"

    def meanwhile() -> None:
        plain = laid_out(root)
        assert value_in(plain) == "one" and plain.temporary is not None
        assert "A: two" in shared.read_text()
        # With the same content the folder is shared.
        same = laid_out(root, "services.web.env.A=two")
        assert same.temporary is None and value_in(same) == "two"

    in_another_process(lambda: assert_(laid_out(root, "services.web.env.A=two")), meanwhile)


def assert_(made: Workspace) -> None:
    assert made.temporary is None


def test_a_command_that_has_ended_holds_nothing(root: Path) -> None:
    in_another_process(lambda: assert_(laid_out(root, "services.web.env.A=two")), lambda: None)
    plain = laid_out(root)
    assert plain.temporary is None and value_in(plain) == "one"
    # One process may render again, as with the lock that it has just made.
    again = laid_out(root, "services.web.env.A=three")
    assert again.temporary is None and value_in(again) == "three"
