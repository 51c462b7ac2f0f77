"""Operation ``kinds``: the other caches of such a container. Where each is, what moves it, how large it is; and
clearing those that know their own entries by content.

Only entries that look like that cache's are ever removed: a variable may point anywhere, at a home folder too.
"""

from __future__ import annotations

import getpass
import os
from typing import Callable, Dict, Tuple

from envgen.inside.jit.fault import Fault
from envgen.inside.jit.procs import command, pids
from envgen.inside.jit.tree import FOLDER, GONE, Measure, kind_of, measure, measure_path, reason, remove

TRASH = ".envgen-trash-"
Place = Tuple[str, str]  # the path, and the variable that says so (empty: the default)


def _home(environ: dict[str, str]) -> str:
    return environ.get("HOME") or os.path.expanduser("~")


def _temporary(environ: dict[str, str]) -> str:
    return next((environ[name] for name in ("TMPDIR", "TEMP", "TMP") if environ.get(name)), "/tmp")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _vllm(environ: dict[str, str]) -> str:
    if environ.get("XDG_CACHE_HOME"):
        return environ["XDG_CACHE_HOME"] + "/vllm"
    return _home(environ) + "/.cache/vllm"


# kind -> (variables that move it, the first wins; its default place)
KINDS: Dict[str, Tuple[Tuple[str, ...], Callable[[Dict[str, str]], str]]] = {
    "vllm": (("VLLM_CACHE_ROOT",), _vllm),
    "triton": (("TRITON_CACHE_DIR",), lambda environ: _home(environ) + "/.triton/cache"),
    "inductor": (("TORCHINDUCTOR_CACHE_DIR",),
                 lambda environ: _temporary(environ) + "/torchinductor_" + _user()),
    "torch-extensions": (("TORCH_EXTENSIONS_DIR",), lambda environ: _home(environ) + "/.cache/torch_extensions"),
    "tvm-ffi": (("TVM_FFI_CACHE_DIR",), lambda environ: _home(environ) + "/.cache/tvm-ffi"),
    "cute-dsl": (("CUTE_DSL_CACHE_DIR",),
                 lambda environ: _temporary(environ) + "/" + _user() + "/cutlass_python_cache"),
    "deep-gemm": (("DG_JIT_CACHE_DIR",), lambda environ: _vllm(environ) + "/deep_gemm"),
    "trtllm-deep-gemm": (("TRTLLM_DG_CACHE_DIR",), lambda environ: _home(environ) + "/.tensorrt_llm"),
    "driver": (("CUDA_CACHE_PATH",), lambda environ: _home(environ) + "/.nv/ComputeCache"),
}  # fmt: skip


def place_of(kind: str, environ: dict[str, str]) -> Place:
    """Where a kind is by these variables."""
    variables, default = KINDS[kind]
    for name in variables:
        if environ.get(name):
            return environ[name], name
    if kind == "deep-gemm" and environ.get("VLLM_CACHE_ROOT"):
        return environ["VLLM_CACHE_ROOT"] + "/deep_gemm", "VLLM_CACHE_ROOT"
    if kind in ("vllm", "deep-gemm") and environ.get("XDG_CACHE_HOME"):
        return default(environ), "XDG_CACHE_HOME"
    return default(environ), ""


def is_entry(kind: str, name: str) -> bool:
    """Does this name look like an entry of that cache? Kinds whose names say nothing have none, and are only listed."""
    if kind == "vllm":
        return name in ("torch_compile_cache", "torch_aot_compile", "modelinfos")
    if kind == "triton":  # a SHA-256 in base 32, or in hexadecimal digits
        base32 = len(name) == 52 and all(c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567" for c in name)
        return base32 or (len(name) == 64 and all(c in "0123456789abcdef" for c in name))
    if kind == "inductor":  # two letters of base 32, and the caches of graphs
        two = len(name) == 2 and all(c in "abcdefghijklmnopqrstuvwxyz234567" for c in name)
        return two or name in ("fxgraph", "aotautograd", "triton", "locks")
    return False


CLEARABLE = ("vllm", "triton", "inductor")


def run(request: dict[str, object]) -> dict[str, object]:
    """Measure the wanted ``kinds`` (none: all). With ``clear`` remove their entries; ``dry_run``: say which."""
    given = request.get("environ")
    environ: dict[str, str] = {**(given if isinstance(given, dict) else {}), **os.environ}
    kinds = [str(kind) for kind in request.get("kinds") or KINDS]  # type: ignore[attr-defined]
    clearing = bool(request.get("clear"))
    found = []
    for kind in kinds:
        if kind not in KINDS:
            raise Fault("failed", "unknown kind " + repr(kind))
        if clearing and kind not in CLEARABLE:
            raise Fault("refused", "the entries of " + kind + " look like other files, so it is only listed")
        found.append(_look(kind, environ))
    if clearing:
        users = _users([str(one["path"]) for one in found if one["exists"]])
        if users:
            raise Fault("refused", "nothing was changed: " + "; ".join(users))
        for one in found:
            _clear(one, dry=bool(request.get("dry_run")))
    return {"kinds": found}


def _look(kind: str, environ: dict[str, str]) -> dict[str, object]:
    path, variable = place_of(kind, environ)
    one: dict[str, object] = {"kind": kind, "path": path, "variables": list(KINDS[kind][0]), "moved_by": variable,
                              "exists": False, "bytes": 0, "files": 0, "modified": 0.0, "problem": "",
                              "entries": [], "others": [], "errors": []}  # fmt: skip
    total = Measure()
    try:
        fd = os.open(os.path.realpath(path), FOLDER)
    except OSError as error:
        if error.errno not in GONE:
            one["problem"] = reason(error)
        return one
    try:
        measure(fd, total)
    finally:
        os.close(fd)
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
    try:
        numbers = os.listdir(base + "/fd")
    except OSError:
        numbers = []
    for number in numbers:
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


def _clear(one: dict[str, object], *, dry: bool) -> None:
    """Rename the entries into a trash folder beside them, then delete that. What looks foreign stays, and is named."""
    if not one["exists"]:
        return
    fd = os.open(os.path.realpath(str(one["path"])), FOLDER)
    errors: list[str] = []
    try:
        device = os.fstat(fd).st_dev
        names = sorted(os.listdir(fd))
        old = [name for name in names if name.startswith(TRASH)]
        entries = [name for name in names if is_entry(str(one["kind"]), name) and kind_of(name, fd) == "folder"]
        one["others"] = [name for name in names if name not in entries and name not in old][:20]
        freed = 0
        for name in entries:
            measured = measure_path(name, fd)
            freed += measured.bytes if measured else 0
        one.update(entries=entries, bytes=freed)
        if dry or not entries + old:
            return
        trash = TRASH + os.urandom(8).hex()
        os.mkdir(trash, 0o700, dir_fd=fd)
        inner = os.open(trash, FOLDER, dir_fd=fd)
        try:
            for name in entries:
                os.rename(name, name, src_dir_fd=fd, dst_dir_fd=inner)
        finally:
            os.close(inner)
        for name in [*old, trash]:
            remove(name, fd, device, errors, name)
    except OSError as error:
        errors.append(reason(error))
    finally:
        os.close(fd)
        one["errors"] = errors
