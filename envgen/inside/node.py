"""Runs inside a container with the host's network: facts of a machine of a cluster, and connections to another one."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import resource
import shutil
import socket
import struct
import subprocess
import time
from importlib import metadata
from typing import Any, Dict, Iterator, List, Set, Tuple

from envgen.inside.common import listing, read_text

Doc = Dict[str, Any]
NET = "/sys/class/net"
RDMA = "/sys/class/infiniband"
SIOCGIFADDR = 0x8915
SIOCGIFNETMASK = 0x891B
MIB = 1 << 20
MOST_FILES = 2000
BLOCK = 1 << 20
HEADERS = 52  # bytes of IPv4, TCP and its time stamp in each packet
PROGRESS = "envgen-progress "
LISTENS = "envgen-listens"
PART = ".envgen-part"
RECORD = "envgen-pushed.json"  # what the last run wrote into a checkout, by path
LINE = 256 << 20
PATIENCE = 300.0  # seconds in which the other end must do something
RESERVE = 64 << 20  # bytes of the disk that stay free
# Ignored by git, but the checkout does not run without: compiled modules, and Python that its build writes.
BUILT = ("*.so", "*.py")
MIRRORED = ("checkout", "mirror")
LEFT_OUT = {"build", "dist", ".venv", "venv", "node_modules", "__pycache__", ".deps", ".envgen"}


def answer(request: Doc) -> Doc:
    """One of five: ``facts``, ``listen``, ``connect``, ``send`` and ``receive``."""
    if request["ask"] == "facts":
        return facts(request)
    ask = {"listen": listen, "connect": connect, "send": send, "receive": receive}
    try:
        return ask[request["ask"]](request)
    except (OSError, EOFError) as error:
        return {"error": said(error)}


# --- facts ------------------------------------------------------------------------------------------------------------


def facts(request: Doc) -> Doc:
    """Interfaces, RDMA ports, GPUs, memory, disk, clock, versions, taken ones of ``ports``, and what model and
    ``checkouts`` hold."""
    return {
        "versions": {name: version for name in request["packages"] for version in versions(name)},
        "interfaces": {name: interface(name) for name in listing(NET)},
        "rdma": {name: rdma_port(name) for name in listing(RDMA)},
        "memory_free": memory_free(),
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "now": time.time(),
        "driver": driver(),
        "gpus": len(listing("/proc/driver/nvidia/gpus")),
        "taken": [port for port in request["ports"] if is_taken(port)],
        "disk_free": shutil.disk_usage("/").free,
        "model": manifest(request["model"], bool(request.get("deep"))) if request.get("model") else None,
        "checkouts": {name: checkout(folder) for name, folder in request["checkouts"].items()},
    }


def versions(package: str) -> List[str]:
    try:
        return [metadata.version(package)]
    except metadata.PackageNotFoundError:
        return []


def read(*path: str) -> str:
    return read_text(os.path.join(*path)).strip()


def interface(name: str) -> Doc:
    address = number_of(name, SIOCGIFADDR)
    return {
        "address": socket.inet_ntoa(address) if address else "",
        "mtu": int(read(NET, name, "mtu") or 0),
        "up": read(NET, name, "operstate") in ("up", "unknown"),
        "mbit": read(NET, name, "speed"),
    }


def number_of(name: str, what: int) -> bytes:
    """The IPv4 address of an interface, or its mask; empty where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            return fcntl.ioctl(sock.fileno(), what, struct.pack("256s", name.encode()[:15]))[20:24]
        except OSError:
            return b""


def rdma_port(name: str) -> Doc:
    """The first port of an RDMA device, and its addresses for RoCE v2 over IPv4: [index, address, network] each."""
    port = os.path.join(RDMA, name, "ports", "1")
    attributes = os.path.join(port, "gid_attrs")
    found = []
    for index in listing(os.path.join(attributes, "types")):
        gid = read(port, "gids", index).replace(":", "")
        if read(attributes, "types", index) == "RoCE v2" and re.match("0{20}ffff[0-9a-f]{8}$", gid):
            mask = number_of(read(attributes, "ndevs", index), SIOCGIFNETMASK) or b"\xff" * 4
            address = bytes.fromhex(gid[24:])
            network = bytes(one & other for one, other in zip(address, mask))
            found.append([int(index), socket.inet_ntoa(address), socket.inet_ntoa(network)])
    return {"state": read(port, "state"), "rate": read(port, "rate"), "gids": sorted(found)}


def memory_free() -> int:
    for line in read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def is_taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False


def driver() -> str:
    """The version of the machine's NVIDIA driver; "none" without one."""
    found = re.search(r"\b([0-9]{3,4}(\.[0-9]+){1,2})\b", read("/proc/driver/nvidia/version"))
    return found.group(1) if found else "none"


def manifest(model: Doc, deep: bool = False) -> Doc:
    """Size and hash of each file of a model; of files over 8 MiB, of their beginning, middle and end, unless ``deep``.

    ``model``: a ``folder``, or ``home`` (of Hugging Face), ``repo`` and ``revision``.
    """
    folder = model.get("folder") or snapshot(model["home"], model["repo"], model["revision"])
    found: Dict[str, List[Any]] = {}
    for name, path in files_of(folder):
        if len(found) >= MOST_FILES:
            break
        try:
            found[name] = sample(path, deep)
        except OSError as error:
            found[name] = [-1, error.strerror]
    return {"folder": folder, "files": found, "deep": deep}


def checkout(folder: str) -> str:
    """One digest of a checkout's files as `nodes push` sends them, of large ones by samples; "" where there is none."""
    found = chosen({"kind": "checkout", "folder": folder}) if os.path.isdir(folder) else []
    own = [path for path in found if path != ".git" and not path.startswith(".git/")]
    described = all_described({"kind": "tree", "folder": folder}, own)
    return hashlib.sha256(json.dumps(described).encode()).hexdigest() if described else ""


def snapshot(home: str, repo: str, revision: str) -> str:
    top = os.path.join(home, "hub", "models--" + repo.replace("/", "--"))
    return os.path.join(top, "snapshots", read(top, "refs", revision) or revision)


def files_of(folder: str) -> Iterator[Tuple[str, str]]:
    for top, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(top, name)
            if os.path.isfile(path):
                yield os.path.relpath(path, folder), path


def sample(path: str, deep: bool = False) -> List[Any]:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if deep:
            for block in iter(lambda: file.read(8 * MIB), b""):
                digest.update(block)
            return [size, digest.hexdigest()]
        places = [0] if size <= 8 * MIB else [0, size // 2, size - MIB]
        for place in places:
            file.seek(place)
            digest.update(file.read(8 * MIB if len(places) == 1 else MIB))
    return [size, digest.hexdigest()]


# --- one connection ---------------------------------------------------------------------------------------------------


def listen(request: Doc) -> Doc:
    """Wait for a connection at each of ``ports`` of ``address``, and send ``bytes`` through the last.

    ``packet``: the largest that the kernel has sent there. It may not be split on the way.
    """
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(listener(request, port)) for port in request["ports"]]
        for sock in waiting:
            peer, address = sock.accept()
        with peer:
            peer.settimeout(request["seconds"])
            left, block = request["bytes"], bytes(BLOCK)
            try:
                while left > 0:
                    left -= peer.send(block[: min(left, BLOCK)])
            except OSError as error:
                return {"error": said(error), "peer": address[0]}
            packet = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) + HEADERS
    return {"peer": address[0], "packet": packet}


def listener(request: Doc, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.settimeout(request["seconds"])
        sock.bind((request["address"], port))
        sock.listen(1)
    except OSError:
        sock.close()
        raise
    return sock


def dialled(request: Doc, port: int, end: float) -> socket.socket:
    """A connection from ``source`` to a port of ``address``; tries until ``end`` while it is refused."""
    while True:
        try:
            return socket.create_connection(
                (request["address"], port), timeout=max(0.5, min(10.0, end - time.monotonic())),
                source_address=(request["source"], 0),
            )  # fmt: skip
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def connect(request: Doc) -> Doc:
    """Connect to ``ports``, one after the other, and read ``bytes`` from the last."""
    end = time.monotonic() + request["seconds"]
    for port in request["ports"]:
        try:
            sock = dialled(request, port, end)
        except OSError as error:
            return {"error": said(error), "port": port}
        if port != request["ports"][-1]:
            sock.close()
    began, got = time.monotonic(), 0
    with sock:
        try:
            while got < request["bytes"]:
                data = sock.recv(BLOCK)
                if not data:
                    break
                got += len(data)
        except OSError as error:
            return {"error": said(error), "bytes": got}
    return {"bytes": got, "seconds": max(time.monotonic() - began, 1e-6)}


def said(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


# --- which files ------------------------------------------------------------------------------------------------------


def chosen(request: Doc) -> List[str]:
    """Paths below the folder that count. ``kind``: tree, mirror (a tree; what is not sent is removed), checkout, or
    model (one snapshot in Hugging Face's cache)."""
    folder = request["folder"]
    if request["kind"] == "checkout":
        found = of_checkout(folder)
    elif request["kind"] == "model":
        found = of_model(folder, request["model"])
    else:
        found = of_tree(folder)
    return sorted(path for path in found if not path.endswith(PART) and os.path.basename(path) != RECORD)


def of_tree(folder: str) -> Set[str]:
    found = set()
    for top, folders, names in os.walk(folder):
        for path in (os.path.join(top, name) for name in names + folders):
            if os.path.islink(path) or os.path.isfile(path):
                found.add(os.path.relpath(path, folder))
    return found


def of_model(home: str, model: Doc) -> Set[str]:
    """One commit of a repository: its links, what they lead to, and the name of the commit. A folder is one, too."""
    if model.get("folder"):
        return {os.path.join(model["folder"], path) for path in of_tree(os.path.join(home, model["folder"]))}
    top = os.path.join(home, "hub", "models--" + model["repo"].replace("/", "--"))
    commit = snapshot(home, model["repo"], model["revision"])
    found = set()
    for path in of_tree(commit):
        whole = os.path.join(commit, path)
        found.add(os.path.relpath(whole, home))
        real = os.path.relpath(os.path.realpath(whole), os.path.realpath(home))
        if not real.startswith(".."):
            found.add(real)
    name = os.path.join(top, "refs", model["revision"])
    return found | ({os.path.relpath(name, home)} if os.path.isfile(name) else set())


def of_checkout(folder: str) -> Set[str]:
    """What git knows and does not ignore, what a build has put there, and git's own files."""
    try:
        found = tracked(folder, "--cached", "--recurse-submodules") | tracked(folder, "--others", "--exclude-standard")
        built = tracked(folder, "--others", "--ignored", "--exclude-standard", "--", *BUILT)
        found |= {path for path in built if not LEFT_OUT & set(path.split("/"))}
    except (OSError, subprocess.SubprocessError):  # no git, or no checkout
        found = {path for path in of_tree(folder) if not (LEFT_OUT | {".git"}) & set(path.split("/"))}
    found = {path for path in found if os.path.lexists(os.path.join(folder, path))}
    marks = {os.path.join(os.path.dirname(path), ".git") for path in found} | {".git"}  # of worktrees and submodules
    found |= {path for path in marks if os.path.isfile(os.path.join(folder, path))}
    own = os.path.join(folder, ".git")
    if os.path.isdir(own):
        found |= {os.path.join(".git", path) for path in of_tree(own) if not path.endswith(".lock")}
    return found


def tracked(folder: str, *words: str) -> Set[str]:
    trust = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    done = subprocess.run(
        ["git", "-C", folder, "ls-files", "-z", *words],
        env=dict(os.environ, **trust), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, timeout=PATIENCE,
    )  # fmt: skip
    return {os.fsdecode(path) for path in done.stdout.split(b"\0") if path and not path.endswith(b"/")}


def all_described(request: Doc, paths: List[str]) -> Doc:
    """What each file is: a link and where to, or its size, its hash (of a large one samples) and mode."""
    found: Doc = {}
    for path in paths:
        whole = os.path.join(request["folder"], path)
        try:
            deep = request["kind"] in MIRRORED and not path.startswith(".git/")
            if os.path.islink(whole):
                found[path] = ["link", os.readlink(whole)]
            else:
                found[path] = [*sample(whole, deep), os.stat(whole).st_mode & 0o111]
        except (FileNotFoundError, NotADirectoryError):
            continue
    return found


# --- the two ends -----------------------------------------------------------------------------------------------------


def told(stream: Any, document: Doc) -> None:
    stream.write(json.dumps(document).encode() + b"\n")
    stream.flush()


def heard(stream: Any) -> Doc:
    line = stream.readline(LINE)
    if not line.endswith(b"\n"):
        raise EOFError("the other end closed the connection")
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("the other end sent something else")
    return found


def send(request: Doc) -> Doc:
    """Wait for the other end, tell it what is here, and send what it wants."""
    files = all_described(request, chosen(request))
    if not files:
        return {"absent": True}
    with listener(request, request["port"]) as sock:
        print(LISTENS, flush=True)
        while True:
            peer, _ = sock.accept()
            with peer:
                peer.settimeout(PATIENCE)
                stream = peer.makefile("rwb", BLOCK)
                if hmac.compare_digest(str(heard(stream).get("token")), request["token"]):
                    told(stream, {"files": files})
                    serve(request["folder"], files, heard(stream)["want"], stream)
                    return {"files": len(files)}


def serve(folder: str, files: Doc, wanted: List[str], stream: Any) -> None:
    for path in wanted:
        if path not in files:
            raise EOFError("the other end asked for something else")
        whole = os.path.join(folder, path)
        state = os.stat(whole)
        told(stream, {"size": state.st_size, "mtime": state.st_mtime_ns, "mode": state.st_mode & 0o777})
        digest, left = hashlib.sha256(), state.st_size
        with open(whole, "rb") as file:
            while left:
                data = file.read(min(BLOCK, left))
                if not data:
                    raise EOFError("%s became shorter" % whole)
                digest.update(data)
                stream.write(data)
                left -= len(data)
        told(stream, {"sha256": digest.hexdigest()})


def receive(request: Doc) -> Doc:
    """Compare with what the other end has, and take what differs. ``dry_run``: only compare."""
    with dialled(request, request["port"], time.monotonic() + request["seconds"]) as sock:
        sock.settimeout(PATIENCE)
        stream = sock.makefile("rwb", BLOCK)
        told(stream, {"token": request["token"]})
        return Receiver(request, heard(stream)["files"]).take(stream)


class Receiver:
    """Brings a folder to what ``theirs`` describes."""

    def __init__(self, request: Doc, theirs: Doc) -> None:
        self.request, self.theirs, self.folder = request, theirs, request["folder"]
        for path in theirs:
            if path.startswith("/") or ".." in path.split("/"):
                raise EOFError("the other end sent a path that leads out: %s" % path)
        state = os.stat(self.folder)
        new = state.st_uid == 0 and not os.listdir(self.folder)
        # A folder that Docker has just made for us is root's.
        self.owner: Tuple[int, int] = tuple(request["owner"]) if new else (state.st_uid, state.st_gid)
        if new and not request.get("dry_run"):
            os.chown(self.folder, *self.owner)
        self.at = 0
        self.last = time.monotonic()

    def take(self, stream: Any) -> Doc:
        checkout, mirror = self.request["kind"] == "checkout", self.request["kind"] in MIRRORED
        mine = all_described(self.request, chosen(self.request) if mirror else sorted(self.theirs))
        differing = [path for path, one in self.theirs.items() if mine.get(path) != one]
        # Links, and the small files by which a model is found, come after what they lead to.
        differing.sort(key=lambda path: (self.is_link(path), -self.size(path), path))
        extra = [path for path in mine if path not in self.theirs and not path.startswith(".git/")] if mirror else []
        count = sum(self.size(path) for path in differing)
        found: Doc = {"files": len(differing), "removed": len(extra), "bytes": count, "of": len(self.theirs)}
        if checkout and not self.request["force"]:
            record = self.record()
            own = [path for path in differing + extra if path in mine and not path.startswith(".git/")]
            changed = [path for path in own if mine[path] != record.get(path)]
            if changed:
                found.update(changed=changed[:5], changes=len(changed))
        space = shutil.disk_usage(self.folder).free - RESERVE
        if count > space:
            found["free"] = max(0, space)
        if self.request.get("dry_run") or "changed" in found or "free" in found:
            told(stream, {"want": []})
            return found
        wanted = [path for path in differing if not self.is_link(path)]
        told(stream, {"want": wanted})
        for path in wanted:
            self.write(path, stream)
        for path in differing:
            if self.is_link(path):
                self.link(path)
        for path in extra:
            os.unlink(os.path.join(self.folder, path))
        if checkout:
            self.keep_record()
        return found

    def is_link(self, path: str) -> bool:
        return bool(self.theirs[path][0] == "link")

    def size(self, path: str) -> int:
        return 0 if self.is_link(path) else int(self.theirs[path][0])

    def write(self, path: str, stream: Any) -> None:
        whole = os.path.join(self.folder, path)
        self.make_folder(os.path.dirname(whole))
        head, digest = heard(stream), hashlib.sha256()
        with open(whole + PART, "wb") as file:
            left = int(head["size"])
            while left > 0:
                data = stream.read(min(BLOCK, left))
                if not data:
                    raise EOFError("the other end closed the connection")
                file.write(data)
                digest.update(data)
                left -= len(data)
                self.progress(len(data))
        if heard(stream)["sha256"] != digest.hexdigest():
            os.unlink(whole + PART)
            raise EOFError("%s arrived with other content: run the command again" % path)
        os.chmod(whole + PART, head["mode"])
        os.chown(whole + PART, *self.owner)
        os.utime(whole + PART, ns=(head["mtime"], head["mtime"]))
        if os.path.isdir(whole) and not os.path.islink(whole):
            raise IsADirectoryError(21, "%s is a folder here, and a file there" % path)
        os.replace(whole + PART, whole)

    def link(self, path: str) -> None:
        whole = os.path.join(self.folder, path)
        self.make_folder(os.path.dirname(whole))
        if os.path.lexists(whole + PART):
            os.unlink(whole + PART)
        os.symlink(self.theirs[path][1], whole + PART)
        os.chown(whole + PART, *self.owner, follow_symlinks=False)
        os.replace(whole + PART, whole)

    def make_folder(self, path: str) -> None:
        if path and not os.path.isdir(path):
            self.make_folder(os.path.dirname(path))
            if os.path.lexists(path):
                os.unlink(path)  # a file or a broken link, where a folder is now
            os.mkdir(path)
            os.chown(path, *self.owner)

    def progress(self, count: int) -> None:
        self.at += count
        if time.monotonic() - self.last > 1.0:
            self.last = time.monotonic()
            print(PROGRESS + str(self.at), flush=True)

    def record_path(self) -> str:
        own = os.path.join(self.folder, ".git")
        return os.path.join(own if os.path.isdir(own) else self.folder, RECORD)

    def record(self) -> Doc:
        try:
            with open(self.record_path(), encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def keep_record(self) -> None:
        path = self.record_path()
        with open(path + PART, "w", encoding="utf-8") as file:
            json.dump({path: one for path, one in self.theirs.items() if not path.startswith(".git/")}, file)
        os.chown(path + PART, *self.owner)
        os.replace(path + PART, path)
