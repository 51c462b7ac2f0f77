"""Runs inside the container: checks a Hugging Face cache, and fills it with huggingface_hub.

``check`` only needs Python: it reads the files. A shard is whole when it has as many bytes as its
own header says (https://github.com/huggingface/safetensors: 8 bytes of length, a JSON header with
offsets, the data), and the tensors that the index expects in it. The hub's hash of a file is the
name of its blob; the content is compared with it where that is asked for, since it takes as long as
reading all.
``pull`` uses the huggingface_hub of the image; it continues partial files.
"""

from __future__ import annotations

import glob
import hashlib
import importlib
import itertools
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import Any, BinaryIO, Iterator

from envgen.inside.common import Doc, read_bytes, without_waiting

COMMIT = re.compile(r"[0-9a-f]{40}$")
HEADER = 100 << 20  # bytes; safetensors itself refuses longer headers
FILES = 20000  # a snapshot with more files is not a model's
WEIGHTS = (".safetensors", ".bin", ".gguf")
# What lies beside a model's weights with such a name, and is none of them.
NO_WEIGHTS = re.compile(r"(adapter_|training_args|optimizer|scheduler|rng_state)")
NUMBERED = re.compile(r"(.*-)([0-9]{5})-of-([0-9]{5})(\.[a-z]+)$", re.DOTALL)
NAMED = 50  # missing files in one answer
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
CHECKED = ("config.json", *INDEXES)  # by what they say
FULL = (*WEIGHTS, ".json", ".model", ".tiktoken", ".txt", ".vocab")  # no such file is empty
TEXT = 64 << 20  # bytes of a configuration or an index
# Any of them holds a vocabulary; a model without one can't read a prompt.
VOCABULARY = re.compile(
    r"(tokenizer|tekken|vocab|merges|spiece|sentencepiece|bpe)[^/]*\.(json|model|txt|bin)$|.*\.(tiktoken|gguf|vocab)$"
)
NO_VOCABULARY = ("tokenizer_config.json",)


def answer(request: Doc) -> Doc:
    """``check`` or ``pull``, for the cache in the folder ``home``."""
    if request["verb"] == "check":
        names = [str(request[name]) for name in ("home", "repo", "revision", "commit")]
        reads = bool(request.get("reads"))
        deep = bool(request.get("deep"))
        return check(*names, reads=reads, deep=deep)
    return pull(request)


def folder_of(home: str, repo: str) -> str:
    """The folder of a model repository in the cache."""
    return f"{home}/hub/models--{repo.replace('/', '--')}"


def commit_of(folder: str, revision: str) -> str:
    """The commit of a revision in the cache; "" without one."""
    if COMMIT.match(revision):
        return revision
    commit = read_bytes(f"{folder}/refs/{revision}", 100).decode("ascii", "replace").strip()
    return commit if COMMIT.match(commit) else ""


def check(
    home: str, repo: str, revision: str, commit: str, *, reads: bool = False, deep: bool = False
) -> Doc:
    """The ``state`` of the model (absent, partial, damaged or whole), and its ``problems``.

    ``commit``: of the lock, or "". A server loads the commit that ``revision`` points to.
    ``reads``: it needs a vocabulary. ``deep``: compare every byte with the hub's hashes.
    """
    folder = folder_of(home, repo)
    current = commit_of(folder, revision)
    snapshot = os.path.join(folder, "snapshots", commit or current)
    partial = incomplete(folder)
    document: Doc = {"commit": current, "bytes": 0, "files": 0, "partial": partial, "problems": []}
    if not (commit or current) or not os.path.isdir(snapshot):
        document["state"] = "partial" if partial else "absent"
        return document
    problems: list[str] = document["problems"]
    if commit and current != commit:
        here = current[:12] or "unknown"
        problems.append(f"{revision} is {here} here, and {commit[:12]} in the lock")
    sizes = sizes_of(snapshot, folder, problems)
    document["files"] = len(sizes)
    document["bytes"] = sum(sizes.values())
    if "config.json" not in sizes:
        problems.append("config.json is missing")
    elif not json_of(f"{snapshot}/config.json"):
        problems.append("config.json is empty, or can't be read")
    named = (name for name in sizes if name not in NO_VOCABULARY)
    if reads and not any(VOCABULARY.match(os.path.basename(name)) for name in named):
        problems.append("the tokenizer's vocabulary is missing")
    shards, why = wanted_shards(snapshot, sizes)
    problems.extend(why)
    problems.extend([f"{name} is missing" for name in shards if name not in sizes][:NAMED])
    for name in sizes:
        if not name.endswith(".safetensors"):
            continue
        expected, tensors = shard_of(f"{snapshot}/{name}")
        if expected < 0:
            problems.append(f"{name} is not a safetensors file")
        elif not tensors:
            problems.append(f"{name} holds no weights")
        elif expected != sizes[name]:
            problems.append(f"{name} has {sizes[name]} bytes of {expected}")
        elif not shards.get(name, set()) <= tensors:
            problems.append(f"{name} has other weights than the index says")
    for name, size in sizes.items():
        if deep and differs(f"{snapshot}/{name}", size):
            problems.append(f"{name} has other bytes than the hub's")
    problems[:] = list(dict.fromkeys(problems))
    lacks = partial or any(text.endswith("is missing") for text in problems)
    document["state"] = "whole"
    if problems:
        document["state"] = "partial" if lacks else "damaged"
    return document


def sizes_of(snapshot: str, folder: str, problems: list[str]) -> dict[str, int]:
    """The sizes of the files of a snapshot, by name. Problems with files are added to ``problems``."""
    sizes = {}
    inside = os.path.realpath(folder) + os.sep
    for name in sorted(walk(snapshot)):
        path = f"{snapshot}/{name}"
        try:
            status = os.stat(path)
        except OSError:
            problems.append(f"{name} is missing")
            continue
        sizes[name] = status.st_size
        if not stat.S_ISREG(status.st_mode):
            problems.append(f"{name} is not a file")
        elif not os.path.realpath(path).startswith(inside):
            problems.append(f"{name} is a link that leads out of the cache")
        elif name not in CHECKED and name.endswith(FULL) and is_hollow(path, status.st_size):
            problems.append(f"{name} is empty, or cut off")
    return sizes


def walk(snapshot: str) -> Iterator[str]:
    """Names of files relative to the snapshot; links to folders are not followed."""
    paths = (f"{top}/{name}" for top, _folders, files in os.walk(snapshot) for name in files)
    for path in itertools.islice(paths, FILES):
        yield os.path.relpath(path, snapshot)


def incomplete(folder: str) -> int:
    """The number of files whose download has begun and not ended."""
    return len(glob.glob(f"{glob.escape(folder)}/blobs/*.incomplete"))


def json_of(path: str) -> Doc:
    """The object in a file; empty where there is none."""
    try:
        document = json.loads(read_bytes(path, TEXT))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def is_hollow(path: str, size: int) -> bool:
    """Whether a file has no bytes, as a full disk leaves it, or by its ends can't be the JSON that
    its name says. A tokenizer has 30 MB: not all of it is parsed for each start.
    """
    if not path.endswith(".json") or not size:
        return not size
    try:
        with opened(path) as file:
            begin = file.read(64).strip()[:1]
            file.seek(max(0, size - 64))
            end = file.read(64).strip()[-1:]
    except OSError:
        return True
    return begin + end not in (b"{}", b"[]")


def opened(path: str) -> BinaryIO:
    """The open file. OSError for anything else: a pipe, which a container can make there, would
    never end.
    """
    file = open(path, "rb", opener=without_waiting)  # noqa: SIM115  (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("is not a file")
    return file


def differs(path: str, size: int) -> bool:
    """Whether a file has other bytes than the hub's: its blob is called after their hash, by git's
    rule where they are few. False where its name is none, or where it can't be read.
    """
    folder, name = os.path.split(os.path.realpath(path))
    if os.path.basename(folder) != "blobs" or len(name) not in (40, 64):
        return False
    digest = hashlib.sha256() if len(name) == 64 else hashlib.sha1(b"blob %d\0" % size)
    try:
        with opened(path) as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError:
        return False
    return digest.hexdigest() != name


def shards_in(path: str, index: str) -> tuple[dict[str, set[str]], list[str]]:
    """The weight files of one index with their tensors, and problems with it."""
    tensors = json_of(path).get("weight_map")
    if not isinstance(tensors, dict) or not tensors:
        return {}, [f"{index} names no weights, or can't be read"]
    tensors_of: dict[str, set[str]] = {}
    for name in sorted(map(str, tensors.values())):
        tensors_of[name] = set()
    for tensor, name in tensors.items():
        tensors_of[str(name)].add(tensor)
    return tensors_of, []


def wanted_shards(snapshot: str, sizes: dict[str, int]) -> tuple[dict[str, set[str]], list[str]]:
    """The weight files in the model's own index with the tensors of each, and problems with it.

    Without an index, at least one must exist, and of those that count themselves
    (model-00001-of-00002) all.
    """
    for index in INDEXES:
        if index in sizes:
            return shards_in(f"{snapshot}/{index}", index)
    weights = []
    for name in sizes:
        if name.endswith(WEIGHTS) and not NO_WEIGHTS.match(os.path.basename(name)):
            weights.append(name)
    if not weights:
        return {}, ["there are no weights"]
    names = sorted(set(counted_in(weights)))
    return {name: set() for name in names}, []


def counted_in(names: list[str]) -> Iterator[str]:
    """All files of the sets of which ``names`` has one: a set's files have their number and its
    size in their names.
    """
    sets = set()
    for match in filter(None, map(NUMBERED.match, names)):
        sets.add((match[1], match[3], match[4]))
    for head, count, tail in sets:
        for number in range(1, min(int(count), FILES) + 1):
            yield f"{head}{number:05d}-of-{count}{tail}"


def shard_of(path: str) -> tuple[int, set[str]]:
    """The size of a safetensors file by its own header, and its tensors; -1 without a readable
    header.
    """
    try:
        with opened(path) as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if not 2 <= length <= HEADER:
                return -1, set()
            header = json.loads(file.read(length).decode("utf-8"))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        ends = {name: int(entry["data_offsets"][1]) for name, entry in tensors.items()}
        if not all(map(fills, tensors.values())):
            return -1, set()
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        struct.error,
    ):
        return -1, set()
    return 8 + int(length) + max(ends.values(), default=0), set(ends)


# F64, BF16, I8, F8_E4M3: the first number of its name is the bits of a type.
TYPE = re.compile(r"(?:BF|[FIUC])(\d+)")


def fills(entry: Doc) -> bool:
    """Whether a tensor's offsets are as far apart as its shape and type need."""
    start, end = entry["data_offsets"]
    kind = TYPE.match(str(entry.get("dtype", "")).replace("BOOL", "U8"))
    if not kind:
        return True
    bits = int(kind[1])
    for length in entry.get("shape", ()):
        bits *= int(length)
    return bool(int(end) - int(start) == -(-bits // 8))


def size_of_blobs(folder: str) -> int:
    """Bytes on disk, partial files included. Sparse files count by what is written."""
    sizes = []
    for path in glob.glob(f"{glob.escape(folder)}/blobs/*"):
        with suppress(OSError):  # renamed meanwhile
            status = os.stat(path)
            sizes.append(
                min(status.st_size, status.st_blocks * 512) if status.st_blocks else status.st_size
            )
    return sum(sizes)


# --- fetching
# ---------------------------------------------------------------------------------------------------------


def pull(request: Doc) -> Doc:
    """Fetch missing files; ``problem``: why it failed. Progress goes to stderr as JSON, one line
    per second.
    """
    trust(str(request.get("ca", "")))
    home = str(request["home"])
    repo = str(request["repo"])
    revision = str(request["revision"])
    os.environ.update(
        {"HF_HOME": home, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    )
    os.environ.pop("HF_HUB_OFFLINE", None)
    if request.get("endpoint"):
        os.environ["HF_ENDPOINT"] = str(request["endpoint"])
    token = str(request.get("token", "")) or None
    try:
        import huggingface_hub  # reads HF_HOME on import
    except ImportError as missing:
        why = install(str(request["install"])) if request.get("install") else ""
        if not request.get("install") or why:
            kind = "network" if why else "image"
            return {
                "problem": why or f"the image has no huggingface_hub: {missing}",
                "kind": kind,
            }
        import huggingface_hub
    try:
        return fetch(huggingface_hub, request, home, repo, revision, token)
    except Exception as problem:
        return {
            "problem": f"{type(problem).__name__}: {str(problem)[:2000]}",
            "kind": kind_of(problem),
        }


def install(requirement: str) -> str:
    """Install a package for this process alone, by pip and its configuration. Returns why it
    failed, or "".
    """
    folder = tempfile.mkdtemp()
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--target",
        folder,
    ]
    done = subprocess.run([*command, requirement], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        last = done.stdout.decode("utf-8", "replace").strip().splitlines()[-1:]
        return f"pip could not install {requirement}: {''.join(last)[:500]}"
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    return ""


def fetch(hub: Any, request: Doc, home: str, repo: str, revision: str, token: Any) -> Doc:
    """Download by huggingface_hub, which retries and continues partial files. Raises its
    exceptions.
    """
    info = hub.HfApi().model_info(
        repo, revision=request.get("commit") or revision, files_metadata=True, token=token
    )
    ignore = [str(pattern) for pattern in request.get("ignore", ())]
    names = {one.rfilename for one in info.siblings}
    chosen = set(hub.utils.filter_repo_objects(names, ignore_patterns=ignore))
    total = sum(one.size or 0 for one in info.siblings if one.rfilename in chosen)
    folder = folder_of(home, repo)
    present = size_of_blobs(folder)
    os.makedirs(home, exist_ok=True)
    free = shutil.disk_usage(home).free
    if total - present > free:
        return {
            "problem": f"{total - present} bytes are missing, and {free} are free",
            "kind": "space",
            "missing": total - present,
            "free": free,
        }
    done = threading.Event()
    watcher = threading.Thread(target=watch, args=(folder, total, done), daemon=True)
    watcher.start()
    try:
        hub.snapshot_download(
            repo, revision=info.sha, ignore_patterns=ignore, token=token, max_workers=4
        )
    finally:
        done.set()
        watcher.join(5)
    # A server asks for the revision by its name; snapshot_download of a commit writes no ref.
    if not COMMIT.match(revision):
        write_ref(folder, revision, info.sha)
    return {"commit": info.sha, "bytes": total}


def write_ref(folder: str, revision: str, commit: str) -> None:
    """Point ``revision`` to ``commit``, as huggingface_hub does."""
    path = f"{folder}/refs/{revision}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
    with os.fdopen(handle, "w") as file:
        file.write(commit)
    os.replace(temporary, path)


def watch(folder: str, total: int, done: threading.Event) -> None:
    """Print every second how many bytes are there."""
    while not done.wait(1):
        say({"bytes": min(size_of_blobs(folder), total), "total": total})


def say(document: Doc) -> None:
    """One line of progress: a JSON document after a mark, which tells it from output of packages."""
    sys.stderr.write(f"envgen-progress {json.dumps(document)}\n")
    sys.stderr.flush()


def kind_of(problem: Exception) -> str:
    """access, missing, network or other: by the names of huggingface_hub's errors, which have moved
    between modules.
    """
    names = {one.__name__ for one in type(problem).__mro__}
    status = getattr(getattr(problem, "response", None), "status_code", 0)
    if status in (401, 403):
        return "access"
    if names & {"RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError"}:
        return "missing"
    if (
        names
        & {
            "ConnectionError",
            "Timeout",
            "TransportError",
            "ProtocolError",
            "ChunkedEncodingError",
            "TimeoutError",
            "LocalEntryNotFoundError",
        }
        or status >= 500
        or status == 429
    ):
        return "network"
    if isinstance(problem, OSError) and problem.errno == 28:
        return "space"
    return "other"


def trust(extra: str) -> None:
    """Add a company's CA certificates to the system's, for this process."""
    try:
        if not extra or not os.path.getsize(extra):
            return
        bundle = os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")
        with tempfile.NamedTemporaryFile("wb", suffix=".pem", delete=False) as file:
            for path in (bundle, extra):
                if os.path.exists(path):
                    with open(path, "rb") as part:
                        file.write(part.read() + b"\n")
    except OSError:
        return
    os.environ.update({"SSL_CERT_FILE": file.name, "REQUESTS_CA_BUNDLE": file.name})
