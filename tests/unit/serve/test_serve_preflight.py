"""The check before a start, as a whole: what it refuses, what can still be made, and what it only notes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.engine import box
from envgen.engine.gpu import NO_GPU
from envgen.engine.values import Image
from envgen.errors import Problem, RefusedError
from envgen.profile.load import load_project
from envgen.profile.model import GpuMode
from envgen.render.outputs import RENDER_LABEL
from envgen.serve import memory, preflight
from envgen.serve.preflight import PreflightError, check

FILE = """\
version: 1
name: lab
profiles:
  p:
    mode: development
    base: {image: base:1}
    cuda: {arch_list: 12.1a}
    gpu: GPU
    secrets: [HF_TOKEN]
    caches: {huggingface: {path: /root/.cache/huggingface, host: hub}}
    sources:
      lib: {origin: {checkout: lib}, package: lib, distribution: lib, mount: /code/lib}
    services:
      web:
        command: [vllm, serve]
        ports: ["18001:8000"]
        needs_memory: 80GiB
        model: {repo: a/m}
        mounts: {extra: {path: /extra, host: extra}}
"""
MEMORY = "it needs 80.0 GiB of memory, and 1.0 GiB are available"
WEIGHTS = Problem("the weights are not here")
NO_IMAGE = "the image lab:p is not built"
RUNNING: Any = SimpleNamespace(state="running", ports=(), mounts=(), name="lab-p-web-1")
ONE_TAKEN = "port 18001 is taken by container other"
GPU_NOTE = f"web starts without a GPU: {NO_GPU} (`gpu: required` makes this an error, `gpu: none` hides it)"


class Bench:
    """A project whose `web` could start, and the machine that it would start on."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        for name in ("lib/lib", "extra"):
            (folder / name).mkdir(parents=True)
        (folder / "lib/lib/__init__.py").touch()
        self.meminfo({"MemAvailable": 90 << 30, "MemFree": 90 << 30})
        patch.setattr("envgen.engine.host.is_taken", lambda *_: False)

    def meminfo(self, memory_: dict[str, int]) -> None:
        self.patch.setattr(memory, "meminfo", lambda *_: memory_)
        self.patch.setattr(box, "settled", lambda *_: box.Box(memory=memory_))
        self.patch.setattr(memory, "held_by", lambda *_: "")

    def service(
        self, gpu: str = "none", local: bool = True, built: bool = True, given: GpuMode = GpuMode.NONE
    ) -> LiveService:
        file = self.folder / "envgen.yaml"
        file.write_text(FILE.replace("GPU", gpu, 1))
        profile = load_project(file=file, environ={}).project.profiles["p"]
        engine: Any = SimpleNamespace(info=lambda: SimpleNamespace(local=local), listed=lambda: ())
        image = Image("sha256:1", {RENDER_LABEL: "d"}, "", 0, "", (), {}) if built else None
        rendered = SimpleNamespace(digest="d", inputs="")
        deployment = Deployment(profile, self.folder).with_cached(
            engine=engine, image=image, rendered=rendered, lock_file=None, built_upon=False, _gpu=(given, None)
        )
        return LiveService(deployment, "web")

    def answer(self, service: LiveService, *, runs: bool = False, rows: Any = (), lacks: Any = ()) -> Any:
        try:
            return check(service, rows, [RUNNING] if runs else [], lambda: lacks)
        except PreflightError as error:
            return [one.message for one in error.problems[1:]], error.only_lacking


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


ROW: Any = SimpleNamespace(labels={}, ports=(18001,), name="other", service="", project="")
LOW = {"MemAvailable": 1 << 30, "MemFree": 1 << 30}
CACHED = {"MemAvailable": 90 << 30, "MemFree": 20 << 30}
PAGES = "of the 90.0 GiB available, only 20.0 GiB are unused"


@pytest.mark.parametrize(
    ("machine", "call", "expected"),
    [
        ({}, {}, []),
        # An image or weights that `up` makes are no reason to stop; anything beside them is.
        ({"built": False}, {}, ([NO_IMAGE], True)),
        ({}, {"lacks": [WEIGHTS]}, ([WEIGHTS.message], True)),
        ({}, {"lacks": [WEIGHTS], "rows": [ROW]}, ([WEIGHTS.message, ONE_TAKEN], False)),
        # Without an image nobody can be asked for the weights, and a running service has them.
        ({"built": False}, {"lacks": [WEIGHTS]}, ([NO_IMAGE], True)),
        ({}, {"lacks": [WEIGHTS], "runs": True}, []),
        ({}, {"rows": [ROW]}, ([ONE_TAKEN], False)),
        ({"local": False}, {"rows": [ROW]}, []),
        ({"memory": LOW}, {}, ([MEMORY], False)),
        ({"memory": LOW}, {"runs": True}, []),
        ({"memory": LOW, "local": False}, {}, []),
        # The page cache counts where a GPU shares the memory.
        ({"memory": CACHED, "gpu": "auto", "given": GpuMode.REQUIRED}, {}, [PAGES]),
        ({"memory": CACHED, "gpu": "auto", "given": GpuMode.REQUIRED}, {"runs": True}, []),
        ({"memory": CACHED}, {}, []),
        ({"gpu": "auto"}, {}, [GPU_NOTE]),
        ({"gpu": "auto"}, {"runs": True}, [GPU_NOTE]),
        ({"gpu": "none"}, {}, []),
    ],
)  # fmt: skip
def test_check(bench: Bench, machine: dict[str, Any], call: dict[str, Any], expected: Any) -> None:
    given = dict(machine)
    bench.meminfo(given.pop("memory", {"MemAvailable": 90 << 30, "MemFree": 90 << 30}))
    answer = bench.answer(bench.service(**given), **call)
    if isinstance(expected, list):
        assert len(answer) == len(expected)
        assert all(line.startswith(begin) for line, begin in zip(answer, expected, strict=True))
    else:
        assert answer == expected


def test_a_paused_container_is_refused_with_the_command_that_wakes_it(bench: Bench) -> None:
    paused: Any = SimpleNamespace(state="paused", ports=(), mounts=(), name="lab-p-web-1")
    with pytest.raises(RefusedError, match="web is paused") as refused:
        check(bench.service(), (), [RUNNING, paused], lambda: ())
    assert refused.value.problems[0].hint == "docker unpause lab-p-web-1"


@pytest.mark.parametrize(
    ("break_", "message", "hint"),
    [
        ("rm", "sources.lib: folder LIB does not exist", "write `sources: {lib:"),
        ("file", "sources.lib: folder LIB does not exist", "write `sources: {lib:"),
        ("empty", "sources.lib: LIB is empty", "write `sources: {lib:"),
        ("other", "sources.lib: LIB has no Python package lib", "write `sources: {lib:"),
        ("module", "", ""),
        ("src", "", ""),
        ("mount", "services.web.mounts.extra: EXTRA does not exist", "make it, or correct services.web.mounts.extra.host"),
    ],
)  # fmt: skip
def test_folders(bench: Bench, break_: str, message: str, hint: str) -> None:
    """Before a first start all of them; of a container that runs those that it has mounted."""
    lib, extra = bench.folder / "lib", bench.folder / "extra"
    inner = lib / "lib"
    if break_ == "mount":
        extra.rmdir()
    else:
        (inner / "__init__.py").unlink()
        inner.rmdir()
    if break_ in ("rm", "file"):
        lib.rmdir()
    for kind, path in (
        ("file", lib),
        ("module", lib / "lib.py"),
        ("src", lib / "src/lib/__init__.py"),
        ("other", lib / "a"),
    ):
        if break_ == kind:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    expected = message.replace("LIB", str(lib)).replace("EXTRA", str(extra))
    service = bench.service()
    problems = preflight.refusals(service, running=True)
    assert [one.message for one in problems] == ([expected] if expected else [])
    assert all(one.hint.startswith(hint) for one in problems)


def test_notes_name_secrets_that_no_terminal_has(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("envgen.patches.checkout.lacking", lambda *_: {"lib": ["0001", "0002"]})
    apply = "cat patches/None/0001 patches/None/0002 | git -C lib apply"
    patches = f"the checkout of lib lacks 0001, 0002, or has edits in their lines: {apply}"
    open_ = "web: port 18001 is reachable from the network, past ufw, and the server asks for no API key"
    closing = "; publish it as '127.0.0.1:18001:8000', or add VLLM_API_KEY to `secrets`"
    unset = "not set in this terminal or in .env: HF_TOKEN"
    service = bench.service()
    assert list(preflight.notes(service, running=False)) == [patches, open_ + closing, unset]
    assert list(preflight.notes(service, running=True)) == [patches, open_ + closing]
    monkeypatch.setenv("HF_TOKEN", "x")
    assert unset not in list(preflight.notes(service, running=False))
