"""FlashInfer's lock files: ``flock`` locks of the package filelock. A file's presence means nothing; only flock tells.

A lock file is never deleted: one process could wait on the old file while another makes a new one, and both hold one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator

from envgen.inside.jit.layout import WORK, Shelf, open_cache, root_of
from envgen.inside.jit.tree import FILE, FOLDER, GONE, Fault, descend, measure_path, opened, reason, remove

BATCH = "flashinfer_jit.lock"  # what FlashInfer's batch builds hold (build_jit_specs)
BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class Held(Exception):
    """Another process has it. ``device`` and ``inode`` identify the lock file, to find the holder."""

    def __init__(self, device: int, inode: int) -> None:
        super().__init__("held")
        self.device = device
        self.inode = inode


def probe(name: str, dir_fd: int) -> tuple[int, int] | None:
    """Who could answer: (device, inode) of the lock file when it is held, None when it is free or not there.

    Takes a shared lock for an instant, on a descriptor that can't write: this works on a read-only mount too, and a
    builder that meets it tries again 50 ms later.
    """
    try:
        fd = os.open(name, FILE, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in BUSY:
                return status.st_dev, status.st_ino
            raise
        return None
    finally:
        os.close(fd)


def acquire(name: str, dir_fd: int, shown: str) -> int:
    """Take the lock without waiting; the descriptor holds it until it is closed. Raises Held, or Fault."""
    patience = 2
    for _ in range(20):
        fd = -1
        try:
            fd = _open_lock(name, dir_fd)
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise Fault("refused", "the lock " + shown + " is not a regular file")
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Newer filelock releases unlink the file on release: a lock on a file without a name guards nothing.
            now = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            if (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino):
                taken, fd = fd, -1
                return taken
        except OSError as error:
            if error.errno in BUSY and fd >= 0:
                if not patience:
                    raise Held(status.st_dev, status.st_ino) from None
                patience -= 1
                time.sleep(0.02)  # it may be the instant of another envgen's probe()
            elif error.errno != errno.EEXIST and error.errno not in GONE:  # made or removed by another at this moment
                raise Fault("refused", "the lock " + shown + " can't be taken: " + reason(error)) from None
        finally:
            if fd >= 0:
                os.close(fd)
    raise Fault("refused", "the lock " + shown + " changes faster than it can be taken")


def acquire_inside(path: str, dir_fd: int, shown: str, *, dry: bool = False) -> int | None:
    """Take (``dry``: test) a lock at ``path`` below a folder; no link on the way is followed.

    FlashInfer 0.7 keeps the locks of some kernels inside the module's folder (cake_gdn, ...). None: nothing was taken,
    for it is gone, or only tested. Raises Held, or Fault.
    """
    *folders, name = path.split("/")
    fd = -1
    try:
        fd = descend(dir_fd, folders)
        identity = probe(name, fd)
        if identity is not None:
            raise Held(*identity)
        return None if dry else acquire(name, fd, shown)
    except OSError as error:
        if error.errno not in GONE:
            raise Fault("refused", shown + ": " + reason(error)) from None
        return None
    finally:
        if fd >= 0:
            os.close(fd)


def _open_lock(name: str, dir_fd: int) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(name, flags, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.EACCES:
            return os.open(name, FILE, dir_fd=dir_fd)  # flock doesn't need to write
        if error.errno != errno.ENOENT:
            raise
    fd = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=dir_fd)
    own_as(fd, dir_fd)
    return fd


def own_as(fd: int, folder_fd: int) -> None:
    """Give what root made to the owner of its folder, who must be able to open it for the next build."""
    if os.geteuid() != 0:
        return
    owner = os.fstat(folder_fd)
    with suppress(OSError):  # a file system without owners
        os.fchown(fd, owner.st_uid, owner.st_gid)


def enter(fd: int, name: str) -> int:
    """The folder ``name`` in ``fd``, open; made where it is missing. A link of that name is an OSError."""
    try:
        os.mkdir(name, 0o777, dir_fd=fd)
        fresh = True
    except FileExistsError:
        fresh = False
    inner = os.open(name, FOLDER, dir_fd=fd)
    if fresh:
        own_as(inner, fd)
    return inner


def make_lock_folder(shelf_fd: int) -> None:
    """``cached_ops/tmp``, made where it is missing. Raises Fault when it is a link or a file."""
    try:
        os.close(enter(shelf_fd, "tmp"))
    except OSError as error:
        raise Fault("refused", "cached_ops/tmp (the locks) can't be opened: " + reason(error)) from None


# Which processes hold a lock, and which have loaded a library: read from /proc, as far as this container can see.

# A line of /proc/PID/maps whose file is, or was when it was cleared, in a cache; the inode.
_MAPPED = re.compile(rb"^\S+ \S+ \S+ \S+ (\d+) +/.*/(?:cached_ops|" + re.escape(WORK.encode()) + rb"\w+)/", re.M)


def holders(identities: list[tuple[int, int]], proc: str = "/proc") -> dict[tuple[int, int], list[dict[str, object]]]:
    """For each (device, inode) of a lock file, the processes that hold a flock on it: pid and command.

    /proc/locks shows the processes of other users too, whose open files even root may not see in a container. It names
    another device than stat does on btrfs and overlayfs: what it doesn't show is looked for among open files.
    """
    found: dict[tuple[int, int], set[int]] = {identity: set() for identity in identities}
    devices = {(os.major(device), os.minor(device), inode): (device, inode) for device, inode in identities}
    for place, pid in _locks(proc) if found else ():
        if place in devices:
            found[devices[place]].add(pid)
    missing = {identity for identity, held in found.items() if not held}
    for pid in pids(proc) if missing else ():
        base = proc + "/" + str(pid)
        for number in names_in(base + "/fd"):
            try:
                status = os.stat(base + "/fd/" + number)
                if (status.st_dev, status.st_ino) in missing:
                    with open(base + "/fdinfo/" + number, "rb") as file:
                        if b"FLOCK" in file.read():
                            found[status.st_dev, status.st_ino].add(pid)
            except OSError:
                continue  # closed meanwhile
    return {key: [{"pid": pid, "command": command(pid, proc)} for pid in sorted(held)] for key, held in found.items()}


def _locks(proc: str) -> Iterator[tuple[tuple[int, int, int], int]]:
    """The flock lines of /proc/locks: (major, minor, inode) and pid. Waiting ones (``->``) hold nothing."""
    try:
        with open(proc + "/locks", "rb") as file:
            text = file.read().decode("ascii", "replace")
    except OSError:
        return
    for pid, major, minor, inode in re.findall(r"^\d+: FLOCK +\S+ +\S+ +(\d+) +(\w+):(\w+):(\d+) ", text, re.M):
        if int(pid):  # 0: in another namespace
            yield (int(major, 16), int(minor, 16), int(inode)), int(pid)


def loaded(inodes: dict[int, str], proc: str = "/proc") -> tuple[list[dict[str, object]], int]:
    """Processes that have mapped a library of the cache, and how many processes could not be looked into.

    Libraries are told by inode: the same file has another path in every container, and once it is cleared.
    """
    found: list[dict[str, object]] = []
    unseen = 0
    if not inodes:
        return found, unseen
    for pid in pids(proc):
        if pid == os.getpid():
            continue
        try:
            with open(proc + "/" + str(pid) + "/maps", "rb") as file:
                data = file.read()
        except OSError as error:
            unseen += not isinstance(error, (FileNotFoundError, ProcessLookupError))
            continue
        found_here = {int(one.group(1)) for one in _MAPPED.finditer(data)}
        names = {inodes[inode] for inode in found_here if inode in inodes}
        if names:
            found.append({"pid": pid, "command": command(pid, proc), "modules": sorted(names)})
    return found, unseen


def pids(proc: str = "/proc") -> list[int]:
    """The processes that this container can see."""
    return sorted(int(name) for name in names_in(proc) if name.isdigit())


def names_in(folder: str) -> list[str]:
    """The names in a folder of /proc; none where it can't be seen."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def command(pid: int, proc: str = "/proc") -> str:
    """The command line of a process, shortened; its bare name in brackets for a kernel thread or a zombie."""
    base = proc + "/" + str(pid)
    try:
        with open(base + "/cmdline", "rb") as file:
            line = file.read(4096)
        if not line:
            with open(base + "/comm", "rb") as file:
                return "[" + file.read(64).decode("utf-8", "replace").strip() + "]"
    except OSError:
        return ""
    text = " ".join(part.decode("utf-8", "replace") for part in line.split(b"\0") if part)
    return text if len(text) <= 300 else text[:297] + "..."


def look(request: Dict[str, Any]) -> Dict[str, Any]:
    """Operation ``look``: which processes of this container hold these locks, or have loaded these libraries.

    ``locks``: [[device, inode], ...]; ``libraries``: [[inode, module], ...].
    """
    locks = [(device, inode) for device, inode in request.get("locks") or ()]
    users, unseen = loaded(dict(request.get("libraries") or ()))
    known = holders(locks)
    return {"holders": [known[identity] for identity in locks], "users": users, "unseen": unseen}


# Taking the locks of many modules at once: all of them, or a refusal that names who holds one.


def raise_limit(wanted: int) -> None:
    """One descriptor a lock: a large cache needs more than the usual 1024."""
    with suppress(ImportError, OSError, ValueError):  # then opening a lock says so
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted += 4096
        if soft != resource.RLIM_INFINITY and soft < wanted:
            wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Hold:
    """The batch lock of each shelf, and the locks of these modules and inside of them; nothing is waited for.

    Raises a ``refused`` Fault with the holders when one is held. ``dry``: they are tested, and none is taken.
    """

    def __init__(self, shelves: list[tuple[Shelf, list[str]]], *, dry: bool = False) -> None:
        raise_limit(sum(len(names) for _, names in shelves))
        self.dry = dry
        self.batches: list[int] = []
        self.modules: list[int] = []
        self._held: list[tuple[str, tuple[int, int]]] = []
        try:
            for shelf, names in shelves:
                if not dry:
                    make_lock_folder(shelf.fd)
                self._take(self.batches, shelf, "tmp/" + BATCH)
                for name in names:
                    self._take(self.modules, shelf, "tmp/" + name + ".lock")
            for shelf, names in shelves if not self._held else []:  # no more come while the module's own lock is ours
                for name in names:
                    found = measure_path(name, shelf.fd)
                    for path in found.locks if found is not None else ():
                        self._take(self.modules, shelf, name + "/" + path)
            if self._held:
                raise _fault(self._held)
        except BaseException:
            self.release()
            raise

    def _take(self, taken: list[int], shelf: Shelf, path: str) -> None:
        shown = shelf.shown + "/" + path
        try:
            fd = acquire_inside(path, shelf.fd, shown, dry=self.dry)
            taken += [] if fd is None else [fd]
        except Held as lock:
            self._held.append((shown, (lock.device, lock.inode)))

    def release_modules(self) -> None:
        """Let the builders in again."""
        close_all(self.modules)

    def release(self) -> None:
        """Closing is releasing; the files stay."""
        close_all(self.modules)
        close_all(self.batches)


def _fault(held: list[tuple[str, tuple[int, int]]]) -> Fault:
    """The refusal: each lock (as shown, and its device and inode) with the processes that hold it."""
    known = holders(sorted({identity for _, identity in held}))
    return Fault("refused", "is being built", held=[
        {"lock": shown, "device": identity[0], "inode": identity[1], "holders": known[identity]}
        for shown, identity in held])  # fmt: skip


def close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


# Folders at the top of a cache for what goes or comes: modules that are cleared, an archive that is unpacked.
#
# Whoever made one holds a lock on it. What has no holder was left by a killed run, and the next one deletes it.


@contextmanager
def scratch(top: int, errors: list[str]) -> Iterator[int]:
    """A new folder in ``top``, open and locked. At the end it goes, with all that is in it."""
    name = WORK + os.urandom(8).hex()
    try:
        with _alone(top):
            os.mkdir(name, 0o700, dir_fd=top)
            work = os.open(name, FOLDER, dir_fd=top)
            fcntl.flock(work, fcntl.LOCK_EX)
    except OSError as error:
        raise Fault("refused", "the cache can't be written: " + reason(error)) from None
    try:
        own_as(work, top)
        yield work
    finally:
        try:
            remove(name, top, os.fstat(top).st_dev, errors, name)
        finally:
            os.close(work)


@contextmanager
def _alone(top: int) -> Iterator[bool]:
    """Inside, no other envgen makes or sweeps: a folder that is made and not yet locked would look left behind.

    False when that can't be had within two seconds, because another process holds the lock of ``top``.
    """
    for _ in range(40):
        try:
            fcntl.flock(top, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(0.05)
            continue
        try:
            yield True
        finally:
            fcntl.flock(top, fcntl.LOCK_UN)
        return
    yield False


def leftovers(top: int) -> dict[str, int]:
    """How much killed runs left in ``top``."""
    return _total(top, _left(top))


def sweep(top: int, errors: list[str]) -> dict[str, int]:
    """Delete it; how much it was. What can't be removed is reported in ``errors`` and stops nothing."""
    with _alone(top) as is_alone:
        names = _left(top) if is_alone else []
        found = _total(top, names)
        for name in names:
            remove(name, top, os.fstat(top).st_dev, errors, name)
    return found


def discard(names: list[str], top: int, errors: list[str]) -> None:
    """Remove these folders. Each is renamed first: what is half removed must not be taken for something whole."""
    sweep(top, errors)
    with scratch(top, errors) as work:
        for name in names:
            try:
                os.rename(name, name, src_dir_fd=top, dst_dir_fd=work)
            except OSError as error:
                if error.errno not in GONE:
                    errors.append(name + ": " + reason(error))


def run_sweep(request: dict[str, object]) -> dict[str, object]:
    """Operation ``sweep``: how much killed runs left in the cache ``root``; it goes, unless ``dry_run``."""
    errors: list[str] = []
    cache = open_cache(root_of(request), "", None)
    if cache is None:
        return {"count": 0, "bytes": 0, "errors": errors}
    try:
        found = leftovers(cache.fd) if request.get("dry_run") else sweep(cache.fd, errors)
        return {**found, "errors": errors}
    finally:
        cache.close()


def _left(top: int) -> list[str]:
    try:
        return sorted(name for name in os.listdir(top) if name.startswith(WORK) and not _is_held(name, top))
    except OSError:
        return []


def _is_held(name: str, top: int) -> bool:
    try:
        with opened(name, top) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in BUSY
    return False


def _total(top: int, names: list[str]) -> dict[str, int]:
    measured = [measure_path(name, top) for name in names]
    return {"count": len(names), "bytes": sum(one.bytes for one in measured if one is not None)}
