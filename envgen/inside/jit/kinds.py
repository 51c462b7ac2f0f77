"""Operation ``kinds``: the other caches of such a container. Where each is, what moves it, how large it is; and
clearing those that know their own entries by content.

Only entries that look like that cache's are ever removed: a variable may point anywhere, at a home folder too.
"""

from __future__ import annotations

import getpass
import os
import re
from typing import Any, Dict, Tuple

from envgen.inside.jit.fault import Fault
from envgen.inside.jit.procs import command, names_in, pids
from envgen.inside.jit.tree import GONE, TRASH, Measure, discard, kind_of, measure, measure_path, opened, reason

Place = Tuple[str, str]  # the path, and the variable that says so (empty: the default)


# kind -> (the variable that moves it, its default place)
KINDS: Dict[str, Tuple[str, str]] = {
    "vllm": ("VLLM_CACHE_ROOT", "{cache}/vllm"),
    "triton": ("TRITON_CACHE_DIR", "{home}/.triton/cache"),
    "inductor": ("TORCHINDUCTOR_CACHE_DIR", "{temporary}/torchinductor_{user}"),
    "torch-extensions": ("TORCH_EXTENSIONS_DIR", "{home}/.cache/torch_extensions"),
    "tvm-ffi": ("TVM_FFI_CACHE_DIR", "{home}/.cache/tvm-ffi"),
    "cute-dsl": ("CUTE_DSL_CACHE_DIR", "{temporary}/{user}/cutlass_python_cache"),
    "deep-gemm": ("DG_JIT_CACHE_DIR", "{cache}/vllm/deep_gemm"),
    "trtllm-deep-gemm": ("TRTLLM_DG_CACHE_DIR", "{home}/.tensorrt_llm"),
    "driver": ("CUDA_CACHE_PATH", "{home}/.nv/ComputeCache"),
}
# What the entries of a cache are called. Kinds whose names say nothing have none, and are only listed.
ENTRIES = {
    "vllm": "torch_compile_cache|torch_aot_compile|modelinfos",
    "triton": "[A-Z2-7]{52}|[0-9a-f]{64}",  # a SHA-256 in base 32, or in hexadecimal digits
    "inductor": "[a-z2-7]{2}|fxgraph|aotautograd|triton|locks",  # two letters of base 32, and the caches of graphs
}


def place_of(kind: str, environ: dict[str, str]) -> Place:
    """Where a kind is by these variables."""
    name, default = KINDS[kind]
    if environ.get(name):
        return environ[name], name
    if kind == "deep-gemm" and environ.get("VLLM_CACHE_ROOT"):
        return environ["VLLM_CACHE_ROOT"] + "/deep_gemm", "VLLM_CACHE_ROOT"
    home, xdg = environ.get("HOME") or os.path.expanduser("~"), environ.get("XDG_CACHE_HOME")
    temporary = next((environ[name] for name in ("TMPDIR", "TEMP", "TMP") if environ.get(name)), "/tmp")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    path = default.format(home=home, cache=xdg or home + "/.cache", temporary=temporary, user=user)
    return path, "XDG_CACHE_HOME" if xdg and "{cache}" in default else ""


def is_entry(kind: str, name: str) -> bool:
    """Does this name look like an entry of that cache?"""
    return kind in ENTRIES and re.fullmatch(ENTRIES[kind], name) is not None


def run(request: Dict[str, Any]) -> Dict[str, Any]:
    """Measure the wanted ``kinds`` (none: all). With ``clear`` remove their entries; ``dry_run``: say which."""
    environ: dict[str, str] = {**(request.get("environ") or {}), **os.environ}
    clearing = bool(request.get("clear"))
    found = []
    for kind in request.get("kinds") or KINDS:
        if kind not in KINDS:
            raise Fault("failed", "unknown kind " + repr(kind))
        if clearing and kind not in ENTRIES:
            raise Fault("refused", "the entries of " + kind + " look like other files, so it is only listed")
        found.append(_look(kind, environ))
    if clearing:
        users = _users([one["path"] for one in found if one["exists"]])
        if users:
            raise Fault("refused", "nothing was changed: " + "; ".join(users))
        for one in found:
            _clear(one, dry=bool(request.get("dry_run")))
    return {"kinds": found}


def _look(kind: str, environ: dict[str, str]) -> Dict[str, Any]:
    path, variable = place_of(kind, environ)
    one: Dict[str, Any] = {"kind": kind, "path": path, "variables": [KINDS[kind][0]], "moved_by": variable,
                           "exists": False, "bytes": 0, "files": 0, "modified": 0.0, "problem": "",
                           "entries": [], "others": [], "errors": []}  # fmt: skip
    try:
        with opened(os.path.realpath(path)) as fd:
            total = measure(fd, Measure())
    except OSError as error:
        if error.errno not in GONE:
            one["problem"] = reason(error)
        return one
    one.update(exists=True, bytes=total.bytes, files=total.files, modified=total.newest)
    if total.unread:
        one["problem"] = str(len(total.unread)) + " parts can't be read, the first: " + total.unread[0]
    return one


def _users(paths: list[str]) -> list[str]:
    """Processes that have a file below one of these paths open or mapped."""
    real = [os.path.realpath(path).rstrip("/") + "/" for path in paths]
    found = []
    for pid in pids():
        if pid != os.getpid() and any(path.startswith(head) for path in _files_of(pid) for head in real):
            found.append("pid " + str(pid) + " uses it: " + command(pid))
    return found


def _files_of(pid: int) -> list[str]:
    """What a process has open or mapped, as far as it can be seen."""
    base = "/proc/" + str(pid)
    used = []
    for number in names_in(base + "/fd"):
        try:
            used.append(os.readlink(base + "/fd/" + number))
        except OSError:
            continue  # closed meanwhile
    try:
        with open(base + "/maps", "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return used
    fields = [line.split(None, 5) for line in lines]
    return used + [os.fsdecode(words[5]) for words in fields if len(words) == 6]


def _clear(one: Dict[str, Any], *, dry: bool) -> None:
    """Remove the entries. What looks foreign stays, and is named."""
    if not one["exists"]:
        return
    try:
        with opened(os.path.realpath(one["path"])) as fd:
            names = sorted(name for name in os.listdir(fd) if not name.startswith(TRASH))
            entries = [name for name in names if is_entry(one["kind"], name) and kind_of(name, fd) == "folder"]
            one["others"] = [name for name in names if name not in entries][:20]
            measured = [measure_path(name, fd) for name in entries]
            one.update(entries=entries, bytes=sum(each.bytes for each in measured if each is not None))
            if not dry:
                discard(entries, fd, one["errors"])
    except OSError as error:
        one["errors"].append(reason(error))
