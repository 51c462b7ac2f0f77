"""Asks the packages themselves. Runs inside the container, Python 3.8 and later, standard library only.

Each question is answered in a child process of its own: an import may hang, print, exit or crash, and is then the
answer. The child writes its answer to a pipe of its own, so what packages print can't spoil it.

argv[1]: the request as JSON {"questions": {name: seconds}}; one JSON document on stdout. A child has --ask NAME FD.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Tuple

    Doc = Dict[str, Any]

KEPT = 8000  # bytes of what a child prints or answers
NO_GPU = "no GPU in this container"


def import_of(package: str) -> Doc:
    module = importlib.import_module(package)
    path = getattr(module, "__file__", None)
    version = str(getattr(module, "__version__", ""))
    return {"version": version, "file": path, "path": list(getattr(module, "__path__", []))}


def ask_vllm() -> Doc:
    return import_of("vllm")


def ask_flashinfer() -> Doc:
    return import_of("flashinfer")


def ask_fused_moe() -> Doc:
    """vllm/utils/flashinfer.py holds these since 0.11."""
    ours = importlib.import_module("vllm.utils.flashinfer")
    found = {}
    for name in ("has_flashinfer", "has_flashinfer_moe", "has_flashinfer_cutlass_fused_moe"):
        if hasattr(ours, name):
            found[name] = bool(getattr(ours, name)())
    return found


def ask_gpu() -> Doc:
    torch = importlib.import_module("torch")
    found: Doc = {"torch": torch.__version__, "cuda": torch.version.cuda, "available": bool(torch.cuda.is_available())}
    if found["available"]:
        found["count"] = torch.cuda.device_count()
        found["name"] = torch.cuda.get_device_name(0)
        found["capability"] = list(torch.cuda.get_device_capability(0))
        found["torch_archs"] = list(torch.cuda.get_arch_list())
        found["free"], found["total"] = torch.cuda.mem_get_info(0)
    return found


def ask_kernel() -> Doc:
    """Compile and run FlashInfer's smallest kernel in a cache of its own, and compare with torch."""
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return {"skipped": NO_GPU}
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        os.environ["FLASHINFER_WORKSPACE_BASE"] = folder  # else a compiled kernel of before would answer
        flashinfer = importlib.import_module("flashinfer")
        torch.manual_seed(0)
        x = torch.randn(4, 256, device="cuda", dtype=torch.float16)
        began = time.time()
        got = flashinfer.activation.silu_and_mul(x)
        torch.cuda.synchronize()
        seconds = time.time() - began
        wanted = torch.nn.functional.silu(x[:, :128].float()) * x[:, 128:].float()
        worst = float((got.float() - wanted).abs().max())
    return {"kernel": "silu_and_mul", "seconds": round(seconds, 1), "worst": worst, "right": worst < 0.02}


QUESTIONS: Dict[str, Callable[[], Doc]] = {
    "vllm": ask_vllm, "flashinfer": ask_flashinfer, "fused_moe": ask_fused_moe, "gpu": ask_gpu, "kernel": ask_kernel,
}  # fmt: skip


def answer(name: str, descriptor: int) -> None:
    """The child: one question, one JSON line to the pipe."""
    if sys.path and sys.path[0] == "":
        del sys.path[0]  # as a console script: not what happens to lie in the current folder
    began = time.time()
    try:
        said: Doc = {"answer": QUESTIONS[name]()}
    except BaseException as problem:  # SystemExit of an import too
        said = {"error": type(problem).__name__, "message": str(problem)[:1000]}
    said["seconds"] = round(time.time() - began, 2)
    os.write(descriptor, json.dumps(said, default=str).encode("utf-8", "replace"))
    os.close(descriptor)
    os._exit(0)  # no atexit handler of a package may hang


def start(name: str, text: str) -> Tuple[int, int, int]:
    """A child in a process group of its own: (pid, where its answer comes, where what it prints comes)."""
    said, answers = os.pipe()
    printed, prints = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(prints, 1)
            os.dup2(prints, 2)
            os.set_inheritable(answers, True)
            os.execv(sys.executable, [sys.executable, "-X", "faulthandler", "-c", text, "--ask", name, str(answers)])
        finally:
            os._exit(127)
    os.close(answers)
    os.close(prints)
    return pid, said, printed


def ended(pid: int) -> Optional[int]:
    """The exit code (negative: a signal) once it has ended."""
    done, status = os.waitpid(pid, os.WNOHANG)
    if done == 0:
        return None
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def ask(name: str, limit: float, text: str) -> Doc:
    """Ask in a child; what happens to it is the answer when it gives none."""
    began = time.time()
    pid, said, printed = start(name, text)
    kept = {said: b"", printed: b""}
    still = [said, printed]
    code = None
    while code is None and time.time() - began < limit:
        for ready in select.select(still, [], [], 0.05)[0]:
            piece = os.read(ready, 65536)
            if not piece:
                still.remove(ready)
            kept[ready] = (kept[ready] + piece)[-KEPT:]
        code = ended(pid)
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:  # the usual case: it has ended, and started no compilers that still run
        pass
    if code is None:
        os.waitpid(pid, 0)
    for ready in select.select(still, [], [], 0)[0]:
        kept[ready] = (kept[ready] + os.read(ready, 65536))[-KEPT:]
    os.close(said)
    os.close(printed)
    try:
        document: Doc = json.loads(kept[said].decode("utf-8"))
        return document
    except ValueError:
        pass
    found: Doc = {"seconds": round(time.time() - began, 2)}
    lines = kept[printed].decode("utf-8", "replace").strip().splitlines()
    # faulthandler names the fault first, and the stack after it.
    found["printed"] = lines[-8:] + [line for line in lines if line.startswith("Fatal Python error")][:1]
    if code is None:
        found["late"] = limit
    else:
        found["signal" if code < 0 else "code"] = abs(code)
    return found


def main(text: str) -> None:
    if sys.argv[1:2] == ["--ask"]:
        answer(sys.argv[2], int(sys.argv[3]))
    request = json.loads(sys.argv[1])
    found = {name: ask(name, limit, text) for name, limit in request["questions"].items() if name in QUESTIONS}
    sys.stdout.write("\n" + json.dumps({"deep": 1, "python": sys.version.split()[0], "answers": found}) + "\n")


if __name__ == "__main__":
    # The text that a child gets: this file, and its own source again.
    main("TEXT = %r\nexec(compile(TEXT, 'deep', 'exec'))\n" % globals().get("TEXT", ""))
