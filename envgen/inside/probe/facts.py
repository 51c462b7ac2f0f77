"""Runs INSIDE the container: the facts beside the imports: what is installed, variables, mounts, vocabularies.

Values of environment variables leave the container only where the name is on a list of harmless ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time

from envgen.inside.probe.basics import Doc, call, entries, listing, read_text

SAFE_PREFIXES = (
    "FLASHINFER_",
    "VLLM_",
    "TORCH_",
    "TRITON_",
    "TIKTOKEN_",
    "PYTHON",
    "NVCC_",
    "CCACHE_",
    "UV_",
    "OMP_",
    "ENVGEN_",
)
SAFE_NAMES = set(  # one word a name
    """NVIDIA_PYTORCH_VERSION PATH CUDA_HOME CUDA_VERSION CUDA_VISIBLE_DEVICES CUDA_CACHE_PATH NVIDIA_VISIBLE_DEVICES
    NVIDIA_DRIVER_CAPABILITIES MAX_JOBS HOME LANG LD_LIBRARY_PATH LIBRARY_PATH VIRTUAL_ENV HF_HOME HF_HUB_OFFLINE
    HF_HUB_CACHE XDG_CACHE_HOME TRANSFORMERS_OFFLINE TMPDIR SSL_CERT_FILE REQUESTS_CA_BUNDLE""".split()  # noqa: SIM905
)
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH", "COOKIE", "SIGNATURE", "PRIVATE")
TEXT_LIMIT = 2000
LOAD_LIMIT = 8.0  # seconds, for each vocabulary
NOWHERE = "http://127.0.0.1:9"  # the discard port: refused at once
# gpt-oss's encoding is the only one that openai-harmony has, and o200k_base is its vocabulary.
HARMONY = {"o200k_base": "HarmonyGptOss"}
LOADER_TEXT = """
import sys
try:
    import openai_harmony
except ImportError as error:
    print("no-harmony", error)
    sys.exit()
try:
    encoding = openai_harmony.load_harmony_encoding(sys.argv[1])
    print("loaded", len(encoding.encode("Hello, world", allowed_special="all")))
except BaseException as error:
    print("failed", type(error).__name__, " ".join(str(error).split())[:300])
"""


def is_secret(name: str) -> bool:
    """Whether a variable of that name may hold a secret."""
    upper = name.upper().replace("TIKTOKEN", "")
    return any(word in upper for word in SECRET_WORDS)


def is_safe(name: str) -> bool:
    """Whether the value of the variable ``name`` may leave the container."""
    return not is_secret(name) and (name in SAFE_NAMES or name.startswith(SAFE_PREFIXES))


def without_password(value: str) -> str:
    """A harmless name may still hold an address with a password in it."""
    return "(an address with a user: not shown)" if "://" in value and "@" in value else value


def normal(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return "-".join(part for part in name.replace("_", "-").replace(".", "-").lower().split("-") if part)


def is_site(folder: str) -> bool:
    return os.path.basename(folder.rstrip("/")) in ("site-packages", "dist-packages")


# --- what is installed -----------------------------------------------------------------------------------------------


def pth_files(_request: Doc, document: Doc) -> list[Doc]:
    """The .pth files of every site folder: they add entries to sys.path, or run a line of Python."""
    found = []
    for entry in entries(document):
        if is_site(entry):
            for name in listing(entry):
                if name.endswith(".pth"):
                    path = os.path.join(entry, name)
                    lines = [line[:200] for line in read_text(path).splitlines() if line.strip() and line[:1] != "#"]
                    found.append({"path": path, "lines": lines[:20]})
    return found


def header(path: str) -> Doc:
    """Name and Version of a METADATA or PKG-INFO file."""
    found: Doc = {}
    for line in read_text(path).splitlines():
        field, colon, value = line.partition(":")
        if not colon:
            break
        if field in ("Name", "Version"):
            found.setdefault(field.lower(), value.strip())
    return found


def wanted(name: str, request: Doc) -> bool:
    exact = [normal(item) for item in request.get("distributions", []) if not item.endswith("*")]
    starts = [normal(item[:-1]) for item in request.get("distributions", []) if item.endswith("*")]
    for package in request.get("packages", []):
        exact.append(normal(package["distribution"]))
        starts.append(normal(package["package"]))
    return name in exact or any(name == start or name.startswith(start + "-") for start in starts)


def one_distribution(entry: str, folder: str) -> Doc:
    """Facts of one dist-info or egg-info; None where it holds no metadata."""
    path = os.path.join(entry, folder)
    for name in ("METADATA", "PKG-INFO", ""):
        file = os.path.join(path, name) if name else path
        if os.path.isfile(file):
            found = header(file)
            break
    else:
        found = {}
    found.update(location=entry, metadata=path, kind=folder.rsplit(".", 1)[1], record=os.path.isfile(path + "/RECORD"))
    found.setdefault("name", folder.rsplit(".", 1)[0].split("-")[0])
    direct = os.path.join(path, "direct_url.json")
    if os.path.isfile(direct):
        url = json.loads(read_text(direct))
        editable = bool(url.get("dir_info", {}).get("editable"))
        found.update(editable=editable, url=url.get("url", "") if "@" not in url.get("url", "") else "")
    top = os.path.join(path, "top_level.txt")
    if os.path.isfile(top):
        found["top_level"] = read_text(top).split()[:20]
    return found


def distributions(request: Doc, document: Doc) -> list[Doc]:
    """Every installed distribution that the request asks about, in the order of sys.path: the first one wins."""
    found = []
    for entry in entries(document):
        for folder in listing(entry):
            if folder.endswith((".dist-info", ".egg-info")):
                name = normal(folder.rsplit(".", 1)[0].split("-")[0])
                if wanted(name, request):
                    found.append(one_distribution(entry, folder))
    return found


def portions(request: Doc, document: Doc) -> list[Doc]:
    """Every folder called like a package on sys.path, with or without __init__.py: who could win, who is left over."""
    found = []
    for package in request.get("packages", []):
        for entry in entries(document):
            folder = os.path.join(entry, package["package"])
            if os.path.isdir(folder):
                regular = any(name.startswith("__init__.") for name in listing(folder))
                found.append({"package": package["package"], "entry": entry, "path": folder, "regular": regular,
                              "site": is_site(entry), "holds": listing(folder)[:8]})  # fmt: skip
    return found


# --- the packages themselves -----------------------------------------------------------------------------------------


def version_text(root: str) -> str | None:
    """The version that the package itself would tell, read from the file that its build writes; None without one."""
    for name in ("_build_meta.py", "_version.py"):
        path = os.path.join(root, name)
        if os.path.isfile(path):
            for line in read_text(path, 20000).splitlines():
                left, equals, right = line.partition("=")
                if equals and "__version__" in left.split(":")[0] and right.strip()[:1] not in "_v":
                    return right.split("=")[-1].strip().strip("'\"")
    return None


def data_entry(root: str, name: str) -> Doc:
    path = os.path.join(root, "data", name)
    state = "missing"
    if os.path.lexists(path):
        state = "dangling" if not os.path.exists(path) else "folder"
    target = os.readlink(path) if os.path.islink(path) else None
    empty = state == "folder" and not listing(path)
    return {"name": name, "path": path, "state": state, "target": target, "empty": empty}


def roots(request: Doc, document: Doc) -> list[Doc]:
    """Package folders: those that an import would take, and those that lie in a mounted checkout."""
    found = []
    for package in request.get("packages", []):
        folders = [os.path.dirname(cell["origin"]) for cell in document.get("imports", [])
                   if cell["package"] == package["package"] and cell["kind"] == "regular"]  # fmt: skip
        folders.append(os.path.join(package["mount"], package["package"]))
        for folder in sorted(set(folders)):
            if not os.path.isdir(folder):
                continue
            fact = {"package": package["package"], "root": folder, "version": version_text(folder)}
            fact["data"] = [data_entry(folder, name) for name in package.get("data", [])]
            aot = os.path.join(folder, "data", "aot")
            fact["aot"] = [name for name in listing(aot) if os.path.isfile(os.path.join(aot, name, name + ".so"))][:200]
            found.append(fact)
    return found


def environment(_request: Doc, _document: Doc) -> Doc:
    """The values of harmless variables."""
    values = {name: without_password(value[:TEXT_LIMIT]) for name, value in os.environ.items() if is_safe(name)}
    return {"values": values}


def mount_options() -> dict[str, tuple[str, bool, str]]:
    """mount point -> (file system, read-only, where it is in that file system), the topmost mount of each."""
    found: dict[str, tuple[str, bool, str]] = {}
    if not os.path.isfile("/proc/self/mountinfo"):
        return found
    for line in read_text("/proc/self/mountinfo", 1 << 20).splitlines():
        words = line.split(" ")
        kind = words[words.index("-") + 1] if "-" in words else "?"
        place, root = words[4].replace("\\040", " "), words[3].replace("\\040", " ")
        found[place] = (kind, "ro" in words[5].split(","), root)
    return found


def dangling(path: str) -> list[str]:
    """Links right below a folder that lead nowhere."""
    found = (os.path.join(path, name) for name in listing(path)[:500])
    return [name + " -> " + os.readlink(name) for name in found if os.path.islink(name) and not os.path.exists(name)]


def folders(request: Doc, _document: Doc) -> list[Doc]:
    """Each mount and cache: is it there, is it a mount, whose is it, may we write?"""
    mounted = mount_options()
    found = []
    for path in request.get("paths", []):
        fact = {"path": path, "exists": os.path.isdir(path), "mounted": path in mounted}
        if fact["mounted"]:
            fact["kind"], fact["read_only"], fact["root"] = mounted[path]
        if fact["exists"]:
            stat = os.stat(path)
            fact.update(uid=stat.st_uid, gid=stat.st_gid, inode=stat.st_ino, mode=oct(stat.st_mode & 0o7777))
            fact.update(writable=os.access(path, os.W_OK), empty=not listing(path), dangling=dangling(path))
        found.append(fact)
    return found


def encodings(request: Doc, _document: Doc) -> list[Doc]:
    """Vocabulary files: there, and with which SHA-256?"""
    found = []
    for name in request.get("encodings", []):
        fact = {"path": name, "exists": os.path.isfile(name)}
        if fact["exists"]:
            digest = hashlib.sha256()
            with open(name, "rb") as file:
                for block in iter(lambda: file.read(1 << 20), b""):
                    digest.update(block)
            fact.update(sha256=digest.hexdigest())
        found.append(fact)
    return found


def load_one(name: str) -> Doc:
    """openai-harmony loads one vocabulary, with every proxy pointing at a closed port: what needs a network fails."""
    env = {key: value for key, value in os.environ.items() if key not in ("NO_PROXY", "no_proxy")}
    env.update(dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), NOWHERE))
    began = time.time()
    said, why = call([sys.executable, "-c", LOADER_TEXT, HARMONY[name]], LOAD_LIMIT, env=env)
    words = (said.strip().splitlines() or [""])[-1].partition(" ")
    state = words[0] if words[0] in ("loaded", "no-harmony") and not why else "failed"
    last = why or ("" if state == "loaded" else words[2])
    return {"name": name, "state": state, "said": last, "seconds": round(time.time() - began, 2)}


def loads(request: Doc, _document: Doc) -> list[Doc]:
    """One real load of each vocabulary that openai-harmony knows; none unless asked for."""
    return [load_one(name) for name in request.get("load", []) if name in HARMONY]
