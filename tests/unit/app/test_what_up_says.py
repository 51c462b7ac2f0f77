"""What `up` says before it makes what is missing, and where two things are missing at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envgen.app import history, provision, start, weights
from envgen.deployment.service import LiveService
from envgen.errors import BuildError, LockError, RefusedError
from envgen.inside.jit.shapes import ImportedPackage, Module
from envgen.profile.model import GpuMode
from envgen.profile.service import ModelRef
from envgen.text import network_reason

MODEL = ModelRef("acme/tiny")
URLLIB3 = (
    "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api (Caused by "
    "NameResolutionError(\"HTTPSConnection(host='huggingface.co', port=443): Failed to resolve 'huggingface.co' "
    '([Errno -2] Name or service not known)"))'
)


@pytest.mark.parametrize(
    ("gpu", "wanted", "said"), [("none", "auto", True), ("all", "auto", False), ("none", "none", False)]
)
def test_no_gpu_is_named_before_anything_is_offered(tmp_path: Path, gpu: str, wanted: str, said: bool) -> None:
    profile = SimpleNamespace(gpu=GpuMode(wanted))
    deployment: Any = SimpleNamespace(gpu=GpuMode(gpu), profile=profile, root=tmp_path)
    lines = list(provision.MissingInputs(deployment, lock=True).lines())
    assert lines[0].startswith("  no GPU ") is said and lines[-1].startswith("  lock ")


@pytest.mark.parametrize("source", ["vllm", "flashinfer"])
def test_only_where_vllm_is_installed_a_first_build_is_gigabytes(source: str) -> None:
    profile = SimpleNamespace(gpu=GpuMode("none"), sources={source: None})
    deployment: Any = SimpleNamespace(gpu=GpuMode("none"), profile=profile, image=None)
    *_, last = provision.MissingInputs(deployment, image="is not built").lines()
    assert last.endswith("(vLLM: several GB)") is (source == "vllm")


def test_why_the_hub_names_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_model: ModelRef) -> int:
        raise LockError("the model acme/tiny at main: the hub refused HF_TOKEN (401)")

    found = SimpleNamespace(whole=False, bytes=0)
    profile = SimpleNamespace(compose_name="x", services={"serve": SimpleNamespace(models=[MODEL])})
    deployment: Any = SimpleNamespace(engine=SimpleNamespace(containers=lambda *_, **__: ()), profile=profile)
    monkeypatch.setattr(weights, "look", lambda *_: [found])
    monkeypatch.setattr(provision, "size_of", refused)
    [download] = provision._downloads(LiveService(deployment, "serve"))
    assert str(download) == "acme/tiny: of unknown size (the hub refused HF_TOKEN (401))"


@pytest.mark.parametrize(("token", "hint"), [(True, "check the access of HF_TOKEN"), (False, "export HF_TOKEN=...")])
def test_a_token_that_is_set_is_not_asked_for(token: bool, hint: str) -> None:
    error = weights._refused(MODEL, weights.DownloadResult(kind="access", problem="401 Client Error"), token=token)
    assert error.problems[0].hint.startswith(hint)


def test_an_error_of_the_network_is_its_reason_without_the_wrapping() -> None:
    assert network_reason(URLLIB3) == "Failed to resolve 'huggingface.co'"
    assert network_reason("something else") == "something else" and len(network_reason("x" * 999)) <= 200
    error = weights._refused(MODEL, weights.DownloadResult(kind="network", problem=URLLIB3), token=False)
    assert str(error).startswith("acme/tiny could not be downloaded: the hub was not reached: Failed to resolve")


@pytest.mark.parametrize("fails", ["", "image"])
def test_what_is_lacking_is_made_in_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    done, removed = list[str](), list[str]()
    deployment: Any = SimpleNamespace(engine=SimpleNamespace(remove_image=removed.append))
    downloads = (provision.Download(MODEL, 1, 0),)
    lacking = provision.MissingInputs(deployment, image="is not built", downloads=downloads)
    made = provision.Provision(cast(Any, None), lacking, lambda _: None, lambda: None, helper="x:base")

    def step(name: str) -> Callable[[], None]:
        def work() -> None:
            done.append(name)
            if name == fails:
                raise BuildError("it broke")

        return work

    for name in ("lock", "begin_downloads", "image", "weights"):
        monkeypatch.setattr(made, name, step(name))
    with pytest.raises(BuildError) if fails else contextlib.nullcontext():
        made.run()
    shown = [line.split()[1] for line in capsys.readouterr().err.splitlines()]
    assert done == (["begin_downloads", "image"] if fails else ["begin_downloads", "image", "weights"])
    assert shown == ([] if fails else ["image", "weights"]) and removed == ["x:base"]


# After a start that ended well


class Cache:
    """A cache with modules of each state."""

    recorded: list[tuple[str, ...]] = []  # noqa: RUF012
    refuses = False

    def __init__(self, _deployment: Any) -> None: ...

    def inventory(self) -> Any:
        rows = (
            ("sampling", "fresh", True),
            ("page", "fresh", False),
            ("norm", "stale", True),
            ("rope", "partial", False),
        )
        package = ImportedPackage(prebuilt=("flashinfer-jit-cache-sm121a 0.7.4+cu130: 2 modules for 121a",))
        return SimpleNamespace(
            package=package, modules=[Module("0.7.4", "121a", n, state=s, guess=g) for n, s, g in rows]
        )

    def baseline(self, query: Any) -> None:
        Cache.recorded.append(query.patterns)
        if Cache.refuses:
            raise RefusedError("a file has changed since")


@pytest.mark.parametrize("refuses", [False, True])
def test_a_fresh_module_without_proof_gets_its_baseline(monkeypatch: pytest.MonkeyPatch, refuses: bool) -> None:
    monkeypatch.setattr(provision, "JitCache", Cache)
    Cache.recorded, Cache.refuses = [], refuses
    deployment: Any = SimpleNamespace(gpu=GpuMode.ALL, profile=SimpleNamespace(caches={"flashinfer": None}))
    provision.record_sources(deployment, 1.0)
    assert Cache.recorded == [("sampling",)]  # not the stale one, not what is proven, not what is half built


def test_a_new_driver_is_said_before_a_start_where_it_makes_kernels_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    stale = Module("0.7.4", "121a", "moe_cute_dsl", state="stale")
    stale.prove("driver", "was compiled with driver 575.57")

    def jit_cache(_deployment: object) -> Any:
        asked.append("asked")
        return SimpleNamespace(inventory=lambda: SimpleNamespace(modules=[stale, Module("0.7.4", "121a", "page")]))

    monkeypatch.setattr(start, "JitCache", jit_cache)
    hint = lambda *words: " ".join(("envgen", *words, "-p prod"))  # noqa: E731
    profile = SimpleNamespace(name="prod", caches={"flashinfer": None}, hint=hint)
    deployment = SimpleNamespace(root=None, is_local=True)
    service: Any = SimpleNamespace(name="serve", profile=profile, deployment=deployment)

    def notes(then: str, now: str) -> list[str]:
        noted = [history.NotedStart("2026-11-12T10:00:00Z", 1.0, {history.DRIVER: then} if then else {})]
        monkeypatch.setattr(history, "starts", lambda *_: noted)
        monkeypatch.setattr(history, "machine_facts", lambda: {history.DRIVER: now} if now else {})
        return start.stale_by_driver(service)

    for then, now in (("580.142", "580.142"), ("", "580.142"), ("580.142", "")):
        assert notes(then, now) == [] and not asked  # no container is started for it
    (line,) = notes("575.57", "580.142")
    assert "driver 575.57 → 580.142, so compiled kernels are stale" in line
    assert "moe_cute_dsl" in line and "page" not in line and "`envgen cache clear --stale -p prod`" in line
    # It is a note of every check before a start, and of none beside a server that runs.
    deployment.engine = SimpleNamespace(listed=lambda **_: [], inspected=lambda _: [])
    deployment.rendered_files = lambda: SimpleNamespace(require_name=lambda _: None)
    profile.compose_name = "prod"
    service.on = lambda _: service
    for name in ("require_plugin", "adopt"):
        monkeypatch.setattr(start, name, lambda same: same)
    monkeypatch.setattr(start, "preflight", SimpleNamespace(check=lambda *_: [], notes=lambda *_, **__: []))
    assert start.check(service).notes == (line,)
    deployment.is_local = False  # this machine's driver is none of another's
    assert notes("575.57", "580.142") == []
