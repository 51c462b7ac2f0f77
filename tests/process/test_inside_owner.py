"""What an image answers about a name that could not be imported: our program in another Python."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from envgen.app.explain import asked
from envgen.inside.run import on_host


class _Service:
    """A service whose image is a folder of packages on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.profile = self.base = self
        self.python = sys.executable

    def temporary_container(self) -> tuple[object, list[object]]:
        return on_host({"PYTHONPATH": str(self.folder)}), []


@pytest.fixture
def service(tmp_path: Path) -> _Service:
    (tmp_path / "flux").mkdir()
    (tmp_path / "flux/__init__.py").write_text("names = ['Lazy']\n")
    (tmp_path / "flux/broken.py").write_text("raise SystemExit('never run')\n")
    for name in ("flux-a", "flux-b"):
        info = tmp_path / f"{name.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "RECORD").write_text("flux/__init__.py,,\n")
    return _Service(tmp_path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ImportError: cannot import name 'Lazy' from 'flux' (/x)", ("flux-a 1.2 and flux-b 1.2", "with Lazy in it")),
        ("ImportError: cannot import name 'Gone' from 'flux' (/x)", ("flux/__init__.py, without Gone",)),
        ("ModuleNotFoundError: No module named 'flux.gone'", ("flux-a 1.2", "there is no such file")),
        ("ModuleNotFoundError: No module named 'flux.broken'", ("flux/broken.py",)),
        ("ModuleNotFoundError: No module named 'nowhere.at.all'", ("to no package: there is no such file",)),
    ],
)
def test_the_image_is_asked_who_has_a_name(service: _Service, line: str, words: tuple[str, ...]) -> None:
    told = asked(service, line)  # type: ignore[arg-type]
    assert all(word in told for word in words), told


def test_nothing_is_asked_of_another_failure(service: _Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgen.app.explain.inside.ask", lambda *args, **more: pytest.fail("asked"))
    assert asked(service, "torch.OutOfMemoryError: CUDA out of memory.") == ""  # type: ignore[arg-type]
