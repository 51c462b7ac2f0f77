"""The findings that only special hardware shows, from recorded documents; and that no finding is without a test.

tests/engine/doctor_cases.py says which scenario fires each of the others on a real container.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from doctor_facts import CONTAINER, Make, recording
from doctor_page import CHECKS as DESCRIBED_CHECKS
from doctor_page import DESCRIBED

from envgen.doctor.around import Foreign, Host
from envgen.doctor.checks import CHECKS
from envgen.doctor.model import Context, Finding, Severity
from envgen.doctor.programs import Tried
from envgen.engine.box import Box, BoxGpu, GpuProcess

sys.path.append(str(Path(__file__).parents[2] / "engine"))
from doctor_cases import (  # type: ignore[import-not-found,unused-ignore]
    FIRES,
    MUTE,
    SILENT,
)

GIB = 1 << 30
# Findings that need hardware, or a machine that a test can't make. CASES fires each of them
# from a recorded or altered document of the probe; the text says what is missing.
RECORDED = {
    ("patches.mounted", "lacks"): "a checkout beside a series: test_doctor_sources.py makes one",
    ("packages.shared", "other"): "nothing; that a build settles it is in test_image_scripts.py",
    ("packages.shared", "nobody"): "the same",
    ("import.scripts", "other-python"): "an image with two Pythons and no mounted source",
    ("import.truth", "gives-another"): "a package that replaces itself",
    ("packages.binaries", "gone"): "a wheel of many megabytes: scripts/build-prod --dev has one",
    ("packages.binaries", "others"): "the same",
    ("packages.binaries", "release"): "the same",
    ("packages.binaries", "csrc"): "the same",
    ("host.kernel", "kho"): "a DGX Spark after an update of its kernel",
    ("host.clocks", "latched"): "a GPU that is stuck",
    ("host.clocks", "throttled"): "a GPU that is hot or short of power",
    ("host.clocks", "hot"): "the same",
    ("host.events", "faults"): "a machine with a fault",
    ("host.holders", "orphan"): "a GPU",
    ("host.blocks", "killer"): "a machine with earlyoom, and one memory for all",
    ("host.plugins", "missing"): "a machine without the plug-ins, which lie in folders of the whole machine",
    ("host.plugins", "old"): "plug-ins from before 2024",
    ("host.disk", "full"): "a full disk",
    ("host.disk", "tight"): "a disk that is nearly full",
    ("host.memory", "limit"): "a server that needs more than a container's limit",
    ("host.memory", "shared-limit"): "a limit of the machine's own cgroups",
    ("compose.own", "broken"): "nothing; what a container then has is in tests/engine/test_own_compose.py",
    ("compose.own", "far"): "the same",
    ("host.owners", "of-root"): "a user who is not root: test_normal_user.py",
    ("gpu.arch", "other"): "a GPU; the document was recorded on one",
    ("cuda.driver", "old"): "a GPU with an older driver than its container's CUDA",
    ("flashinfer.set", "ignored"): "FlashInfer 0.7 beside companions of another version",
    ("memory.unified", "swapping"): "a machine that swaps",
    ("memory.unified", "taken"): "a machine whose memory is taken",
}

# Recorded in the lab of tests/engine, once: the recording, and the profile that it is judged by.
REPLAYED = {
    ("flashinfer.data", "dangling"): ("moved", "dev"),
    ("flashinfer.data", "raw-checkout"): ("raw", "dev"),
    ("image.render", "other-profile"): ("compat", "prod"),
    ("import.metadata", "none"): ("mixed", "dev"),
    ("import.metadata", "none-baked-in"): ("mixed", "prod"),
    ("import.metadata", "other-folder"): ("moved", "dev"),
    ("import.metadata", "other-version"): ("two", "prod"),
    ("import.metadata", "second"): ("gpu-h100", "dev"),
    ("import.metadata", "two-versions"): ("two", "dev"),
    ("import.scripts", "needed"): ("prod-wheel", "prod"),
    ("import.scripts", "not-installed"): ("gpu-h100", "dev"),
    ("import.scripts", "outside-overlay"): ("mixed", "dev"),
    ("import.truth", "failed"): ("hangs", "dev"),
    ("import.truth", "from-elsewhere"): ("gpu-h100", "prod"),
    ("import.truth", "from-folder"): ("compat", "prod"),
    ("import.truth", "from-mount"): ("compat", "prod"),
    ("import.truth", "leftovers"): ("leftovers", "dev"),
    ("import.truth", "missing"): ("mixed", "dev"),
    ("import.truth", "other-copy"): ("gpu-h100", "dev"),
    ("import.truth", "wheel"): ("mixed", "dev"),
    ("tiktoken.files", "unused"): ("compat", "dev"),
}
RECORDED |= dict.fromkeys(REPLAYED, "nothing: its recording shows it")

# The same for checks that only such a machine can show silent.
RECORDED_SILENT = {"compose.own": "nothing", "packages.shared": "nothing",
                   "import.truth": "all that FlashInfer imports",
                   "host.kernel": "any kernel but that one", "host.clocks": "a GPU",
                   "host.disk": "a disk with 30 GiB free", "gpu.arch": "a GPU; the document was recorded on one",
                   "cuda.driver": "a GPU",
                   "packages.binaries": "a wheel of many megabytes: scripts/build-prod --dev"}  # fmt: skip
BY_ID = {check.id: check for check in CHECKS}


def with_system(**facts: int) -> dict[str, Any]:
    """A GB10's memory in GiB, as its kernel tells it: 120 for programs and GPU together."""
    document = recording("hook")
    document["gpus"] = [{"name": "NVIDIA GB10", "capability": "12.1", "driver": "580.95.05", "memory": 0}]
    base = {
        "MemTotal": 120 * GIB,
        "MemFree": 110 * GIB,
        "MemAvailable": 115 * GIB,
        "SwapTotal": 16 * GIB,
        "SwapFree": 16 * GIB,
    }
    document["system"].update(base | facts)
    return document


def with_script(name: str, interpreter: str) -> dict[str, Any]:
    """A console script of another Python."""
    document = recording("prod-wheel")
    script = {"name": name, "package": name, "path": f"/usr/local/bin/{name}", "interpreter": interpreter}
    return {**document, "scripts": [{**script, "flags": [], "same": False}]}


SHARE = ("services.dev.args={gpu-memory-utilization: 0.7}",)
H100 = "gpu-h100"
CASES: dict[tuple[str, str], Callable[[Make], Context]] = {
    ("host.plugins", "missing"): lambda make: make(host=Host(buildx=None, compose="2.40.3")),
    ("host.plugins", "old"): lambda make: make(host=Host(buildx="0.29.1", compose="2.17.2")),
    ("host.disk", "full"): lambda make: make(host=Host(disk_path="/d", disk_free=GIB)),
    ("host.disk", "tight"): lambda make: make(host=Host(disk_path="/d", disk_free=9 * GIB)),
    ("host.owners", "of-root"): lambda make: make(foreign=(Foreign("lib", "/lib", 4, ("/lib/a", "/lib/b", "/lib/c")),)),
    ("import.scripts", "other-python"): lambda make: make(with_script("vllm", "/usr/bin/python3.12"), profile="prod"),
    ("import.truth", "gives-another"): lambda make: make("hook-pythonpath", tried={"flashinfer": Tried("/other.py")}),
    ("gpu.arch", "other"): lambda make: make(H100, sets=("cuda.arch_list=12.1a",)),
    ("memory.unified", "swapping"): lambda make: make(with_system(SwapFree=10)),
    ("memory.unified", "taken"): lambda make: make(with_system(MemAvailable=60, MemFree=50), sets=SHARE),
}


def with_driver(driver: str, toolkit: str, library_path: str = "") -> dict[str, Any]:
    """A GB10's driver and a container's CUDA."""
    document = with_system()
    document["gpus"][0]["driver"] = driver
    document.setdefault("cuda", {})["toolkit"] = {"version": toolkit, "path": "/usr/local/cuda/version.json"}
    document["environment"]["values"]["LD_LIBRARY_PATH"] = library_path
    return document


def with_companion(version: str) -> dict[str, Any]:
    """FlashInfer of one version beside the cubins of another."""
    document = recording("hook")
    document["roots"] = [{**root, "version": version} for root in document["roots"]]
    cubins = {
        "name": "flashinfer-cubin",
        "version": "0.6.13",
        "location": "/x",
        "metadata": "/x/y",
        "kind": "dist-info",
    }
    document["distributions"] = [*document["distributions"], cubins]
    return document


CASES[("cuda.driver", "old")] = lambda make: make(with_driver("580.95.05", "13.1.0"))
CASES[("flashinfer.set", "ignored")] = lambda make: make(with_companion("0.7.2"))


def with_binaries(**facts: object) -> dict[str, Any]:
    """A checkout with the compiled modules of a wheel."""
    one = {
        "source": "flashinfer",
        "package": "flashinfer",
        "mount": "/workspace/flashinfer",
        "wheel": "flashinfer_python-0.7.0.post1-py3-none-any.whl",
        "noted": True,
        "modules": ["flashinfer/_C.abi3.so"],
        "tag": "v0.7.0.post1",
        "compiled": "same",
    }
    return {**recording("hook"), "binaries": [{**one, **facts}]}


# A DGX Spark as public dumps show it; no GB10 was at hand. Bytes, watts, MHz.
SPARK = Box(
    kernel="6.17.0-1032-nvidia",
    memory={"MemTotal": 127611904 << 10, "MemFree": 100 * GIB, "CmaFree": 0},
    large=0.97,
    gpus=(BoxGpu("NVIDIA GB10", 4.4, 208, 3003, 38, 0),),
)
KHO = replace(SPARK, kernel="7.0.0-1019-nvidia", memory={**SPARK.memory, "CmaFree": 10171187200})
UNIFIED = ("gpu=required", "cuda.arch_list=12.1a", "services.dev.args.gpu-memory-utilization=0.90")
CASES[("host.kernel", "kho")] = lambda make: make(box=KHO)
CASES[("host.clocks", "latched")] = lambda make: make(
    box=replace(SPARK, gpus=(BoxGpu("NVIDIA GB10", 16.2, 806, 3003, 45, 96),))
)
CASES[("host.clocks", "throttled")] = lambda make: make(
    box=replace(SPARK, gpus=(BoxGpu("NVIDIA GB10", 80.0, 1800, 3003, 84, 97, ("software thermal",)),))
)
CASES[("host.clocks", "hot")] = lambda make: make(box=replace(SPARK, gpus=(BoxGpu("NVIDIA GB10", temperature=91),)))
OWN = ("compose=over.yaml",)
CASES[("compose.own", "broken")] = lambda make: make(own_trouble="Compose refuses it", sets=OWN)
CASES[("compose.own", "far")] = lambda make: make(own_changes={"dev": ("labels", "privileged")}, sets=OWN)
CASES[("host.events", "faults")] = lambda make: make(box=replace(SPARK, events=("NVRM: Xid (PCI:000f:01:00): 79, x",)))
CASES[("host.holders", "orphan")] = lambda make: make(
    box=replace(SPARK, processes=(GpuProcess(4711, "VLLM::EngineCore", False),))
)
CASES[("host.blocks", "killer")] = lambda make: make(box=replace(SPARK, killers={"earlyoom": 13 * GIB}), sets=UNIFIED)
NEEDY = ("services.dev.needs_memory=40GiB",)
CASES[("host.memory", "limit")] = lambda make: make(
    host=Host(), container=replace(CONTAINER, memory=16 * GIB), sets=NEEDY
)
CASES[("host.memory", "shared-limit")] = lambda make: make(host=Host(limits={"docker.slice": 16 * GIB}), sets=NEEDY)
CASES[("patches.mounted", "lacks")] = lambda make: make(
    unpatched={"flashinfer": ("0001-a.patch",)}, checkouts={"flashinfer": "/home/me/flashinfer"}
)
CASES[("packages.binaries", "gone")] = lambda make: make(with_binaries(gone=["flashinfer/_C.abi3.so"]))
CASES[("packages.binaries", "others")] = lambda make: make(with_binaries(others=["flashinfer/_old.abi3.so"]))
CASES[("packages.binaries", "release")] = lambda make: make(with_binaries(tag="v0.7.2"))
CASES[("packages.binaries", "csrc")] = lambda make: make(with_binaries(compiled="differs"))


def with_two(winner: str) -> dict[str, Any]:
    """FlashInfer's wheel has a module that b12x brings, too."""
    one = {"path": "/usr/lib/python3/dist-packages/b12x/__init__.py", "owners": ["b12x", "flashinfer-python"]}
    return {**recording("hook"), "shared": [{**one, "winner": winner}]}


PREFER = ("pip.prefer=[b12x]",)
CASES[("packages.shared", "other")] = lambda make: make(with_two("flashinfer-python"), sets=PREFER)
CASES[("packages.shared", "nobody")] = lambda make: make(with_two("b12x"))
for case, (name, profile) in REPLAYED.items():
    CASES[case] = partial(lambda name, profile, make: make(name, profile=profile), name, profile)
SILENT_CASES: dict[str, Callable[[Make], Context]] = {
    "packages.shared": lambda make: make(with_two("b12x"), sets=PREFER),
    "compose.own": lambda make: make(own_changes={"dev": ()}, sets=OWN),
    "import.truth": lambda make: make("hook-pythonpath"),
    "host.kernel": lambda make: make(box=replace(KHO, options=("quiet", "kho=off"))),
    "host.clocks": lambda make: make(box=SPARK),
    "host.disk": lambda make: make(host=Host(disk_path="/d", disk_free=99 * GIB)),
    "gpu.arch": lambda make: make(H100, sets=("cuda.arch_list=9.0a",)),
    "cuda.driver": lambda make: make(with_driver("580.95.05", "13.0.2")),
    "packages.binaries": lambda make: make(with_binaries()),
}


def test_what_the_build_of_a_checkout_asks_for_may_differ_from_the_lock(make: Make) -> None:
    """vLLM wants setuptools below 81 to build; a new container would get it again."""
    differ = [{"name": "setuptools", "promised": "84.2.1", "installed": "80.10.2"}]
    document = {**recording("hook"), "locked": {"count": 197, "differ": differ}}
    (found,) = judged("packages.locked", make(document))
    assert found.case == "differ"
    (found,) = judged("packages.locked", make(document, build_needs=frozenset({"setuptools"})))
    assert found.severity is Severity.OK


def judged(check: str, context: Context) -> list[Finding]:
    return BY_ID[check](context)


@pytest.mark.parametrize(("check", "case"), CASES)
def test_it_fires(make: Make, check: str, case: str) -> None:
    found = judged(check, CASES[check, case](make))
    assert case in [finding.case for finding in found]
    assert {finding.severity.word for finding in found if finding.case == case} == {DESCRIBED[check, case]}
    assert all(finding.remedy and finding.seen and finding.expected for finding in found if finding.case == case)


@pytest.mark.parametrize("check", SILENT_CASES)
def test_it_is_silent(make: Make, check: str) -> None:
    assert [finding.severity for finding in judged(check, SILENT_CASES[check](make))] == [Severity.OK]


def test_every_finding_has_a_test_that_fires_it() -> None:
    on_containers = {(check, case) for check, cases in FIRES.items() for case in cases}
    assert on_containers | set(RECORDED) == set(DESCRIBED)  # of docs/doctor.md
    assert set(CASES) == set(RECORDED)
    assert not on_containers & set(RECORDED)


def test_every_check_has_a_heading_of_its_own_in_the_page() -> None:
    assert sorted(DESCRIBED_CHECKS) == sorted(check.id for check in CHECKS)


def test_every_check_has_a_test_that_shows_it_silent() -> None:
    assert {*SILENT, *MUTE, *RECORDED_SILENT} == {check.id for check in CHECKS}
    assert set(SILENT_CASES) == set(RECORDED_SILENT)


def test_the_real_gpu_machine(make: Make) -> None:
    """One H100 and a Triton with two ptxas: the old one needn't know Blackwell, the other one does."""
    context = make(H100, profile="prod", sets=("cuda.arch_list=12.1a 9.0a",))
    (compilers,) = judged("cuda.compilers", context)
    assert compilers.severity is Severity.OK
    assert compilers.title.startswith("Triton's ptxas, Triton's ptxas-blackwell, nvcc, ptxas: ")
    (versions,) = judged("cuda.versions", context)
    assert versions.title == "cuDNN 9.14.0, torch 2.11.0+cu130"
    (gpu,) = judged("gpu.devices", make(H100, sets=("gpu=all",)))
    assert gpu.title == "the container sees /dev/nvidia0"
    (arch,) = judged("gpu.arch", make(H100, sets=("cuda.arch_list=9.0a",)))
    assert arch.title == "9.0a runs on NVIDIA H100 80GB HBM3 (9.0)"
    assert judged("memory.unified", make(H100, sets=("cuda.arch_list=12.1a",))) == []  # it has memory of its own


def test_a_triton_without_its_second_compiler(make: Make) -> None:
    document = recording(H100)
    document["cuda"]["tools"] = document["cuda"]["tools"][:1]
    (found,) = judged("cuda.compilers", make(document, sets=("cuda.arch_list=12.1a",)))
    assert found.title == "Triton's ptxas doesn't know sm_121a"
    assert found.remedy is not None
    assert found.remedy.text == "env: {triton: {TRITON_PTXAS_PATH: /usr/local/cuda/bin/ptxas}}"


def test_nothing_free_is_not_ok_for_a_vllm_that_names_no_share(make: Make) -> None:
    """Without the flag the installed release's own default counts; where that is not known, nothing is guessed."""
    vllm = ("services.dev.command=[vllm, serve, m]",)
    document = with_system(MemFree=0) | {"defaults": {"gpu_memory_utilization": 0.92}}
    (found,) = judged("memory.unified", make(document, sets=vllm))
    assert found.case == "page-cache" and "0.92 of 120 GiB" in found.seen
    (found,) = judged("memory.unified", make(with_system(MemFree=0), sets=vllm))
    assert found.severity is Severity.INFO
    (found,) = judged("memory.unified", make(with_system(MemFree=0), sets=("services.dev.command=[sleep, infinity]",)))
    assert found.severity is Severity.INFO
    (found,) = judged(
        "memory.unified", make(with_system(MemFree=112 * GIB) | {"defaults": document["defaults"]}, sets=vllm)
    )
    assert found.severity is Severity.OK


def test_a_compatibility_library_makes_up_for_an_old_driver(make: Make) -> None:
    (found,) = judged("cuda.driver", make(with_driver("580.95.05", "13.1.0", "/usr/local/cuda/compat/lib:/usr/lib")))
    assert found.severity is Severity.OK and "compatibility library" in found.title
    assert judged("cuda.driver", make(with_driver("580.95.05", "99.0"))) == []


def test_a_companion_of_another_version_is_removed_and_not_looked_for(make: Make) -> None:
    (found,) = [one for one in judged("flashinfer.set", make(with_companion("0.6.18"))) if one.case]
    assert found.case == "mismatch" and found.remedy is not None
    assert "uninstall -y flashinfer-cubin" in found.remedy.text


def test_without_a_gpu_its_memory_is_not_mentioned(make: Make) -> None:
    document = with_system(MemFree=0) | {"gpus": []}
    assert judged("memory.unified", make(document, sets=("services.dev.command=[sleep, infinity]",))) == []
    assert judged("memory.unified", make(document, sets=("gpu=none", "services.dev.command=[vllm, serve, m]"))) == []


def test_a_base_without_cuda_is_no_error_where_no_gpu_is(make: Make) -> None:
    """A stand-in or a plain Debian, on a laptop: the variables for Triton that envgen sets lead nowhere."""
    document = recording("hook")
    home = "/usr/local/cuda/bin/ptxas"
    names = ("TRITON_PTXAS_PATH", "x")
    broken: list[Any] = [{"name": name, "path": home, "archs": [], "error": "is missing"} for name in names]
    document["cuda"] = {"tools": broken}
    (found,) = judged("cuda.compilers", make(document))
    assert (found.severity, found.seen) == (Severity.INFO, f"no {home}")
    document["gpus"] = with_system()["gpus"]
    assert [one.case for one in judged("cuda.compilers", make(document))] == ["broken", "broken"]
