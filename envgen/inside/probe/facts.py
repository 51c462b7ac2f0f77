"""Runs inside the container: collects the doctor's evidence in one document.

A part that fails becomes an entry of ``errors``. Of its variables, only VARIABLES leave the
container.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, Callable

from envgen.inside.common import Doc, listing, normal, read_text, value_of
from envgen.inside.probe.imports import (
    base_path,
    call,
    entries,
    finder_name,
    imports,
    without_own_finder,
)
from envgen.inside.probe.origins import (
    claimed_patches,
    metadata_folders,
    origins,
    starters,
)

VARIABLES = ("PYTHONPATH",)
# The inputs of a locked build, and the packages of the base image that no installation may replace.
MANIFEST = "/opt/envgen/manifest.json"
PROTECTED = "/opt/envgen/protected.json"
MACHINES = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
STATE = "/opt/envgen/env/.envgen"  # of envgen-install
# The sources of vLLM's and FlashInfer's compiled modules.
COMPILED = ("csrc", "cmake", "CMakeLists.txt", "rust", "setup.py")
# Seconds for one program; what may take long has a limit of its own.
GIT_LIMIT = 3.0
TOOL_LIMIT = 2.0  # a compiler
GPU_LIMIT = 4.0  # nvidia-smi


def is_site(folder: str) -> bool:
    return os.path.basename(folder.rstrip("/")) in ("site-packages", "dist-packages")


# --- what is installed
# -----------------------------------------------------------------------------------------------


def pth_files(_request: Doc, document: Doc) -> list[Doc]:
    """The .pth files of every site folder, which add entries to sys.path or run Python."""
    files = []
    for site in filter(is_site, entries(document)):
        for name in listing(site):
            if not name.endswith(".pth"):
                continue
            path = f"{site}/{name}"
            lines = []
            for line in read_text(path).splitlines():
                if line.strip() and line[:1] != "#":
                    lines.append(line[:200])
            files.append({"path": path, "lines": lines[:20]})
    return files


def distributions(request: Doc, document: Doc) -> list[Doc]:
    """The installed distributions of the sources, in the order of sys.path: the first one wins."""
    wanted = {normal(package["distribution"]) for package in request.get("packages", [])}
    facts = []
    for entry, folder, name, version in metadata_folders(document):
        if name in wanted:
            path = f"{entry}/{folder}"
            fact = {"name": name, "version": version, "location": entry, "metadata": path}
            facts.append({**fact, **origin_of(path)})
    return facts


def origin_of(path: str) -> Doc:
    """Where a distribution was installed from; empty for one of an index."""
    record = read_text(f"{path}/direct_url.json")
    if not record:
        return {}
    direct = json.loads(record)
    url = direct.get("url", "")
    is_editable = bool(direct.get("dir_info", {}).get("editable"))
    return {"editable": is_editable, "url": "" if "@" in url else url}


# --- the packages themselves
# -----------------------------------------------------------------------------------------


def version_text(root: str) -> str | None:
    """The package's own version, from the file that its build writes; None without one."""
    texts = (read_text(f"{root}/{name}") for name in ("_build_meta.py", "_version.py"))
    return next(filter(None, (value_of("__version__", text) for text in texts)), None)


def data_entry(root: str, name: str) -> Doc:
    path = f"{root}/data/{name}"
    return {
        "path": path,
        "target": os.readlink(path) if os.path.islink(path) else "",
        "there": bool(listing(path)),
    }


def roots(request: Doc, document: Doc) -> list[Doc]:
    """Package folders: those that an import finds, and those in a mounted checkout."""
    facts = []
    for package in request.get("packages", []):
        folders = [
            os.path.dirname(cell["origin"])
            for cell in document.get("imports", [])
            if cell["package"] == package["package"] and cell["kind"] == "regular"
        ]
        folders.append(f"{package['mount']}/{package['package']}")
        for folder in sorted(set(folders)):
            if not os.path.isdir(folder):
                continue
            fact = {"package": package["package"], "root": folder, "version": version_text(folder)}
            fact["data"] = [data_entry(folder, name) for name in package.get("data", [])]
            aot = f"{folder}/data/aot"
            fact["aot"] = [
                name for name in listing(aot) if os.path.isfile(f"{aot}/{name}/{name}.so")
            ][:200]
            facts.append(fact)
    return facts


def binaries(request: Doc, _document: Doc) -> list[Doc]:
    """Checkouts with the compiled modules of a wheel, and whether the modules' sources are those of
    its release.
    """
    checkouts = []
    for package in request.get("packages", []):
        wheels = (
            [name for name in listing(package["wheel"]) if name.endswith(".whl")]
            if package.get("wheel")
            else []
        )
        if wheels and os.path.isfile(f"{STATE}/{package['source']}.binaries"):  # installed
            git = ["git", "--no-optional-locks", "-C", package["mount"]]
            _, failed = call(
                [*git, "diff", "--quiet", f"v{wheels[0].split('-')[1]}", "--", *COMPILED], GIT_LIMIT
            )
            # Any other status: there is no such tag.
            state = {"": "same", "ended with status 1": "differs"}.get(failed, "")
            checkouts.append({"source": package["source"], "wheel": wheels[0], "compiled": state})
    return checkouts


def variables(_request: Doc, _document: Doc) -> Doc:
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def mount_options() -> dict[str, tuple[bool, str]]:
    """mount point -> (read-only, path in its file system) of the topmost mount."""
    options: dict[str, tuple[bool, str]] = {}
    if not os.path.isfile("/proc/self/mountinfo"):
        return options
    for line in read_text("/proc/self/mountinfo", 1 << 20).splitlines():
        words = line.split(" ")
        place = words[4].replace("\\040", " ")
        root = words[3].replace("\\040", " ")
        options[place] = ("ro" in words[5].split(","), root)
    return options


def folders(request: Doc, _document: Doc) -> list[Doc]:
    """For each mount and cache: existence, mount, owner, access."""
    mounted = mount_options()
    facts = []
    for path in request.get("paths", []):
        fact = {"path": path, "exists": os.path.isdir(path), "mounted": path in mounted}
        if fact["mounted"]:
            fact["read_only"], fact["root"] = mounted[path]
        if fact["exists"]:
            stat = os.stat(path)
            fact["uid"] = stat.st_uid
            fact["gid"] = stat.st_gid
            fact["inode"] = stat.st_ino
            fact["mode"] = oct(stat.st_mode & 0o7777)
            fact["writable"] = os.access(path, os.W_OK)
        facts.append(fact)
    return facts


# --- records of the build
# ---------------------------------------------------------------------------------------------


def document_at(path: str) -> Doc:
    if not os.path.isfile(path):
        return {}
    with open(path, "rb") as file:
        document = json.loads(file.read(1 << 24).decode("utf-8", "replace"))
    return document if isinstance(document, dict) else {}


def compared(wanted: dict[str, str], document: Doc) -> Doc:
    """The number of promised packages, and those that are missing or have another version."""
    if not wanted:
        return {"count": 0, "differ": []}
    present: dict[str, Doc] = {}
    for entry, _, name, version in metadata_folders(document):
        present.setdefault(name, {"installed": version, "location": entry})
    differ = []
    for name, version in sorted(wanted.items()):
        there = present.get(name, {})
        if there.get("installed") != version:
            differ.append(dict(there, name=name, promised=version))
    return {"count": len(wanted), "differ": differ}


def locked_versions(_request: Doc, document: Doc) -> Doc:
    """The locked Python packages of this image, without those for builds."""
    head = f"{MACHINES.get(os.uname().machine, '')} pip "
    inputs = document_at(MANIFEST).get("inputs") or {}
    versions = {}
    for key, value in inputs.items():
        if not key.startswith(head):
            continue
        step, _, name = key[len(head) :].partition(" ")
        if name and " " not in name and step.startswith(("deps", "install.")):
            versions[name] = str(value)
    return compared(versions, document)


def protected_versions(_request: Doc, document: Doc) -> Doc:
    """The packages of the base image that must not change."""
    versions = {}
    for name, one in document_at(PROTECTED).items():
        if isinstance(one, dict):
            versions[name] = str(one.get("version", ""))
    return compared(versions, document)


# --- the machine and CUDA
# ---------------------------------------------------------------------------------------------


def system(_request: Doc, _document: Doc) -> Doc:
    """The user."""
    return {"uid": os.getuid(), "gid": os.getgid()}


def cuda_home() -> str:
    return os.environ.get("CUDA_HOME") or "/usr/local/cuda"


def triton_ptxas(document: Doc) -> list[tuple[str, str]]:
    """(name, path) of each ptxas that Triton may start: the variable's, else those in its package."""
    programs = []
    for variable, file in (
        ("TRITON_PTXAS_PATH", "ptxas"),
        ("TRITON_PTXAS_BLACKWELL_PATH", "ptxas-blackwell"),
    ):
        own = (f"{entry}/triton/backends/nvidia/bin/{file}" for entry in entries(document))
        if os.environ.get(variable):
            programs.append((variable, os.environ[variable]))
        else:
            there = [path for path in own if os.path.isfile(path)]
            programs += [(f"Triton's {file}", path) for path in there[:1]]
    return programs


def tool(name: str, path: str, question: str) -> Doc:
    """A compiler, and the architectures that it supports."""
    if not os.access(path, os.X_OK):
        return {
            "name": name,
            "path": path,
            "error": "can't be started" if os.path.exists(path) else "is missing",
        }
    output, why = call([path, question], TOOL_LIMIT)
    archs = sorted(set(re.findall(r"\bsm_[0-9]+[af]?\b", output)))
    return {"name": name, "path": path, "archs": archs, "error": why}


def cuda(_request: Doc, document: Doc) -> Doc:
    """The compilers of FlashInfer's and Triton's kernels."""
    tools = [tool(name, path, "--help") for name, path in triton_ptxas(document)]
    for name, question in (("nvcc", "--list-gpu-code"), ("ptxas", "--help")):
        path = f"{cuda_home()}/bin/{name}"
        if os.path.exists(path):
            tools.append(tool(name, path, question))
    return {"tools": tools}


# --- the GPU
# ---------------------------------------------------------------------------------------------------------


def gpus(_request: Doc, document: Doc) -> list[Doc]:
    """The GPUs of this container, by nvidia-smi; [] without a device."""
    if not any(name.startswith("nvidia") for name in listing("/dev")):
        return []
    words = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader,nounits"]
    output, why = call(words, GPU_LIMIT)
    if why:
        document["errors"].append({"part": "gpus", "error": f"nvidia-smi: {why}"})
    facts = []
    for line in output.splitlines():
        name, comma, capability = line.rpartition(",")
        if comma:
            facts.append({"name": name.strip(), "capability": capability.strip()})
    return facts


# --- the document
# ----------------------------------------------------------------------------------------------------

# Name in the document, and the function that fills it; in this order.
FACTS = (
    ("pth", pth_files),
    ("distributions", distributions),
    ("roots", roots),
    ("origins", origins),
    ("starters", starters),
    ("binaries", binaries),
    ("variables", variables),
    ("folders", folders),
    ("locked", locked_versions),
    ("protected", protected_versions),
    ("system", system),
    ("cuda", cuda),
    ("gpus", gpus),
    ("claimed", claimed_patches),
)


def run_part(name: str, part: Callable[[], Any], document: Doc) -> None:
    """Run one part; its exception becomes an entry of ``errors``."""
    try:
        part()
    except BaseException as error:  # also a hook's SystemExit
        document["errors"].append(
            {"part": name, "error": f"{type(error).__name__}: {str(error)[:300]}"}
        )


def answer(request: Doc) -> Doc:
    """Collect everything."""
    without_own_finder()
    home = os.path.expanduser("~")
    folders = [home if folder == "~" else folder for folder in request.get("folders", [])]
    request = dict(request, folders=list(dict.fromkeys(folders)))
    document: Doc = {"errors": []}
    document["python"] = {
        "version": sys.version,
        "executable": sys.executable,
        "path": base_path(),
        "meta_path": list(map(finder_name, sys.meta_path)),
    }
    run_part("imports", lambda: imports(request, document), document)
    for name, part in FACTS:
        run_part(name, lambda: document.update({name: part(request, document)}), document)  # noqa: B023 (called now)
    return document
