"""Every finding of doctor, fired from a recorded document of the probe or a made-up fact, and every check silent.

tests/engine/test_doctor.py has those that only a real container shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from doctor_facts import (
    CACHE,
    CONTAINER,
    DIGEST,
    HOME,
    IMAGE,
    PP,
    Make,
    altered,
    container,
    given,
    recording,
    with_cells,
    with_folder,
)  # fmt: skip
from doctor_page import CHECKS as DESCRIBED_CHECKS
from doctor_page import DESCRIBED

from envgen.binding import bind
from envgen.doctor.checks import CHECKS
from envgen.doctor.model import Context, Finding, Severity
from envgen.doctor.probed import Trouble
from envgen.doctor.programs import NAMES, Running, Tried
from envgen.engine.box import Box, BoxGpu
from envgen.errors import Problem
from envgen.serve.ended import Ended

GIB = 1 << 30
H100 = "gpu-h100"
BY_ID = {check.id: check for check in CHECKS}


# --- documents --------------------------------------------------------------------------------------------------------


def with_gpu() -> dict[str, Any]:
    return altered("hook", gpus=[{"name": "NVIDIA GB10", "capability": "12.1", "driver": "580.95.05"}])


def with_driver(driver: str, toolkit: str, library_path: str = "") -> dict[str, Any]:
    """A GB10's driver and a container's CUDA."""
    document = with_gpu()
    document["gpus"][0]["driver"] = driver
    document["cuda"] = {"toolkit": {"version": toolkit, "path": "/usr/local/cuda/version.json"}}
    document["variables"]["LD_LIBRARY_PATH"] = library_path
    return document


def with_distribution(name: str, version: str, flashinfer: str = "0.5.3", **facts: Any) -> dict[str, Any]:
    """FlashInfer of one version, beside another distribution."""
    document = recording("hook-pythonpath")
    document["roots"] = [{**root, "version": flashinfer} for root in document["roots"]]
    other = {"name": name, "version": version, "location": "/x", "metadata": "/x/y", "kind": "dist-info", **facts}
    document["distributions"].append(other)
    return document


def with_binaries(**facts: object) -> dict[str, Any]:
    """A checkout with the compiled modules of a wheel."""
    wheel = {
        "source": "flashinfer", "package": "flashinfer", "mount": PP, "noted": True,
        "wheel": "flashinfer_python-0.7.0.post1-py3-none-any.whl", "modules": ["flashinfer/_C.abi3.so"],
        "compiled": "same",
    }  # fmt: skip
    return altered("hook", binaries=[{**wheel, **facts}])


def with_data(there: bool = False, **facts: Any) -> dict[str, Any]:
    """FlashInfer's folder in an image, with a part of what its JIT compiles."""
    data = [{"path": "/s/flashinfer/data/csrc", "there": there}]
    document = recording("prod-wheel")
    document["roots"] = [{**root, "data": data, **facts} for root in document["roots"]]
    return document


def with_two(winner: str) -> dict[str, Any]:
    """FlashInfer's wheel has a module that b12x brings, too."""
    module = {"path": "/usr/lib/python3/dist-packages/b12x/__init__.py", "owners": ["b12x", "flashinfer-python"]}
    return altered("hook", shared=[{**module, "winner": winner}])


def with_script(interpreter: str) -> dict[str, Any]:
    """A console script of another Python."""
    script = {"name": "vllm", "package": "vllm", "path": "/usr/local/bin/vllm", "interpreter": interpreter}
    return altered("prod-wheel", scripts=[{**script, "flags": [], "same": False}])


def with_tool(**facts: Any) -> dict[str, Any]:
    return altered(cuda={"tools": [{"name": "nvcc", "path": "/cuda/bin/nvcc", "archs": ["sm_121"], **facts}]})


def versions_of(**versions: str) -> dict[str, Any]:
    software = {name: {"version": version} for name, version in versions.items()}
    return altered(cuda=software)


def promised(installed: str) -> dict[str, Any]:
    return {"count": 2, "differ": [{"name": "torch", "promised": "2.10.0", "installed": installed}]}


def programs(**more: Any) -> tuple[Running, ...]:
    """A service's Python program, and the file that it has."""
    cell = {"package": "flashinfer", "how": "-c", "folder": "/", "kind": "regular", "origin": HOME, "entry": PP}
    process = {"pid": 7, "started": 1000.0, "title": "python3", "named": ["flashinfer"], "cells": [cell]}
    origins = [{"package": "flashinfer", "home": HOME}]
    data = {"service": "dev", "processes": [{**process, **more.pop("process", {})}], "origins": origins, **more}
    return (replace(bind(Running, data), container=CONTAINER),)


# --- facts from outside -----------------------------------------------------------------------------------------------

# A DGX Spark as public dumps show it; no GB10 was at hand. Bytes, watts, MHz.
SPARK = Box(
    kernel="6.17.0-1032-nvidia",
    memory={"MemTotal": 127611904 << 10, "MemFree": 100 * GIB, "CmaFree": 0},
    gpus=(BoxGpu("NVIDIA GB10", 4.4, 208, 3003, 38, 0),),
)
KHO = replace(SPARK, kernel="7.0.0-1019-nvidia", memory={**SPARK.memory, "CmaFree": 10171187200})
UNIFIED = ("gpu=required", "cuda.arch_list=12.1a", "services.dev.args.gpu-memory-utilization=0.90")
OWN, PREFER = ("compose=over.yaml",), ("pip.prefer=[b12x]",)
EMPTIED = Tried(HOME, lacks=NAMES["flashinfer"])
OLD = {"package": "flashinfer", "folder": "/opt/old/flashinfer", "file": "/opt/old/flashinfer/a.so"}
EDITED = {"package": "flashinfer", "folder": f"{PP}/flashinfer", "file": "page.py", "changed": 1034.0}
ENDED = Ended(service="dev", container="lab-dev-1", at="2026-11-25T23:44:40.7Z", asked=False, exit_code=1)


def box(*gpus: BoxGpu, **more: Any) -> Callable[[Make], Context]:
    return lambda make: make(box=replace(SPARK, gpus=gpus or SPARK.gpus, **more), sets=UNIFIED)


CASES: dict[tuple[str, str], Callable[[Make], Context]] = {
    ("host.kernel", "kho"): given(box=KHO),
    ("host.clocks", "latched"): box(BoxGpu("NVIDIA GB10", 16.2, 806, 3003, 45, 96)),
    ("host.clocks", "throttled"): box(BoxGpu("NVIDIA GB10", 80.0, 1800, 3003, 84, 97, ("software thermal",))),
    ("host.blocks", "killer"): box(killers={"earlyoom": 13 * GIB}),
    ("host.exposure", "open"): given(profile="prod"),
    ("compose.own", "broken"): given(own_trouble="Compose refuses it", sets=OWN),
    ("compose.own", "far"): given(own_changes={"dev": ("labels", "privileged")}, sets=OWN),
    ("up.refused", "refused"): given(container=None, refused=(Problem("its checkout is empty", None, "git clone x"),)),
    ("weights.whole", "not-whole"): given(weights={"dev": (Problem("a shard is short", None, "envgen model pull"),)}),
    ("image.exists", "missing"): given(image=None),
    ("image.render", "foreign"): given(image=replace(IMAGE, labels={})),
    ("image.render", "outdated"): given(digest="x" * 64),
    ("image.render", "other-profile"): given(profile="prod"),
    ("patches.mounted", "lacks"): given(unpatched={"flashinfer": ("0001-a.patch",)}, checkouts={"flashinfer": "/me"}),
    ("container.running", "none"): given(container=None),
    ("container.running", "ended"): given(container=container(state="exited", exit_code=1)),
    ("container.running", "stopped"): given(
        container=container(state="exited"), ended={CONTAINER.id: replace(ENDED, asked=True)}
    ),
    ("container.running", "unhealthy"): given(container=container(health="unhealthy")),
    ("container.others", "died"): given(others=(container(id="2", state="exited"),), ended={"2": ENDED}),
    ("container.others", "paused"): given(others=(container(id="2", state="paused"),)),
    ("container.settings", "differ"): given(differing=("environment: CUDA_HOME=/cuda is new",)),
    ("container.restart", "looping"): given(container=container(restarts=6)),
    ("container.restart", "restarted"): given(ended={"1": replace(ENDED, runs=True, restarts=1)}),
    ("python.start", "no-document"): given(trouble=Trouble("the container has no python3", "not found")),
    ("python.start", "hook"): given("hangs"),
    ("python.start", "part"): given(altered(errors=[{"part": "locked", "error": "ValueError: x"}])),
    ("mounts.sources", "no-package"): given({**with_folder(), "roots": []}),
    ("mounts.sources", "moved"): given(with_folder(root="/src/f//deleted")),
    ("mounts.sources", "owner"): given(with_folder(writable=False, uid=1000)),
    ("mounts.caches", "not-mounted"): given(with_folder(CACHE, mounted=False)),
    ("mounts.caches", "not-writable"): given(with_folder(CACHE, writable=False)),
    ("import.truth", "trap"): given("hook"),
    ("import.truth", "leftovers"): given("leftovers"),
    ("import.truth", "wheel"): given("wheel"),
    ("import.truth", "missing"): given("mixed"),
    ("import.truth", "failed"): given("hangs"),
    ("import.truth", "other-copy"): given(H100),
    ("import.truth", "from-elsewhere"): given(H100, profile="prod"),
    ("import.truth", "from-folder"): given("compat", profile="prod"),
    ("import.truth", "from-mount"): given("compat", profile="prod"),
    ("import.truth", "other-file"): given(with_cells(origin=f"{PP}/__init__.py", entry="")),
    ("import.truth", "shadowed"): given(with_cells(kind="module", origin="/w/flashinfer.py", entry="")),
    ("import.truth", "incomplete"): given(
        "hook-pythonpath", tried={"flashinfer": Tried(HOME, lacks=NAMES["flashinfer"])}
    ),
    ("import.truth", "fails"): given("hook-pythonpath", tried={"flashinfer": Tried(problem="RuntimeError: boom")}),
    ("import.truth", "gives-another"): given("hook-pythonpath", tried={"flashinfer": Tried("/other.py")}),
    ("import.running", "other"): given(running=programs(process={"mapped": [OLD]})),
    ("import.running", "older"): given(running=programs(ages=[EDITED])),
    ("import.scripts", "needed"): given("prod-wheel", profile="prod"),
    ("import.scripts", "not-installed"): given(H100),
    ("import.scripts", "other-python"): given(with_script("/usr/bin/python3.12"), profile="prod"),
    ("import.metadata", "none"): given("mixed"),
    ("import.metadata", "none-baked-in"): given("mixed", profile="prod"),
    ("import.metadata", "other-folder"): given("moved"),
    ("import.metadata", "other-version"): given("two", profile="prod"),
    ("import.metadata", "second"): given(H100),
    ("packages.locked", "differ"): given(altered(locked=promised("2.9.1"))),
    ("packages.locked", "replaced"): given(altered(protected=promised("2.9.1"))),
    ("packages.shared", "other"): given(with_two("flashinfer-python"), sets=PREFER),
    ("packages.shared", "undecided"): given(with_two("b12x")),
    ("packages.binaries", "gone"): given(with_binaries(gone=["flashinfer/_C.abi3.so"])),
    ("packages.binaries", "others"): given(with_binaries(others=["flashinfer/_old.abi3.so"])),
    ("packages.binaries", "csrc"): given(with_binaries(compiled="differs")),
    ("patches.claimed", "missing"): given(
        altered(claimed=[{"patch": "fi/0001-a", "package": "flashinfer", "path": HOME, "state": "changed"}])
    ),
    ("flashinfer.data", "missing"): given(with_data(), profile="prod"),
    ("flashinfer.data", "unknown-version"): given(with_data(True, version="0.0.0+unknown"), profile="prod"),
    ("flashinfer.prebuilt", "masked"): given(
        with_cells(package="flashinfer_jit_cache", kind="regular", origin="/x/y.py")
    ),
    ("cuda.versions", "cudnn"): given(versions_of(cudnn="9.10.2")),
    ("cuda.compilers", "arch"): given(with_tool(archs=["sm_90a"])),
    ("cuda.compilers", "broken"): given(with_tool(error="is missing")),
    ("cuda.driver", "old"): given(with_driver("580.95.05", "13.1.0")),
    ("gpu.arch", "other"): given(H100, sets=("cuda.arch_list=12.1a",)),
}
# A document without an engine has this finding before any check runs.
ELSEWHERE_TESTED = {("host.docker", "absent")}


def judged(check: str, context: Context) -> list[Finding]:
    return BY_ID[check](context)


@pytest.mark.parametrize(("check", "case"), CASES)
def test_it_fires(make: Make, check: str, case: str) -> None:
    found = [finding for finding in judged(check, CASES[check, case](make)) if finding.case == case]
    assert {finding.severity.word for finding in found} == {DESCRIBED[check, case]}
    assert all(finding.remedy and finding.seen and finding.expected for finding in found)


def test_every_finding_of_the_page_is_fired() -> None:
    assert {*CASES} | ELSEWHERE_TESTED == {*DESCRIBED}
    assert sorted(DESCRIBED_CHECKS) == sorted(check.id for check in CHECKS)


def right(make: Make) -> Context:
    """A Spark on which nothing is wrong."""
    claim = {"patch": "fi/0001-a", "package": "flashinfer", "path": HOME, "state": "there"}
    document = {
        **recording("hook-pythonpath"), "gpus": with_gpu()["gpus"],
        "shared": [], "binaries": with_binaries()["binaries"],
        "folders": [*with_folder()["folders"], *with_folder(CACHE)["folders"]], "claimed": [claim],
        "locked": {"count": 2}, "protected": {"count": 1},
        "cuda": {**with_tool()["cuda"], "toolkit": {"version": "13.0.2"}},
    }  # fmt: skip
    document["distributions"].append(with_distribution("flashinfer-cubin", "0.5.3")["distributions"][-1])
    sets = ("gpu=auto", "cuda.arch_list=12.1a", *OWN, "services.dev.ports=['127.0.0.1:8000:8000']")
    return make(
        document, sets=sets, weights={"dev": ()}, differing=(), box=SPARK, running=programs(),
        own_changes={"dev": ()},
    )  # fmt: skip


# They have nothing to say where nothing is wrong; with `gpu: auto` an engine without GPUs is worth an INFO.
MUTE = {"container.others", "host.blocks", "host.gpu", "up.refused", "patches.mounted", "container.log"}


def test_every_check_is_silent_where_nothing_is_wrong(make: Make) -> None:
    found = {check.id: check(right(make)) for check in CHECKS}
    loud = {one.severity: (name, one) for name, some in found.items() for one in some if one.severity > Severity.INFO}
    assert loud == {}
    assert {name for name, some in found.items() if not any(one.severity is Severity.OK for one in some)} == MUTE
    assert DIGEST in found["image.render"][0].evidence.values()


SILENT: list[tuple[str, Callable[[Make], Context]]] = [
    ("host.kernel", given(box=replace(KHO, options=("quiet", "kho=off")))),
    ("packages.shared", given(with_two("b12x"), sets=PREFER)),
    ("cuda.driver", given(with_driver("580.95.05", "13.1.0", "/usr/local/cuda/compat/lib:/usr/lib"))),
    ("gpu.arch", given(H100, sets=("cuda.arch_list=9.0a",))),
    ("host.gpu", lambda make: replace(made := make(sets=("gpu=cdi",)), engine=made.engine and replace(
        made.engine, cdi_devices=("nvidia.com/gpu=all",)))),
    # vLLM wants setuptools below 81 to build; a new container would get it again.
    ("packages.locked", given(altered(locked=promised("2.9.1")), build_needs=frozenset({"torch"}))),
]  # fmt: skip


@pytest.mark.parametrize(("check", "context"), SILENT)
def test_what_looks_like_a_fault_and_is_none(make: Make, check: str, context: Callable[[Make], Context]) -> None:
    assert {finding.severity for finding in judged(check, context(make))} == {Severity.OK}


def test_the_real_gpu_machine(make: Make) -> None:
    """One H100 and a Triton with two ptxas: the old one needn't know Blackwell, the other one does."""
    context = make(H100, profile="prod", sets=("cuda.arch_list=12.1a 9.0a",))
    (compilers,) = judged("cuda.compilers", context)
    assert compilers.severity is Severity.OK
    assert compilers.title.startswith("Triton's ptxas, Triton's ptxas-blackwell, nvcc, ptxas: ")
    (versions,) = judged("cuda.versions", context)
    assert versions.title == "cuDNN 9.14.0"
    document = recording(H100)
    document["cuda"]["tools"] = document["cuda"]["tools"][:1]
    (found,) = judged("cuda.compilers", make(document, sets=("cuda.arch_list=12.1a",)))
    assert found.title == "Triton's ptxas doesn't know sm_121a" and found.remedy is not None
    assert found.remedy.text == "env: {triton: {TRITON_PTXAS_PATH: /usr/local/cuda/bin/ptxas}}"


def test_a_base_without_cuda_is_no_error_where_no_gpu_is(make: Make) -> None:
    """A stand-in or a plain Debian, on a laptop: the variables for Triton that envgen sets lead nowhere."""
    home = "/usr/local/cuda/bin/ptxas"
    document = with_tool(path=home, error="is missing", archs=[])
    (found,) = judged("cuda.compilers", make(document))
    assert (found.severity, found.seen) == (Severity.INFO, f"no {home}")
    document["gpus"] = with_gpu()["gpus"]
    assert [finding.case for finding in judged("cuda.compilers", make(document))] == ["broken"]
