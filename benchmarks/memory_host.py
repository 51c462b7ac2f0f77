"""What eats memory on a whole machine without a limit, with and without
docker/runtime/libexec/memory-guard: an emulated machine, so that the real one is in no danger.
Prints a table of Markdown.

    apt-get install qemu-system-x86 e2fsprogs
    python benchmarks/memory_host.py

The machine is QEMU's, emulated (TCG: slower than a real one, but it needs no KVM), with two cores,
2 GiB of memory and a disk; Debian 12's kernel, Python and busybox come by apt-get. No container
engine runs in it: the entry point starts guard and eater in a PID namespace of their own. Two kinds
of memory are eaten: a program's own, and a file in memory that no process has mapped (memfd), as a
GPU's driver takes it: the kernel's killer does not see whose it is.
An eater stops at nothing. The heartbeat starts another program, from the disk, every 0.1 s.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

RUNTIME = Path(__file__).resolve().parents[1] / "docker/runtime"
LIBRARIES = ["libc6", "zlib1g", "libexpat1", "libffi8", "libgcc-s1", "libcrypt1", "busybox-static"]
PYTHON = ["python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib"]  # Debian 12
MODULES = [
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
]
PATIENCE = 120  # seconds for one machine
INITRD = """#!/busybox sh
/busybox mount -t proc proc /proc
for one in MODULES; do /busybox insmod /$one.ko; done
/busybox mount -t devtmpfs dev /dev
while ! /busybox mount -t ext4 /dev/vda /new 2>/dev/null; do /busybox sleep 0.1; done
exec /busybox switch_root /new /bin/busybox sh /init
"""
INIT = """
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev; $b mount -t tmpfs run /run
$b mount -t cgroup2 none /sys/fs/cgroup
for word in $($b cat /proc/cmdline); do case $word in floor=*|rate=*|kind=*|swap=*) export $word;; esac; done
if [ $swap = 1 ]; then $b mkswap /dev/vdb >/dev/null; $b swapon /dev/vdb; fi
/usr/bin/python3.11 -I -S /heartbeat >/dev/ttyS0 2>&1 &
heart=$!
$b sleep 3
export ENVGEN_MEMORY_FLOOR=$floor python="/usr/bin/python3.11 -I -S"
$b unshare -p -f --mount-proc $b sh -c \\
    '$python /lib-envgen/record-env $python /eat $rate $kind 3>&1 & wait $!; echo code $?' </dev/null >/dev/ttyS0 2>&1
$b sleep 3
$b dmesg | $b grep -E 'Out of memory: Killed|oom-kill:|deadlocked' >/dev/ttyS0
$b kill -0 $heart && echo heartbeat lives >/dev/ttyS0
echo ended >/dev/ttyS0
$b sleep 1
$b poweroff -f
"""
HEARTBEAT = """
import os, time
last = time.monotonic()
while True:
    if not os.fork():
        os.execv('/bin/busybox', ['busybox', 'true'])
    os.wait()
    now = time.monotonic()
    os.write(1, b'beat %.3f %.3f\\n' % (now, now - last))
    last = now
    time.sleep(0.1)
"""
EAT = """
import os, sys, time
rate, kind, block, kept = int(sys.argv[1]), sys.argv[2], b'x' * (1 << 22), []
file = os.memfd_create('x') if kind == 'memfd' else -1
began = time.monotonic()
for n in range(1 << 20):
    if kind == 'memfd':
        os.write(file, block)
    else:
        kept.append(bytearray(block))
    spent = time.monotonic() - began
    time.sleep(max(0, (n << 22) / rate - spent))
    if n % 64 == 63:
        os.write(1, b'eats %d\\n' % (((n + 1) << 22) / spent / (1 << 20)))
"""


def newc(files: list[tuple[str, int, bytes]]) -> bytes:
    """An archive as the kernel unpacks it (cpio, newc)."""
    made = bytearray()
    for number, (name, mode, content) in enumerate([*files, ("TRAILER!!!", 0, b"")], 1):
        numbers = [number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
        made += b"070701" + b"".join(b"%08X" % one for one in numbers) + name.encode() + b"\0"
        made += b"\0" * (-len(made) % 4) + content
        made += b"\0" * (-len(made) % 4)
    return bytes(made)


def prepare(folder: Path) -> None:
    """``kernel``, ``initrd`` and ``disk`` in ``folder``."""
    asked = ["apt-cache", "depends", "linux-image-cloud-amd64"]
    depends = subprocess.run(asked, check=True, capture_output=True, text=True)
    image = re.search(r"Depends: (linux-image-\S+)", depends.stdout)
    assert image is not None
    subprocess.run(
        ["apt-get", "download", image[1], *LIBRARIES, *PYTHON],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    root, kernel = folder / "root", folder / "linux"
    for package in folder.glob("*.deb"):
        subprocess.run(
            ["dpkg-deb", "-x", package, kernel if package.name.startswith("linux") else root],
            check=True,
        )
    shutil.copy(next((kernel / "boot").glob("vmlinuz-*")), folder / "kernel")
    files = [(name, 0o040755, b"") for name in ("proc", "dev", "new")]
    files += [("busybox", 0o100755, (root / "bin/busybox").read_bytes())]
    files += [("init", 0o100755, INITRD.replace("MODULES", " ".join(MODULES)).encode())]
    for name in MODULES:
        for found in kernel.rglob(f"{name}.ko"):
            files.append((f"{name}.ko", 0o100644, found.read_bytes()))
    (folder / "initrd").write_bytes(gzip.compress(newc(files), 1))
    for name in ("proc", "sys", "dev", "run", "tmp", "etc"):
        (root / name).mkdir(exist_ok=True)
    shutil.copytree(RUNTIME / "lib", root / "lib-envgen")
    for name, text in (("init", INIT), ("heartbeat", HEARTBEAT), ("eat", EAT)):
        (root / name).write_text(text)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", root, folder / "disk", "400M"], check=True)


def boot(folder: Path, **words: object) -> tuple[str, bool]:
    """What such a machine wrote, and whether it went off by itself."""
    (folder / "swap").write_bytes(b"")
    with (folder / "swap").open("r+b") as file:
        file.truncate(1 << 30)
    text = "console=ttyS0 panic=-1 quiet no_timer_check " + " ".join(
        f"{name}={value}" for name, value in words.items()
    )
    drives = [f"file={folder}/{name},format=raw,if=virtio,snapshot=on" for name in ("disk", "swap")]
    command: list[str | Path]
    command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-m", "2048", "-smp", "2", "-nographic",
               "-no-reboot", "-nic", "none",
               "-kernel", folder / "kernel", "-initrd", folder / "initrd", "-append", text,
               "-drive", drives[0], "-drive", drives[1]]  # fmt: skip
    log = folder / "log"
    with log.open("wb") as output, contextlib.ExitStack() as stack:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        stack.callback(child.kill)
        until = time.monotonic() + PATIENCE
        while child.poll() is None and time.monotonic() < until:
            time.sleep(0.5)
        off = child.poll() is not None
    return log.read_text(errors="replace"), off


def row(folder: Path, kind: str, rate: int, swap: bool, floor: str) -> str:
    log, off = boot(folder, kind=kind, rate=rate << 20, swap=int(swap), floor=floor)
    beats = [(float(at), float(gap)) for at, gap in re.findall(r"beat ([0-9.]+) ([0-9.]+)", log)]
    settled = [gap for at, gap in beats if at > beats[0][0] + 2]
    reached = [int(one) for one in re.findall(r"eats (\d+)", log)]
    killed = dict(re.findall(r"Out of memory: Killed process (\d+) \(([^)]+)\)", log))
    panic = re.search(r"Kernel panic[^\r\n]*", log)
    code = re.search(r"code (\d+)", log)
    by = (
        "the guard"
        if "ending the service" in log
        else ("the kernel's killer" if killed else "nobody")
    )
    ended = f"{by}, exit code {code[1]}" if code else f"{by}; the eater lived"
    ended += f"; it killed {len(killed)}" if killed else ""
    ended += f"; {panic[0]}" if panic else "" if off else f"; switched off after {PATIENCE} s"
    what = "a program's own" if kind == "own" else "of no process"
    lost = f"{max(settled) - 0.1:.2f} s" if settled else "-"
    lost += "" if "heartbeat lives" in log else ", then all"
    speed = f"{rate} MiB/s (reached {max(reached, default=0)})"
    return f"| {what} | {speed} | {'1 GiB' if swap else 'none'} | {floor} | {ended} | {lost} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        print(
            "| memory | rate | swap | floor | ended by | the heartbeat lost |\n| --- | --- | --- | --- | --- | --- |"
        )
        for kind, swap in (("memfd", False), ("own", False), ("own", True)):
            for rate in (2048, 50):
                for floor in ("off", "256MiB"):
                    print(row(folder, kind, rate, swap, floor), flush=True)


if __name__ == "__main__":
    main()
