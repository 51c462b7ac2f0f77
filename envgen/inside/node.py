"""Runs inside a container with the host's network: facts of a machine in a cluster."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import resource
import shutil
import socket
import struct
from typing import Any, Iterator

from envgen.inside.common import Doc, driver_of, listing, number_in, read_text

NET = "/sys/class/net"
RDMA = "/sys/class/infiniband"
SIOCGIFADDR = 0x8915
SIOCGIFNETMASK = 0x891B
MIB = 1 << 20
MOST_FILES = 2000


def answer(request: Doc) -> Doc:
    """Interfaces, RDMA ports, GPUs, kernel, memory, disk, which of ``ports`` are taken, and the
    content of the model.
    """
    return {
        "interfaces": {name: interface(name) for name in listing(NET)},
        "rdma": {name: rdma_port(name) for name in listing(RDMA)},
        "memory_free": number_in("/proc/meminfo", "MemAvailable:") << 10,
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "driver": driver_of() or "none",
        "kernel": os.uname().release,
        "handover": handover(),
        "gpus": len(listing("/proc/driver/nvidia/gpus")),
        "taken": [port for port in request["ports"] if is_taken(port)],
        "disk_free": shutil.disk_usage("/").free,
        "model": manifest(request["model"]) if request.get("model") else None,
    }


def read(path: str) -> str:
    return read_text(path).strip()


def interface(name: str) -> Doc:
    address = number_of(name, SIOCGIFADDR)
    return {
        "address": socket.inet_ntoa(address) if address else "",
        "mtu": int(read(f"{NET}/{name}/mtu") or 0),
        "up": read(f"{NET}/{name}/operstate") in ("up", "unknown"),
        "mbit": read(f"{NET}/{name}/speed"),
    }


def number_of(name: str, what: int) -> bytes:
    """The IPv4 address of an interface, or its mask; empty where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            asked = struct.pack("256s", name.encode()[:15])
            return fcntl.ioctl(sock.fileno(), what, asked)[20:24]
        except OSError:
            return b""


def rdma_port(name: str) -> Doc:
    """The first port of an RDMA device, and its RoCE v2 addresses over IPv4 as [index, address,
    network].
    """
    port = f"{RDMA}/{name}/ports/1"
    attributes = f"{port}/gid_attrs"
    gids = []
    for index in listing(f"{attributes}/types"):
        if read(f"{attributes}/types/{index}") != "RoCE v2":
            continue
        gid = read(f"{port}/gids/{index}").replace(":", "")
        if not re.match("0{20}ffff[0-9a-f]{8}$", gid):
            continue
        address = bytes.fromhex(gid[24:])
        card = read(f"{attributes}/ndevs/{index}")
        mask = number_of(card, SIOCGIFNETMASK) or b"\xff" * 4
        network = bytes(one & other for one, other in zip(address, mask))
        gids.append([int(index), socket.inet_ntoa(address), socket.inet_ntoa(network)])
    return {"state": read(f"{port}/state"), "rate": read(f"{port}/rate"), "gids": sorted(gids)}


def is_taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False


def handover() -> int:
    """Bytes that the kernel's Kexec HandOver keeps from being pinned; 0 where it is off."""
    if "kho=off" in read("/proc/cmdline").split():
        return 0
    return number_in("/proc/meminfo", "CmaFree:") << 10


def manifest(model: Doc) -> Doc:
    """Size and hash of each file of a model; for files over 8 MiB of their start, middle and end.

    ``model``: a ``folder``, or ``home`` (of Hugging Face), ``repo`` and ``revision``.
    """
    folder = model.get("folder") or snapshot(model["home"], model["repo"], model["revision"])
    samples: dict[str, list[Any]] = {}
    for name, path in files_of(folder):
        if len(samples) >= MOST_FILES:
            break
        try:
            samples[name] = sample(path)
        except OSError as error:
            samples[name] = [-1, error.strerror]
    return {"folder": folder, "files": samples}


def snapshot(home: str, repo: str, revision: str) -> str:
    top = f"{home}/hub/models--{repo.replace('/', '--')}"
    return os.path.join(top, "snapshots", read(f"{top}/refs/{revision}") or revision)


def files_of(folder: str) -> Iterator[tuple[str, str]]:
    for top, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = f"{top}/{name}"
            if os.path.isfile(path):
                yield os.path.relpath(path, folder), path


def sample(path: str) -> list[Any]:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        places = [0]
        length = 8 * MIB
        if size > length:
            places = [0, size // 2, size - MIB]
            length = MIB
        for place in places:
            file.seek(place)
            digest.update(file.read(length))
    return [size, digest.hexdigest()]
