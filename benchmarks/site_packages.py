"""CPU seconds of the programs that run in images and containers, in a large Python environment.

usage: python benchmarks/site_packages.py [REF]

Lays out an environment with 300 distributions and 24,000 modules, FlashInfer's sources among them,
and a cache of 150 JIT modules; each program runs in it as it does in an image, but for uv, which
installs nothing. With REF, a commit of this repository, its programs run in turn with the present
ones, and the table has the ratio. Nothing is judged. Needs no Docker.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
DISTRIBUTIONS, MODULES, JIT = 300, 80, 150
# What programs are asked with: the packages of a profile, and the arch of its kernels.
PACKAGES = [
    {"package": name, "distribution": name, "mount": f"/nosuch/{name}", "source": name}
    for name in ("lib_7", "flashinfer")
]
PATCH = "--- a/lib_7/f{0}.py\n+++ b/lib_7/f{0}.py\n@@ -1 +1 @@\n-X = 7\n+X = 8\n"


def hashed(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def lay(site: Path, name: str, number: int, files: dict[str, str]) -> None:
    """A distribution as an installer leaves it, with a METADATA of usual length."""
    info = site / f"{name}-1.{number}.dist-info"
    info.mkdir()
    needs = "".join(f"Requires-Dist: lib-{other}>=1\n" for other in range(number % 20))
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.{number}\n{needs}"
    (info / "METADATA").write_text(head + "\n" + "A line of a long description.\n" * 700)
    rows = [f"{path},sha256={hashed(text)},{len(text)}" for path, text in files.items()]
    (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,"]) + "\n")
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)


def lay_cache(ops: Path, package: Path) -> None:
    """JIT modules of FlashInfer's, each with its recipe and 40 headers of the package."""
    for number in range(JIT):
        name = f"batch_decode_{number}"
        folder = ops / name
        folder.mkdir(parents=True)
        source = package / "data/csrc/k0.cu"
        rule = "rule cuda_compile\n  command = nvcc $in -o $out\n  depfile = $out.d\n"
        flags = f"common_cflags = -I{package}/data/include -I{package}/data/cutlass\n"
        build = f"build {folder}/a.cuda.o: cuda_compile {source}\nbuild {name}/{name}.so: link {folder}/a.cuda.o\n"
        (folder / "build.ninja").write_text(f"name = {name}\n{flags}{rule}{build}")
        headers = " ".join(f"{package}/data/include/h{each}.cuh" for each in range(40))
        (folder / "a.cuda.o.d").write_text(f"a.cuda.o: {source} {headers}\n")
        for file in ("a.cuda.o", f"{name}.so"):
            (folder / file).write_bytes(b"x")


@contextmanager
def laboratory() -> Iterator[Path]:
    """The environment: ``venv``, ``cache``, ``patches`` and a uv that does nothing."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        subprocess.run([sys.executable, "-m", "venv", str(top / "venv")], check=True)
        (site,) = top.glob("venv/lib/*/site-packages")
        for number in range(DISTRIBUTIONS):
            count = 3000 if number == 7 else MODULES  # one is as large as vLLM
            files = {f"lib_{number}/f{each}.py": f"X = {number}\n" for each in range(count)}
            lay(site, f"lib_{number}", number, {**files, f"lib_{number}/__init__.py": ""})
        files = {
            f"flashinfer/jit/g{each}.py": f'gen_jit_spec("m_{each}")\n' * 1000 for each in range(60)
        }
        files.update({f"flashinfer/data/csrc/k{each}.cu": "//\n" for each in range(200)})
        files.update({f"flashinfer/data/include/h{each}.cuh": "//\n" for each in range(200)})
        files.update({f"flashinfer/m{each}.py": "X = 1\n" * 500 for each in range(300)})
        files["flashinfer/__init__.py"] = ""
        files["flashinfer/_build_meta.py"] = '__version__ = "0.7.2"\n'
        lay(site, "flashinfer", 0, files)
        lay_cache(top / "cache/.cache/flashinfer/0.7.2/121a/cached_ops", site / "flashinfer")
        for each in range(20):  # older than the generators, so each may concern each
            os.utime(site / f"flashinfer/jit/g{each}.py")
        (top / "uv").write_text("#!/bin/sh\n")
        (top / "uv").chmod(0o755)
        (top / "patches").mkdir()
        for number in range(20):
            (top / f"patches/{number:04d}.patch").write_text(PATCH.format(number))
        yield top


def unpack(ref: str, folder: Path) -> Path:
    """The programs of a commit, or the present ones."""
    if not ref:
        for name in ("docker", "envgen"):
            shutil.copytree(TOP / name, folder / name)
        return folder
    command = ["git", "-C", str(TOP), "archive", ref, "docker", "envgen"]
    done = subprocess.run(command, check=True, capture_output=True)
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder)
    return folder


def script(lab: Path, programs: Path, path: str) -> list[str]:
    """A program of an image, with its folders in the laboratory."""
    home = lab / f"home-{programs.name}"
    home.mkdir(exist_ok=True)
    text = (programs / "docker" / path).read_text()
    text = text.replace("/opt/envgen/bin/uv", str(lab / "uv")).replace("/opt/envgen", str(home))
    copy = home / Path(path).name
    copy.write_text(text)
    return [str(lab / "venv/bin/python"), str(copy)]


def patched(lab: Path, programs: Path) -> list[str]:
    """apply-patches, for twenty patches of an installed package."""
    for number in range(20):
        (file,) = lab.glob(f"venv/lib/*/site-packages/lib_7/f{number}.py")
        file.write_text("X = 7\n")
    patches = sorted(map(str, (lab / "patches").iterdir()))
    return [*script(lab, programs, "build/apply-patches"), "--installed", "lib_7", *patches]


def asked(entry: str, request: dict[str, object]) -> Callable[[Path, Path], list[str]]:
    """A program of envgen/inside, called in the laboratory's Python."""

    def command(lab: Path, programs: Path) -> list[str]:
        text = json.dumps(request).replace("{lab}", str(lab))
        start = f"import json, sys; sys.path.insert(0, {str(programs)!r}); "
        call = f"from envgen.inside.{entry} import answer; print(answer(json.loads({text!r})))"
        return [str(lab / "venv/bin/python"), "-c", start + call]

    return command


def stand_ins(lab: Path, programs: Path) -> list[str]:
    """What `envgen lock` does in a base image before it asks uv."""
    start = f"import sys, tempfile; sys.path.insert(0, {str(programs)!r}); "
    call = "from envgen.inside import resolve as r; r.stand_ins(tempfile.mkdtemp(), r.installed())"
    return [str(lab / "venv/bin/python"), "-c", start + call]


PROGRAMS: dict[str, Callable[[Path, Path], list[str]]] = {
    "pip-install": lambda lab, at: [*script(lab, at, "runtime/lib/pip-install"), "--", "lib_7"],
    "protect record": lambda lab, at: [
        *script(lab, at, "build/protect"),
        *("record", "lib-7", "lib-8"),
    ],
    "apply-patches, 20 patches": patched,
    "doctor's facts": asked("probe.facts", {"packages": PACKAGES, "folders": ["/tmp"]}),
    "record of a run": asked("inventory", {}),
    "lock: what is there": stand_ins,
    "cache list": asked("jit.main", {"operation": "list", "root": "{lab}/cache/.cache/flashinfer"}),
}


def cpu(command: list[str], lab: Path) -> float:
    """CPU seconds of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "FLASHINFER_WORKSPACE_BASE": str(lab / "cache"), "PIP_NO_INDEX": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command}: {done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(ref: str = "") -> None:
    """Print a Markdown table."""
    with laboratory() as lab:
        for name in ("now", "then"):
            (lab / name).mkdir()
        now = unpack("", lab / "now")
        then = unpack(ref, lab / "then") if ref else None
        print("| program | CPU seconds | before | ratio |\n| --- | ---: | ---: | ---: |")
        for name, command in PROGRAMS.items():
            seconds = min(cpu(command(lab, now), lab) for _ in range(3))
            row = f"| {name} | {seconds:.2f} |"
            if then is not None:
                before = min(cpu(command(lab, then), lab) for _ in range(2))
                row += f" {before:.2f} | {before / seconds:.1f} |"
            print(row, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
