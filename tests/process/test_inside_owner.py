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
    told = asked(service, line, "")  # type: ignore[arg-type]
    assert all(word in told for word in words), told


SOURCE = """\
def check(size, limit, mode):
    if mode:
        pass
    elif size > limit(
        1):
        raise ValueError(
            f"The flux of {size:.2f} is larger "
            f"than the limit {limit}.\\nSee the page.")
    else:
        assert size, "The flux of nothing can't be measured at all"
    raise SystemExit("The flux of %s is not known here" % mode)
"""
REGISTRY = '{"HasForCausalLM": (\n"has", "HasForCausalLM"), "HadForCausalLM": "0.10.2"}\n'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ERROR [x.py:1] ValueError: The flux of 3.25 is larger than the limit 2.", "{}:6 if size > limit( 1)"),
        ("ValueError: Value error, The flux of 3.25 is larger than the limit 2.", "{}:6 if size > limit( 1)"),
        ("AssertionError: The flux of nothing can't be measured at all", "{}:10 unless size > limit( 1)"),
        ("RuntimeError: The flux of \x1b[31m is not known here", "{}:11"),
        ("RuntimeError: The flux of anything else is another message", ""),
    ],
)
def test_the_image_is_asked_for_the_condition_of_a_message(service: _Service, line: str, words: str) -> None:
    file = service.folder / "flux" / "limits.py"
    file.write_text(SOURCE)
    (file.parent / "other.py").write_text('MESSAGE = "The flux of"\n')
    told = asked(service, line, "flux")  # type: ignore[arg-type]
    assert told == (words and f"flux-a 1.2 and flux-b 1.2: said at {words.format(file)}")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ValueError: Model architectures ['HasForCausalLM'] failed to be inspected.", ", with HasForCausalLM in it"),
        ("ValueError: Model architectures ['HadForCausalLM'] are not supported", ", without HadForCausalLM"),
        ("NewForCausalLM has no vLLM implementation, falling back to Transformers", ", without NewForCausalLM"),
    ],
)
def test_the_image_is_asked_whether_vllm_registers_a_model(service: _Service, line: str, words: str) -> None:
    file = service.folder / "vllm/model_executor/models/registry.py"
    file.parent.mkdir(parents=True)
    (service.folder / "vllm/__init__.py").write_text("raise SystemExit('never run')\n")
    file.write_text(REGISTRY)
    assert asked(service, line, "pydantic") == f"vllm belongs to no package: {file}{words}"  # type: ignore[arg-type]


KERNELS = """\
@supported_compute_capability([100, 103])
def _first(a): pass
@another
@supported_compute_capability([121])
def _second(a): pass
@supported_compute_capability([75])
def _of_another(a): pass
@backend_requirement({"first": _first, "second": _second, "third": elsewhere})
@api
def mm(a): pass
raise SystemExit("never run")
"""


@pytest.mark.parametrize("rest", ["backend 'first' with capability 120", "compute capability 120"])
def test_the_image_is_asked_which_architectures_a_kernel_allows(service: _Service, rest: str) -> None:
    (service.folder / "flux/kernels.py").write_text(KERNELS)
    told = asked(service, f"BackendSupportedError: mm does not support {rest}", "flux")  # type: ignore[arg-type]
    assert told.endswith("compute capabilities of _first: [100, 103]; _second: [121]")


def test_what_the_image_answers_is_short_and_safe(service: _Service) -> None:
    (service.folder / "flux/long.py").write_text(
        f"if '\x1b[31m{'x' * 9999}':\n    raise E('the flux of nobody is lost here')\n"
    )
    told = asked(service, "RuntimeError: the flux of nobody is lost here", "flux")  # type: ignore[arg-type]
    assert "long.py:2 if '" in told and len(told) < 900 and "\x1b" not in told


def test_nothing_is_asked_of_another_failure(service: _Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgen.app.explain.inside.ask", lambda *args, **more: pytest.fail("asked"))
    assert asked(service, "torch.OutOfMemoryError: CUDA out of memory", "") == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "ImportError: cannot import name 'cdiv' from 'vllm.utils.math_utils' (/x)",
            "vllm/utils/math_utils.py, with cdiv in it",
        ),
        ("ModuleNotFoundError: No module named 'vllm.gone.away'", "there is no such file"),
        ("ModuleNotFoundError: No module named 'vllm._moe_C_stable_libtorch'", "vllm/_moe_C"),
        (
            "ValueError: Model architectures ['FluxForCausalLM'] are not supported",
            "models/registry.py, without FluxForCausalLM",
        ),
        ("ModuleNotFoundError: No module named 'flux'", ""),
        ("ValueError: a message of nobody's, which is long enough", ""),
    ],
)
def test_without_an_image_the_release_that_the_log_names_is_asked(line: str, words: str) -> None:
    """vLLM's own wheel on the package index, of which its list and one file are read."""
    told = asked(None, line, "vllm", {"vllm": "0.28.0+cu130"})
    assert words in told and ("belongs to vllm 0.28.0: " in told) == bool(words)
