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
    HOME,
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

from envgen.bench.trace import RanBackend
from envgen.binding import bind
from envgen.doctor.checks import CHECKS
from envgen.doctor.checks.box import _state
from envgen.doctor.checks.packages import active_root
from envgen.doctor.checks.versions import numbers
from envgen.doctor.model import Context, Severity
from envgen.doctor.probed import Probe
from envgen.doctor.programs import Running, Tried
from envgen.engine.box import Box, BoxGpu
from envgen.engine.values import Container, ContainerMount
from envgen.errors import Problem
from envgen.inside.jit.shapes import Module, Reason
from envgen.serve.ended import Ended

GIB = 1 << 30
H100 = "gpu-h100"
BY_ID = {check.id: check for check in CHECKS}


# --- documents --------------------------------------------------------------------------------------------------------


def with_gpu() -> dict[str, Any]:
    return altered("hook", gpus=[{"name": "NVIDIA GB10", "capability": "12.1", "driver": "580.95.05"}])


def compiled(state: str = "fresh", **facts: Any) -> Module:
    """A module of FlashInfer's cache."""
    why = Reason("files", "1 file: has other bytes than when it was compiled", True, ["/p/a.cuh"], 0)
    return Module("0.7.2", "121a", "fused_moe_120", state=state, reasons=[why] * (state == "stale"), **facts)


def with_binaries(compiled: str) -> dict[str, Any]:
    """A checkout with the compiled modules of a wheel."""
    wheel = "flashinfer_python-0.7.0.post1-py3-none-any.whl"
    return altered("hook", binaries=[{"source": "flashinfer", "wheel": wheel, "compiled": compiled}])


def with_data(there: bool = False, **facts: Any) -> dict[str, Any]:
    """FlashInfer's folder in an image, with a part of what its JIT compiles."""
    data = [{"path": "/s/flashinfer/data/csrc", "there": there}]
    document = recording("prod-wheel")
    document["roots"] = [{**root, "data": data, **facts} for root in document["roots"]]
    return document


def with_tool(**facts: Any) -> dict[str, Any]:
    return altered(cuda={"tools": [{"name": "nvcc", "path": "/cuda/bin/nvcc", "archs": ["sm_121"], **facts}]})


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
    memory={"MemTotal": 127611904 << 10, "MemFree": 100 * GIB, "Cached": 20 * GIB, "CmaFree": 0},
    gpus=(BoxGpu("NVIDIA GB10", 4.4, 208, 3003, 38, 0),),
)
KHO = replace(SPARK, kernel="7.0.0-1019-nvidia", memory={**SPARK.memory, "CmaFree": 10171187200})
UNIFIED = ("gpu=required", "cuda.arch_list=12.1a", "services.dev.args.gpu-memory-utilization=0.90")
OLD = {"package": "flashinfer", "folder": "/opt/old/flashinfer", "file": "/opt/old/flashinfer/a.so"}
STALE = (Problem("the image x is not built", hint="envgen build -p dev"),)
EDITED = {"package": "flashinfer", "folder": f"{PP}/flashinfer", "file": "page.py", "changed": 1034.0}
ENDED = Ended(service="dev", container="lab-dev-1", at="2026-11-25T23:44:40.7Z", asked=False, exit_code=1)


def box(*gpus: BoxGpu, **more: Any) -> Callable[[Make], Context]:
    return lambda make: make(box=replace(SPARK, gpus=gpus or SPARK.gpus, **more), sets=UNIFIED)


Row = tuple[str, Callable[[Make], Context], str, str, str, str]  # check, context, case (or ok, info), title, seen, fix
# Cases of which nothing but the severity is compared.
CASES: dict[tuple[str, str], Callable[[Make], Context]] = {
    ("host.kernel", "kho"): given(box=KHO),
    ("host.clocks", "latched"): box(BoxGpu("NVIDIA GB10", 16.2, 806, 3003, 45, 96)),
    ("host.clocks", "throttled"): box(BoxGpu("NVIDIA GB10", 80.0, 1800, 3003, 84, 97, ("heat",))),
    ("host.memory", "driver"): box(memory={**SPARK.memory, "MemFree": 80 * GIB}),
    ("image.current", "outdated"): given(stale=STALE),
    ("image.current", "base"): given(stale=(), other_base="sha256:" + "a" * 64),
    ("patches.mounted", "lacks"): given(unpatched={"flashinfer": ("0001-a.patch",)}, checkouts={"flashinfer": "/me"}),
    ("container.running", "none"): given(container=None),
    ("container.running", "stopped"): given(
        container=container(state="exited"), ended={CONTAINER.id: replace(ENDED, asked=True)}
    ),
    ("container.running", "unhealthy"): given(container=container(health="unhealthy")),
    ("python.start", "no-document"): given(trouble="python3: not found"),
    ("python.start", "part"): given(altered(errors=[{"part": "locked", "error": "ValueError: x"}])),
    ("mounts.sources", "no-package"): given({**with_folder(), "roots": []}),
    ("mounts.sources", "owner"): given(with_folder(writable=False, uid=1000)),
    ("mounts.caches", "not-mounted"): given(with_folder(CACHE, mounted=False)),
    ("caches.stale", "guess"): given(modules=(compiled(state="stale", guess=True),)),
    ("import.truth", "shadowed"): given(with_cells(kind="module", origin="/w/flashinfer.py", entry="")),
    ("import.running", "other"): given(running=programs(process={"mapped": [OLD]})),
    ("import.running", "older"): given(running=programs(ages=[EDITED])),
    ("import.scripts", "needed"): given("prod-wheel", profile="prod"),
    ("import.scripts", "not-installed"): given(H100),
    ("import.metadata", "none-baked-in"): given("mixed", profile="prod"),
    ("packages.binaries", "csrc"): given(with_binaries("differs")),
    ("patches.claimed", "missing"): given(
        altered(claimed=[{"patch": "fi/0001-a", "package": "flashinfer", "path": HOME, "state": "changed"}])
    ),
    ("flashinfer.data", "unknown-version"): given(with_data(True, version="0.0.0+unknown"), profile="prod"),
    ("flashinfer.prebuilt", "masked"): given(
        with_cells(package="flashinfer_jit_cache", kind="regular", origin="/x/y.py")
    ),
    ("cuda.compilers", "arch"): given(with_tool(archs=["sm_90a"])),
    ("cuda.compilers", "broken"): given(with_tool(error="is missing")),
    ("gpu.arch", "other"): given(H100, sets=("cuda.arch_list=12.1a",)),
}
# A document without an engine has this finding before any check runs.
ELSEWHERE_TESTED = {("host.docker", "absent")}


def right(make: Make) -> Context:
    """A Spark on which nothing is wrong."""
    claim = {"patch": "fi/0001-a", "package": "flashinfer", "path": HOME, "state": "there"}
    document = {
        **recording("hook-pythonpath"), "gpus": with_gpu()["gpus"],
        "binaries": with_binaries("same")["binaries"],
        "folders": [*with_folder()["folders"], *with_folder(CACHE)["folders"]], "claimed": [claim],
        "locked": {"count": 2}, "protected": {"count": 1},
        "cuda": with_tool()["cuda"],
    }  # fmt: skip
    sets = ("gpu=auto", "cuda.arch_list=12.1a", "services.dev.ports=['127.0.0.1:8000:8000']")
    return make(
        document, sets=sets, differing=(), stale=(), box=SPARK, running=programs(),
        modules=(compiled(),),
    )  # fmt: skip


# They have nothing to say where nothing is wrong.
MUTE = {"container.changed", "patches.mounted", "container.kernels"}


def test_every_check_is_silent_where_nothing_is_wrong(make: Make) -> None:
    found = {check.id: check(right(make)) for check in CHECKS}
    loud = {one.severity: (name, one) for name, some in found.items() for one in some if one.severity > Severity.INFO}
    assert loud == {}
    assert {name for name, some in found.items() if not any(one.severity is Severity.OK for one in some)} == MUTE


SILENT: list[tuple[str, Callable[[Make], Context]]] = [
    ("host.kernel", given(box=replace(KHO, options=("quiet", "kho=off")))),
    ("gpu.arch", given(H100, sets=("cuda.arch_list=9.0a",))),
    # vLLM wants setuptools below 81 to build; a new container would get it again.
    ("packages.locked", given(altered(locked=promised("2.9.1")), build_needs=frozenset({"torch"}))),
]  # fmt: skip


def test_the_state_of_a_gpu() -> None:
    gpu = BoxGpu("NVIDIA GB10", power=20, clock=799, fastest=3003, load=96)
    assert _state(gpu) == "NVIDIA GB10: 20 W, 799 of 3003 MHz, 96 % busy"
    assert _state(BoxGpu("NVIDIA GB10")) == "NVIDIA GB10: no figures"


def test_the_numbers_of_a_version() -> None:
    assert [numbers(text) for text in ("9.15.1.9", "13.0rc1", "cu130", "")] == [(9, 15, 1, 9), (13, 0), (), ()]


def test_what_was_not_looked_at_is_not_called_well(make: Make) -> None:
    """No compiled kernel, and an image that is not locked."""
    assert BY_ID["caches.stale"](make("hook", modules=())) == []
    assert BY_ID["packages.locked"](make(altered(locked={"count": 0}, protected={"count": 0}))) == []


def test_the_folder_that_most_ways_of_starting_import(make: Make) -> None:
    probe = bind(Probe, recording("hook"))
    cell = next(one for one in probe.cells("flashinfer") if one.kind == "regular")
    root = next(one for one in probe.roots if one.package == "flashinfer")
    places = ("/z/f", "/a/f", "/m/f", "/a/f")
    cells = tuple(replace(cell, origin=f"{place}/__init__.py") for place in places)
    roots = tuple(replace(root, root=place) for place in places[:3])
    found = active_root(replace(probe, imports=cells, roots=roots), "flashinfer")
    assert found is not None and found.root == "/a/f"
    assert active_root(replace(probe, imports=()), "flashinfer") is None


@pytest.mark.parametrize(("check", "context"), SILENT)
def test_what_looks_like_a_fault_and_is_none(make: Make, check: str, context: Callable[[Make], Context]) -> None:
    assert {finding.severity for finding in BY_ID[check](context(make))} == {Severity.OK}


def test_the_real_gpu_machine(make: Make) -> None:
    """One H100 and a Triton with two ptxas: the old one needn't know Blackwell, the other one does."""
    context = make(H100, profile="prod", sets=("cuda.arch_list=12.1a 9.0a",))
    (compilers,) = BY_ID["cuda.compilers"](context)
    assert compilers.severity is Severity.OK
    assert compilers.title.startswith("Triton's ptxas, Triton's ptxas-blackwell, nvcc, ptxas: ")
    document = recording(H100)
    document["cuda"]["tools"] = document["cuda"]["tools"][:1]
    (found,) = BY_ID["cuda.compilers"](make(document, sets=("cuda.arch_list=12.1a",)))
    assert found.title == "Triton's ptxas doesn't know sm_121a" and found.remedy is not None
    assert found.remedy.text == "env: {TRITON_PTXAS_PATH: /usr/local/cuda/bin/ptxas}"


def test_a_base_without_cuda_is_no_error_where_no_gpu_is(make: Make) -> None:
    """A stand-in or a plain Debian, on a laptop: the variables for Triton that envgen sets lead nowhere."""
    home = "/usr/local/cuda/bin/ptxas"
    document = with_tool(name="TRITON_PTXAS_PATH", path=home, error="is missing", archs=[])
    (found,) = BY_ID["cuda.compilers"](make(document))
    assert (found.severity, found.seen) == (Severity.INFO, f"no {home}")
    document["gpus"] = with_gpu()["gpus"]
    assert [finding.case for finding in BY_ID["cuda.compilers"](make(document))] == ["broken"]
    another = with_tool(name="ptxas", path="/opt/triton/ptxas", error="is missing", archs=[])  # not of that toolkit
    assert [finding.case for finding in BY_ID["cuda.compilers"](make(another))] == ["broken"]


# --- what they say ---------------------------------------------------------------------------------------------------

DIED = container(state="exited", exit_code=1)
END = {DIED.id: replace(ENDED, cause="a port is taken")}
OTHER = container(id="2", name="lab-dev-2", state="exited", server=True)
AGAIN = replace(ENDED, runs=True, restarts=2, since="2026-11-25T23:45:00Z")
EXEC, SITE = "envgen exec -p dev dev ", "/venv/wheel/lib/python3.11/site-packages"

OUTSIDE: list[Row] = [
    ("container.running", given(container=DIED, ended=END), "ended",
     "dev ended by itself at 2026-11-25T23:44:40Z, with exit code 1", "exit code 1: a port is taken", "envgen up"),
    ("container.running", given(container=DIED), "ended", "lab-dev-1 has exited", "exit code 1", "envgen up"),
    ("container.running", given(container=DIED, ended={DIED.id: replace(ENDED, exit_code=137, out_of_memory=True)}),
     "ended", "dev was killed at 2026-11-25T23:44:40Z, because memory ran out", "exit code 137", ""),
    ("container.running", given(container=container(state="paused")), "paused", "lab-dev-1 is paused", "docker pause",
     "docker unpause lab-dev-1"),
    ("container.running", given(container=None, is_temporary=True), "info", "checked in a temporary container", "", ""),
    ("container.running", given(others=(OTHER,), ended={"2": replace(ENDED, exit_code=2, cause="an unknown flag")}),
     "ended", "dev ended by itself", "exit code 2: an unknown flag", "envgen up"),
    ("container.running", given(others=(OTHER,), ended={"2": replace(ENDED, asked=True)}), "info",
     "dev was stopped at 2026-11-25T23:44:40Z", "", ""),
    ("container.running", given(others=(replace(OTHER, state="paused"),)), "paused", "lab-dev-2 is paused", "",
     "docker unpause lab-dev-2"),
    ("container.restart", given(container=container(restarts=2), ended={"c": AGAIN}), "restarted",
     "dev was restarted 2 times by Docker, last at 2026-11-25T23:45:00Z", "", "envgen logs"),
    ("container.restart", given(container=container(restarts=3), ended={"c": AGAIN}), "looping",
     "lab-dev-1 is in a restart loop", "started again 3 times", "envgen logs"),
    ("gpu.arch", given(H100, sets=("cuda.arch_list=12.1a",)), "other", "kernels are not built for this GPU",
     "compute capability 9.0; cuda.arch_list: 12.1a", "cuda: {arch_list: 9.0a}"),
    ("container.changed", given(changes="since the start of 2026-11-12 10:00Z that worked: driver 580 → 590"), "info",
     "since the start of 2026-11-12 10:00Z that worked: driver 580 → 590", "", ""),
    ("container.kernels", given(ran=(RanBackend("Marlin", True, "MoE ran: Marlin"),)), "ok", "MoE ran: Marlin", "", ""),
    ("container.kernels", given(ran=(RanBackend("Marlin", False, "MoE ran: CUTLASS, not Marlin"),)), "other",
     "dev ran other kernels than its log names", "MoE ran: CUTLASS, not Marlin", "envgen trace -p dev dev"),
    ("container.settings", given(differing=("image: a is now b",)), "differ", "1 setting differs from the profile's",
     "image: a is now b", "envgen up -p dev dev --recreate"),
    ("image.current", given(image=None, stale=STALE), "missing", "is not built", "", "envgen build -p dev"),
]  # fmt: skip

# --- mounts -----------------------------------------------------------------------------------------------------------

PLACE = "/home/me/src/flashinfer"
BOUND = container(mounts=(ContainerMount(PLACE, PP, "bind"),))


def moved(root: str, inode: int, now: int | None, runs: Container = BOUND) -> Callable[[Make], Context]:
    """``now``: the inode of the checkout's path on this machine; None: a remote engine."""
    inodes = {} if now is None else {"flashinfer": now}
    document = with_folder(root=root, inode=inode)
    return given(document, container=runs, checkouts={"flashinfer": PLACE}, inodes=inodes)


def unwritable(uid: int, runs: bool, temporary: bool = False, host: str = "/mine") -> Callable[[Make], Context]:
    document = with_folder(CACHE, writable=False, uid=65534)
    document["system"] |= {"uid": uid, "gid": uid}
    running = container(name="lab-dev-dev-1") if runs else None
    sets = (f"caches.flashinfer.host={host}",) if host else ()
    return given(document, container=running, is_temporary=temporary, sets=sets)


MOUNTS: list[Row] = [
    ("mounts.sources", moved("/src/flashinfer", 5, 5), "ok", "flashinfer is mounted at", "", ""),
    ("mounts.sources", moved("/@src", 5, 5), "ok", "is mounted", "", ""),  # a subvolume, or a link on the way
    ("mounts.sources", moved("/src/flashinfer", 6, 5), "ok", "is mounted", "", ""),  # an engine in a VM
    ("mounts.sources", moved("/src/before", 6, None), "ok", "is mounted", "", ""),
    ("mounts.sources", moved("/src/before", 6, 5, container()), "ok", "is mounted", "", ""),  # not mounted by envgen
    ("mounts.sources", moved("/src/before", 6, 5), "moved", "was moved or removed", "/src/before", "envgen restart"),
    ("mounts.sources", moved("/src/before", 6, 0), "moved", "was moved or removed", "/src/before", "envgen restart"),
    ("caches.stale", given(modules=(compiled(state="stale"),) * 2), "stale", "2 compiled kernels are stale",
     "fused_moe_120, fused_moe_120; ", "envgen cache clear -p dev --stale"),
    ("caches.stale", given(modules=(compiled(state="stale", guess=True),) * 2), "guess",
     "2 compiled kernels are perhaps stale", "", "envgen cache list -p dev"),
    ("caches.stale", given(modules=(compiled(state="stale", guess=True),)), "guess",
     "the compiled kernel fused_moe_120 is perhaps stale", "", "envgen cache why -p dev fused_moe_120"),
    ("caches.stale", given(modules=(compiled(state="stale"), compiled())), "stale", "fused_moe_120", "/p/a.cuh",
     "envgen cache clear -p dev fused_moe_120"),
    ("caches.stale", given(modules=(compiled(state="stale"),) * 300), "stale", "300 compiled kernels are stale",
     "fused_moe_120, and 296 more; 1 file: ", "envgen cache clear -p dev --stale"),
    ("mounts.caches", unwritable(1000, True), "not-writable", "not writable", "65534",
     f"docker exec --user 0 lab-dev-dev-1 chown -R 1000:1000 {CACHE}"),
    ("mounts.caches", unwritable(1000, True, True), "not-writable", "", "", "sudo chown -R 1000:1000 /mine"),
    ("mounts.caches", unwritable(1000, False), "not-writable", "", "", "sudo chown -R 1000:1000 /mine"),
    ("mounts.caches", unwritable(1000, False, host=""), "not-writable", "", "", "envgen up -p dev dev"),
    ("mounts.caches", unwritable(0, True), "not-writable", "", "", "services: {dev: {user: host}}"),  # remapped
]  # fmt: skip

# --- imports ----------------------------------------------------------------------------------------------------------


def evil(path: tuple[str, ...] = ("/evil",), python_path: str = "", **parts: Any) -> dict[str, Any]:
    """Each way of starting Python finds another copy; ``path``: entries that come first on sys.path."""
    document = with_cells(origin="/evil/flashinfer/__init__.py", entry="/evil") | parts
    document["python"]["path"] = [*path, *document["python"]["path"]]
    document["variables"]["PYTHONPATH"] = python_path
    return document


def pth(line: str) -> list[dict[str, Any]]:
    return [{"path": "/site/evil.pth", "lines": [line]}]


def starters(**facts: Any) -> dict[str, Any]:
    return {**recording("hook-pythonpath")["starters"], **facts}


HOOK = "__editable___flashinfer_python_0_5_3_finder._EditableFinder"
EDITABLE = {**with_cells(origin="/evil/flashinfer/__init__.py", entry=None, finder=HOOK),
            "starters": starters(hooks={HOOK: "/site/__editable___flashinfer_python_0_5_3_finder.py"})}  # fmt: skip


def in_folder(folder: str) -> dict[str, Any]:
    """Production: one cell finds a folder of that name where it is started."""
    document = recording("prod-wheel")
    cell = next(cell for cell in document["imports"] if cell["package"] == "flashinfer")
    cell.update(origin=f"{folder}/flashinfer/__init__.py", entry="", folder=folder)
    return document


def installed(place: str, part: str, name: str) -> dict[str, Any]:
    differ = {"name": "numpy", "promised": "2.3.5", "installed": "1.26.4", "location": place}
    return altered(name, **{part: {"count": 2, "differ": [differ]}})


def tried(**given_: Any) -> Callable[[Make], Context]:
    checkouts = {"flashinfer": "/home/me/flashinfer"}
    return given("hook-pythonpath", tried={"flashinfer": Tried(**given_)}, checkouts=checkouts)


STASH = "git -C /home/me/flashinfer stash push -- flashinfer/__init__.py"
CUSTOMIZED = starters(customize={"sitecustomize": "/site/sitecustomize.py"})
OVERLAY = "/opt/envgen/env/lib/python3.12/site-packages"
IMPORTS: list[Row] = [
    ("import.truth", given("hook"), "trap", "flashinfer: the namespace-package trap: an empty package is imported",
     f"__file__ is None, __path__ = [{PP}]; with -c, -m in /workspace; decided by the current folder, which `-c` puts "
     "first on sys.path", f"python_path: [{PP}]"),
    # The container is older than the profile; the image is.
    ("import.truth", given("hook", python_path=PP), "trap", "trap", "", "envgen up -p dev dev --recreate"),
    ("import.truth", given("hook", python_path=PP, digest="other"), "trap", "trap", "", "envgen build -p dev"),
    ("import.truth", given("wheel"), "wheel", "an installed wheel", f"the entry {SITE} of sys.path", ""),
    ("import.truth", given("none"), "missing", "can't be imported", "ModuleNotFoundError", ""),
    ("import.truth", given("leftovers"), "leftovers", "leftovers", "",
     f"{EXEC}rm -r /venv/left/lib/python3.11/site-packages/flashinfer"),
    *(("import.truth", given({**recording("hook-pythonpath"), "imports": [
        {**cell, "origin": file, "entry": ""} for cell in recording("hook-pythonpath")["imports"][:1]]}), "other-file",
       "another file of the checkout", file, f"{EXEC}mv {file} {file}.off")
      for file in (f"{PP}/__init__.py", f"{PP}/build/lib/flashinfer/__init__.py")),
    ("import.truth", given(evil(starters=CUSTOMIZED), python_path=PP), "other-copy", "another copy",
     "the entry /evil of sys.path, which /site/sitecustomize.py adds",
     f"{EXEC}mv /site/sitecustomize.py /site/sitecustomize.py.off"),
    *(("import.truth", given(evil(pth=pth(line)), python_path=PP), "other-copy", "", "which /site/evil.pth adds",
       f"{EXEC}mv /site/evil.pth /site/evil.pth.off")
      for line in ("import sys; sys.path.insert(0, '/evil')", "../evil")),
    ("import.truth", given(EDITABLE, python_path=PP), "other-copy", "another copy", "the import hook",
     f"{EXEC}envgen-install flashinfer"),
    # The profile's entries come before the image's: the line that adds the mount is the fix.
    ("import.truth", given(evil(python_path="/evil"), container=container(env={"PYTHONPATH": "/evil"})), "other-copy",
     "another copy", "decided by the entry /evil of PYTHONPATH", f"python_path: [{PP}]"),
    # In the service's own folder another `working_dir` is enough; elsewhere the folder goes out of the way.
    ("import.truth", given(in_folder("/workspace"), profile="prod"), "from-folder", "", "", "working_dir: /"),
    ("import.truth", given(in_folder("/root"), profile="prod"), "from-folder", "the current folder", "",
     "envgen exec -p prod serve mv /root/flashinfer /root/flashinfer.off"),
    # The right file is found in all of these: it is ok only where an import succeeds.
    ("import.truth", tried(file=HOME, seconds=2.0), "ok",
     f"flashinfer is {HOME} (imported in 2.0 s; found by 4 ways of starting Python in 4 folders)", "", ""),
    ("import.truth", tried(problem="SyntaxError: bad (__init__.py, line 3)"), "fails", "fails", "line 3", STASH),
    ("import.truth", tried(problem="ModuleNotFoundError: No module named 'pynvml'"), "fails", "fails", "pynvml",
     "sources: {flashinfer: {install: {dependencies: true}}}"),
    ("import.truth", tried(problem="RuntimeError: boom"), "fails", "fails", "boom",
     f"{EXEC}python3 -c 'import flashinfer'"),
    ("import.truth", tried(file="/other.py"), "gives-another", "gives another file", "/other.py",
     f"{EXEC}python3 -c 'import flashinfer; print(flashinfer)'"),
    ("import.truth", tried(untried="3.1 GiB of memory are available"), "info", "was not imported", "3.1 GiB", ""),
    ("import.truth", given("hook-pythonpath", tried={}), "info", "was not imported", "no container", ""),
    ("flashinfer.data", given("raw", mount="/raw/flashinfer"), "missing", "sources for its JIT are missing",
     "/raw/flashinfer/flashinfer/data/csrc", "envgen exec -p dev dev envgen-install --force flashinfer"),
    ("flashinfer.data", given(with_data(True, version="0.0.0+unknown"), profile="prod"), "unknown-version",
     "as its version", "_build_meta.py says so", ""),
    ("flashinfer.data", given(with_data(True, version=None), profile="prod"), "unknown-version", "as its version",
     "_build_meta.py is missing", ""),
    ("import.scripts", given("hook"), "ok", "flashinfer", "", ""),
    ("flashinfer.data", given("moved", mount="/moved/flashinfer"), "missing", "sources for its JIT are missing",
     "/moved/flashinfer/flashinfer/data/csrc -> ", "envgen exec -p dev dev envgen-install --force flashinfer"),
    ("import.scripts", given("mixed"), "other-python", "starts a Python that does not see what flashinfer needs",
     "/venv/mixed/bin/flashinfer starts /venv/wheel/bin/python", f"{EXEC}envgen-install"),
    ("import.metadata", given("hook"), "ok", "is installed", "", ""),
    ("import.metadata", given("moved", mount="/moved/flashinfer"), "other-folder", "another folder",
     "editable, from /elsewhere/flashinfer", ""),
    ("import.metadata", given("raw", mount="/raw/flashinfer"), "none", "flashinfer-python has no metadata", "", ""),
    # The code is the checkout's only as long as PYTHONPATH is; nothing is installed in a temporary container.
    ("import.metadata", given("wheel-pythonpath"), "second", "as a wheel, beside the mounted checkout", "",
     f"{EXEC}envgen-install flashinfer"),
    ("import.metadata", given("wheel-pythonpath", is_temporary=True), "info", "beside the mounted checkout", "", ""),
    # In the image's site-packages a new container is enough; in the overlay, which outlives it, they are removed.
    ("packages.locked", given(installed("/usr/lib/python3/dist-packages", "locked", "prod-wheel"), profile="prod"),
     "differ", "1 of 2 locked packages", "numpy 1.26.4", "envgen up -p prod serve --recreate"),
    ("packages.locked", given(installed(OVERLAY, "protected", "hook")), "replaced",
     "numpy", "", f"{EXEC}pip uninstall -y numpy"),
]  # fmt: skip

ROWS: list[Row] = [(check, context, case, "", "", "") for (check, case), context in CASES.items()]
ROWS += [*OUTSIDE, *MOUNTS, *IMPORTS]


@pytest.mark.parametrize(("check", "context", "case", "title", "seen", "remedy"), ROWS)
def test_what_it_says(
    make: Make, check: str, context: Callable[[Make], Context], case: str, title: str, seen: str, remedy: str
) -> None:
    """The case has the severity of the page; one of it has this title and evidence, and its fix ends or begins so."""
    level = DESCRIBED.get((check, case), case)
    found = [one for one in BY_ID[check](context(make)) if case in (one.case, one.severity.word)]
    assert {one.severity.word for one in found} == {level}
    assert level in ("ok", "info") or all(one.remedy and one.seen and one.expected for one in found)
    texts = [(one.title, one.seen, one.remedy.text if one.remedy else "") for one in found]
    assert any(
        title in said and seen in why and (fix.endswith(remedy) or fix.startswith(remedy)) for said, why, fix in texts
    ), texts


ELSEWHERE = "/usr/lib/python3/dist-packages"
WITH_SRC = {
    **with_cells(origin=f"{PP}/src/flashinfer/__init__.py"),
    "origins": [{"package": "flashinfer", "home": f"{PP}/src/flashinfer/__init__.py"}],
}
# What the checks of imports find in a recording; and in production, which imports from a mount, the current folder,
# an import hook, and another site-packages than the one whose RECORD has the file.
CASES_OF: list[tuple[str | dict[str, Any], str, list[str]]] = [
    ("none", "dev", ["trap", "missing"]),
    ("none-pythonpath-parent", "dev", ["trap", "trap"]),
    ("wheel", "dev", ["wheel"]),
    ("wheel-pythonpath", "dev", [""]),
    ("hook", "dev", ["trap"]),
    ("hook-pythonpath", "dev", [""]),
    ("compat", "dev", [""]),
    ("leftovers", "dev", ["trap", "leftovers"]),
    ("leftovers-pythonpath", "dev", [""]),
    ("two", "dev", [""]),
    ("mixed", "dev", ["trap", "missing"]),
    (WITH_SRC, "dev", [""]),
    (with_cells("none", kind="error", error="a hook raises", finder=""), "dev", ["failed"]),
    ("prod-wheel", "prod", ["", "missing"]),  # no vllm there
    (with_cells("prod-wheel", origin=HOME), "prod", ["from-elsewhere", "missing"]),
    (with_cells("prod-wheel", origin="/x/flashinfer/__init__.py", entry=""), "prod", ["from-folder", "missing"]),
    (with_cells("prod-wheel", origin="/x/flashinfer/__init__.py", entry=None), "prod", ["from-elsewhere", "missing"]),
    (with_cells("prod-wheel", origin=f"{ELSEWHERE}/flashinfer/__init__.py", entry=SITE), "prod",
     ["from-elsewhere", "missing"]),
]  # fmt: skip


@pytest.mark.parametrize(("document", "profile", "cases"), CASES_OF)
def test_each_way_of_installing(make: Make, document: str | dict[str, Any], profile: str, cases: list[str]) -> None:
    found = BY_ID["import.truth"](make(document, profile=profile))
    assert [(one.case, one.severity.word) for one in found] == [(case, "error" if case else "ok") for case in cases]


def test_every_finding_of_the_page_is_fired() -> None:
    fired = {(check, case) for check, _, case, *_ in ROWS} | {
        ("import.truth", case) for *_, some in CASES_OF for case in some
    }
    assert {*DESCRIBED} <= fired | ELSEWHERE_TESTED
    assert sorted(DESCRIBED_CHECKS) == sorted(check.id for check in CHECKS)
