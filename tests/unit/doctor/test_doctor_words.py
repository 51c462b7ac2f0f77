"""What findings say, and what to type: a row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from doctor_facts import (
    CACHE,
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

from envgen.doctor.checks import CHECKS
from envgen.doctor.model import Context
from envgen.doctor.programs import NAMES, Tried
from envgen.engine.box import Box
from envgen.engine.values import ContainerMount
from envgen.explain import classify
from envgen.serve.ended import Ended

Row = tuple[str, Callable[[Make], Context], str, str, str, str]  # check, context, severity, title, seen, remedy
BY_ID = {check.id: check for check in CHECKS}
ENDED = Ended(service="dev", container="lab-dev-1", at="2026-11-25T23:44:40.7Z", asked=False, exit_code=1)
DIED = container(state="exited", exit_code=1)
END = {DIED.id: replace(ENDED, cause="a port is taken")}
OTHER = container(id="2", name="lab-dev-2", state="exited", server=True)
AGAIN = replace(ENDED, runs=True, restarts=2, since="2026-11-25T23:45:00Z")
UNKNOWN = "Unknown vLLM environment variable detected: VLLM_USE_V1"
LOOPBACK = "services.serve.ports=['127.0.0.1:8000:8000']"
SHARED = ("gpu=required", "cuda.arch_list=12.1a")
EXEC, SITE = "envgen exec -p dev dev ", "/venv/wheel/lib/python3.11/site-packages"

OUTSIDE: list[Row] = [
    ("container.running", given(container=DIED, ended=END), "error",
     "dev ended by itself at 2026-11-25T23:44:40Z, with exit code 1", "exit code 1: a port is taken", "envgen up"),
    ("container.running", given(container=DIED), "error", "lab-dev-1 has exited", "exit code 1", "envgen up"),
    ("container.running", given(container=DIED, ended={DIED.id: replace(ENDED, exit_code=137, out_of_memory=True)}),
     "error", "dev was killed at 2026-11-25T23:44:40Z, because memory ran out", "exit code 137", ""),
    ("container.running", given(container=container(state="paused")), "error", "lab-dev-1 is paused", "docker pause",
     "docker unpause lab-dev-1"),
    ("container.running", given(container=None, is_temporary=True), "info", "checked in a temporary container", "", ""),
    ("container.others", given(others=(OTHER,), ended={"2": replace(ENDED, exit_code=2, cause="an unknown flag")}),
     "error", "dev ended by itself", "exit code 2: an unknown flag", "envgen up"),
    ("container.others", given(others=(OTHER,), ended={"2": replace(ENDED, asked=True)}), "info",
     "dev was stopped at 2026-11-25T23:44:40Z", "", ""),
    ("container.others", given(others=(replace(OTHER, state="paused"),)), "error", "lab-dev-2 is paused", "",
     "docker unpause lab-dev-2"),
    ("container.restart", given(container=container(restarts=2), ended={"c": AGAIN}), "warning",
     "dev was restarted 2 times by Docker, last at 2026-11-25T23:45:00Z", "", "envgen logs"),
    ("container.restart", given(container=container(restarts=5), ended={"c": AGAIN}), "error",
     "lab-dev-1 is in a restart loop", "started again 5 times", "envgen logs"),
    ("container.log", given(notices={"lab-dev-1": classify([UNKNOWN])}), "info",
     "lab-dev-1: a variable is set that this vLLM does not know", UNKNOWN, ""),
    ("container.settings", given(differing=("image: a is now b",)), "warning", "1 setting differs from the profile's",
     "image: a is now b", "envgen up -p dev dev --recreate"),
    ("host.exposure", given(profile="prod"), "warning", "no API key", "8000:8000",
     "services: {serve: {ports: ['127.0.0.1:8000:8000']}}"),
    ("host.exposure", given(profile="prod", sets=("secrets=[VLLM_API_KEY]",)), "ok", "from the network", "", ""),
    ("host.exposure", given(profile="prod", sets=(LOOPBACK,)), "ok", "this machine only", "", ""),
    ("image.exists", given(image=None), "error", "isn't built", "", "envgen build -p dev"),
    ("image.exists", given(image=None, is_unlocked=True), "error", "isn't built", "", "&& envgen build -p dev"),
    ("host.blocks", given(box=Box(killers={"earlyoom": 1 << 30}), sets=SHARED), "info", "earlyoom runs", "", ""),
    ("host.blocks", given(box=Box(memory={"SwapTotal": 1 << 34}), sets=SHARED), "info", "swap is on: 16.0 GiB", "", ""),
    ("python.start", given("hangs"), "error", "an import hook hangs",
     "sitecustomize.Hook hangs when asked for flashinfer (-c in /workspace)",
     "mv /faults/hangs/sitecustomize.py /faults/hangs/sitecustomize.py.off"),
]  # fmt: skip

# --- mounts -----------------------------------------------------------------------------------------------------------

PLACE = "/home/me/src/flashinfer"
BOUND = container(mounts=(ContainerMount(PLACE, PP, "bind"),))


def moved(root: str, inode: int, now: int | None) -> Callable[[Make], Context]:
    """``now``: the inode of the checkout's path on this machine; None: a remote engine."""
    inodes = {} if now is None else {"flashinfer": now}
    document = with_folder(root=root, inode=inode)
    return given(document, container=BOUND, checkouts={"flashinfer": PLACE}, inodes=inodes)


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
    ("mounts.sources", moved("/src/before", 6, 5), "error", "was moved or removed", "/src/before", "envgen restart"),
    ("mounts.sources", moved("/src/before", 6, 0), "error", "was moved or removed", "/src/before", "envgen restart"),
    ("mounts.caches", unwritable(1000, True), "error", "not writable", "65534",
     f"docker exec --user 0 lab-dev-dev-1 chown -R 1000:1000 {CACHE}"),
    ("mounts.caches", unwritable(1000, True, True), "error", "not writable", "", "sudo chown -R 1000:1000 /mine"),
    ("mounts.caches", unwritable(1000, False), "error", "not writable", "", "sudo chown -R 1000:1000 /mine"),
    ("mounts.caches", unwritable(1000, False, host=""), "error", "not writable", "", "envgen up -p dev dev"),
    ("mounts.caches", unwritable(0, True), "error", "not writable", "", "services: {dev: {user: host}}"),  # remapped
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
OLDER = "sources.flashinfer.origin.pypi=flashinfer-python==0.5.2"
OVERLAY = "/opt/envgen/env/lib/python3.12/site-packages"
OTHER_PYTHON = "services.dev.env={PATH: /other:/opt/envgen/bin:/bin, A: b}"
IMPORTS: list[Row] = [
    ("import.truth", given("hook"), "error", "flashinfer: the namespace-package trap: an empty package is imported",
     f"__file__ is None, __path__ = [{PP}]; with -c, -m in /workspace; decided by the current folder, which `-c` puts "
     "first on sys.path", f"python_path: [{PP}]"),
    # The container is older than the profile; the image is.
    ("import.truth", given("hook", python_path=PP), "error", "trap", "", "envgen up -p dev dev --recreate"),
    ("import.truth", given("hook", python_path=PP, digest="other"), "error", "trap", "", "envgen build -p dev"),
    ("import.truth", given("wheel"), "error", "an installed wheel", f"the entry {SITE} of sys.path", ""),
    ("import.truth", given("none"), "error", "can't be imported", "ModuleNotFoundError", ""),
    ("import.truth", given("leftovers"), "error", "leftovers", "",
     f"{EXEC}rm -r /venv/left/lib/python3.11/site-packages/flashinfer"),
    *(("import.truth", given({**recording("hook-pythonpath"), "imports": [
        {**cell, "origin": file, "entry": ""} for cell in recording("hook-pythonpath")["imports"][:1]]}), "error",
       "another file of the checkout", file, f"{EXEC}mv {file} {file}.off")
      for file in (f"{PP}/__init__.py", f"{PP}/build/lib/flashinfer/__init__.py")),
    ("import.truth", given(evil(starters=CUSTOMIZED), python_path=PP), "error", "another copy",
     "the entry /evil of sys.path, which /site/sitecustomize.py adds",
     f"{EXEC}mv /site/sitecustomize.py /site/sitecustomize.py.off"),
    *(("import.truth", given(evil(pth=pth(line)), python_path=PP), "error", "another copy", "which /site/evil.pth adds",
       f"{EXEC}mv /site/evil.pth /site/evil.pth.off")
      for line in ("import sys; sys.path.insert(0, '/evil')", "../evil")),
    ("import.truth", given(EDITABLE, python_path=PP), "error", "another copy", "the import hook",
     f"{EXEC}envgen-install flashinfer"),
    ("import.truth", given(evil(python_path="/evil", starters=starters(wrapper="/other/python3")), python_path=PP,
                           sets=[OTHER_PYTHON]), "error", "another copy",
     "the entry /evil of PYTHONPATH, which /other/python3 sets", "services: {dev: {env: {A: 'b'}}}"),
    # The profile's entries come before the image's: the line that adds the mount is the fix.
    ("import.truth", given(evil(python_path="/evil"), container=container(env={"PYTHONPATH": "/evil"})), "error",
     "another copy", "decided by the entry /evil of PYTHONPATH", f"python_path: [{PP}]"),
    # In the service's own folder another `working_dir` is enough; elsewhere the folder goes out of the way.
    ("import.truth", given(in_folder("/workspace"), profile="prod"), "error", "current folder", "", "working_dir: /"),
    ("import.truth", given(in_folder("/root"), profile="prod"), "error", "the current folder", "",
     "envgen exec -p prod serve mv /root/flashinfer /root/flashinfer.off"),
    # The right file is found in all of these: it is ok only where an import succeeds.
    ("import.truth", tried(file=HOME, seconds=2.0), "ok",
     f"flashinfer is {HOME} (imported in 2.0 s; found by 4 ways of starting Python in 4 folders)", "", ""),
    ("import.truth", tried(file=HOME, lacks=NAMES["flashinfer"][:1]), "ok", HOME, "", ""),  # a release may drop a name
    ("import.truth", tried(file=HOME, lacks=NAMES["flashinfer"]), "error", "not what was released",
     "without single_prefill", STASH),
    ("import.truth", tried(problem="SyntaxError: bad (__init__.py, line 3)"), "error", "fails", "line 3", STASH),
    ("import.truth", tried(problem="ModuleNotFoundError: No module named 'pynvml'"), "error", "fails", "pynvml",
     "sources: {flashinfer: {install: {dependencies: true}}}"),
    ("import.truth", tried(problem="RuntimeError: boom"), "error", "fails", "boom",
     f"{EXEC}python3 -c 'import flashinfer'"),
    ("import.truth", tried(file="/other.py"), "error", "gives another file", "/other.py",
     f"{EXEC}python3 -c 'import flashinfer; print(flashinfer)'"),
    ("import.truth", tried(untried="3.1 GiB of memory are available"), "info", "was not imported", "3.1 GiB", ""),
    ("import.truth", given("hook-pythonpath", tried={}), "info", "was not imported", "no container", ""),
    ("flashinfer.data", given("raw", mount="/raw/flashinfer"), "error", "sources for its JIT are missing",
     "/raw/flashinfer/flashinfer/data/csrc", "envgen exec -p dev dev envgen-install --force flashinfer"),
    ("import.scripts", given("hook"), "ok", "flashinfer", "", ""),
    ("flashinfer.data", given("moved", mount="/moved/flashinfer"), "error", "sources for its JIT are missing",
     "/moved/flashinfer/flashinfer/data/csrc -> ", "envgen exec -p dev dev envgen-install --force flashinfer"),
    ("import.scripts", given("mixed"), "error", "starts a Python that does not see what flashinfer needs",
     "/venv/mixed/bin/flashinfer starts /venv/wheel/bin/python", f"{EXEC}envgen-install"),
    ("import.metadata", given("hook"), "ok", "is installed", "", ""),
    ("import.metadata", given("moved", mount="/moved/flashinfer"), "error", "another folder",
     "editable, from /elsewhere/flashinfer", ""),
    ("import.metadata", given("raw", mount="/raw/flashinfer"), "warning", "flashinfer-python has no metadata", "", ""),
    # The code is the checkout's only as long as PYTHONPATH is; nothing is installed in a temporary container.
    ("import.metadata", given("wheel-pythonpath"), "error", "as a wheel, beside the mounted checkout", "",
     f"{EXEC}envgen-install flashinfer"),
    ("import.metadata", given("wheel-pythonpath", is_temporary=True), "info", "beside the mounted checkout", "", ""),
    ("import.metadata", given("prod-wheel", profile="prod", sets=[OLDER]),
     "error", "flashinfer-python 0.5.3 is installed, not flashinfer-python==0.5.2", "",
     "envgen up -p prod serve --recreate"),
    # In the image's site-packages a new container is enough; in the overlay, which outlives it, they are removed.
    ("packages.locked", given(installed("/usr/lib/python3/dist-packages", "locked", "prod-wheel"), profile="prod"),
     "error", "1 of 2 locked packages", "numpy 1.26.4", "envgen up -p prod serve --recreate"),
    ("packages.locked", given(installed(OVERLAY, "protected", "hook")), "error",
     "numpy", "", f"{EXEC}pip uninstall -y numpy"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "context", "severity", "title", "seen", "remedy"), [*OUTSIDE, *MOUNTS, *IMPORTS])
def test_what_it_says(
    make: Make, check: str, context: Callable[[Make], Context], severity: str, title: str, seen: str, remedy: str
) -> None:
    """One of its findings has this severity, title and evidence; its fix ends or begins so."""
    found = BY_ID[check](context(make))
    texts = [(one.severity.word, one.title, one.seen, one.remedy.text if one.remedy else "") for one in found]
    assert any(
        (level == severity and title in said and seen in why and (fix.endswith(remedy) or fix.startswith(remedy)))
        for level, said, why, fix in texts
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
    ("hangs", "dev", ["failed"]),
    (WITH_SRC, "dev", [""]),
    ("prod-wheel", "prod", ["", "missing"]),  # no vllm there
    (with_cells("prod-wheel", origin=HOME), "prod", ["from-mount", "missing"]),
    (with_cells("prod-wheel", origin="/x/flashinfer/__init__.py", entry=""), "prod", ["from-folder", "missing"]),
    (with_cells("prod-wheel", origin="/x/flashinfer/__init__.py", entry=None), "prod", ["from-elsewhere", "missing"]),
    (with_cells("prod-wheel", origin=f"{ELSEWHERE}/flashinfer/__init__.py", entry=SITE), "prod",
     ["from-elsewhere", "missing"]),
]  # fmt: skip


@pytest.mark.parametrize(("document", "profile", "cases"), CASES_OF)
def test_each_way_of_installing(make: Make, document: str | dict[str, Any], profile: str, cases: list[str]) -> None:
    assert [found.case for found in BY_ID["import.truth"](make(document, profile=profile))] == cases
