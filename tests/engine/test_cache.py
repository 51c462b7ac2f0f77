"""`envgen cache` on a real engine: real containers, real ninja, real locks of real processes, a real kill -9.

The modules are compiled by the real ninja from build files in the form that FlashInfer 0.5.3 and 0.7.2 write, with the
C++ compiler in place of nvcc.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from projects import BASE, docker

from envgen.__main__ import main

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

ROOT = "/root/.cache/flashinfer"
PROJECT = """\
version: 1
name: {name}
default_profile: dev
profiles:
  dev:
    mode: development
    image: {image}
    base: {{image: "{base}"}}
    cuda: {{arch_list: "12.1a"}}
    gpu: none
    caches: {{flashinfer: {{namespace: false, path: {root}}}}}
    services:
      dev: {{command: [sleep, infinity]}}
      serve: {{command: [sleep, infinity]}}
"""

# Runs in a container: lays a cache and builds it with ninja, as FlashInfer's jit/core.py and jit/cpp_ext.py do.
BUILD = r"""
import fcntl, os, subprocess, sys
version, modules = sys.argv[1], sys.argv[2:]
base = "/root/.cache/flashinfer/%s/121a" % version
ops, shared = base + "/cached_ops", version == "0.5.3"
os.makedirs(ops + "/tmp", exist_ok=True)
for name in modules:
    source = "/opt/csrc/%s.cpp" % name
    if name == "silu_and_mul":
        source = base + "/generated/silu_and_mul.cpp"
    if name.startswith("fused_moe") and not shared:
        source = base + "/generated/cutlass_instantiations/120/gemm_grouped/120/a.generated.cpp"
    os.makedirs(os.path.dirname(source), exist_ok=True)
    os.makedirs("/opt/csrc", exist_ok=True)
    open("/opt/csrc/shared.h", "a").close()
    if not os.path.exists(source):
        with open(source, "w") as file:
            file.write('#include "/opt/csrc/shared.h"\nextern "C" int %s() { return 1; }\n' % name)
    out = "$name" if shared else ops + "/" + name
    os.makedirs(ops + "/" + name, exist_ok=True)
    lines = ["ninja_required_version = 1.3", "name = " + name, "cxx = c++", "common_cflags = -DX=1 $", "    -DY=2",
             "rule compile", "  command = $cxx -MMD -MF $out.d $common_cflags -fPIC -c $in -o $out",
             "  depfile = $out.d", "  deps = gcc", "rule link", "  command = $cxx $in -shared -o $out", "",
             "build %s/x.o: compile %s" % (out, source), "", "build %s/%s.so: link %s/x.o" % (out, name, out),
             "default %s/%s.so" % (out, name), ""]
    path = ops + "/" + name + "/build.ninja"
    if not os.path.exists(path):
        open(path, "w").write("\n".join(lines))
    with open(ops + "/tmp/" + name + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        work = ops if shared else ops + "/" + name
        done = subprocess.run(["ninja", "-v", "-C", work, "-f", path], stdout=subprocess.PIPE, check=True, text=True)
        print(name, "nothing" if "no work to do" in done.stdout else "compiled")
"""
HOLD = (
    "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
    "print('held', flush=True); time.sleep(300)"
)
LOAD = "import ctypes, sys, time; ctypes.CDLL(sys.argv[1]); print('loaded', flush=True); time.sleep(300)"


class Lab:
    """A project of its own, and everything that its tests start, removed at the end."""

    def __init__(self, folder: Path) -> None:
        self.name = f"envgentestcache{uuid.uuid4().hex[:8]}"
        self.image = f"{self.name}:dev"  # a second name of the base image
        self.volume = f"{self.name}-dev-cache-flashinfer"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.containers: list[str] = []
        docker("tag", BASE, self.image)
        (folder / "envgen.yaml").write_text(PROJECT.format(name=self.name, image=self.image, base=BASE, root=ROOT))

    def start(self, service: str, *options: str, project: str | None = None, mount: str | None = None) -> str:
        """A running container that carries Compose's labels, as `envgen up` leaves it."""
        label = "com.docker.compose"
        words = ["--label", f"{label}.project={project or self.name + '-dev'}", "--label", f"{label}.service={service}"]
        source, _, mode = (mount or self.volume).partition(":")
        words += ["-v", f"{source}:{ROOT}:{mode or 'rw'}", *options, "--entrypoint", "sleep", self.image, "infinity"]
        container = docker("run", "-d", "--init", "--name", f"{self.name}-{len(self.containers)}", *words)
        self.containers.append(container)
        return container

    def build(self, container: str, version: str, *modules: str) -> dict[str, str]:
        """What ninja did for each module: compiled or nothing."""
        lines = docker("exec", "-i", container, "python3", "-", version, *modules, stdin=BUILD).splitlines()
        words = [line.split() for line in lines if len(line.split()) == 2]
        return {name: what for name, what in words if name in modules}

    def background(self, *argv: str, waits_for: str) -> None:
        """Start a process and wait until it says that it is ready."""
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().decode().strip() == waits_for

    def exists(self, container: str, path: str) -> bool:
        return docker("exec", container, "sh", "-c", f"test -e {ROOT}/{path} && echo yes", check=False) == "yes"

    def remove(self) -> None:
        for container in self.containers:
            docker("rm", "-f", container, check=False)
        for process in self.processes:
            process.kill()
            process.wait()
        docker("volume", "rm", "-f", self.volume, check=False)
        docker("image", "rm", "-f", self.image, check=False)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    monkeypatch.chdir(tmp_path)
    try:
        yield lab
    finally:
        lab.remove()


def as_json(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    capsys.readouterr()
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("version", ["0.5.3", "0.7.2.post1"])
def test_a_cleared_module_is_compiled_again_and_no_other(
    lab: Lab, capsys: pytest.CaptureFixture[str], version: str
) -> None:
    """With the shared .ninja_log of 0.5.3 too: an output that isn't there is dirty, whatever the log says."""
    container = lab.start("dev")
    modules = ("page", "rope", "silu_and_mul", "fused_moe_120")
    assert set(lab.build(container, version, *modules).values()) == {"compiled"}
    assert set(lab.build(container, version, *modules).values()) == {"nothing"}
    stamp = "stat -c '%Y.%y %i' " + f"{ROOT}/{version}/121a/cached_ops/rope/*"
    before = docker("exec", container, "sh", "-c", stamp)

    found = as_json(capsys, "cache", "list")
    assert [(m["name"], m["objects"], m["built"]) for m in found["modules"]] == [
        (name, 1, True) for name in sorted(modules)
    ]
    assert main(["cache", "clear", "page", "fused_moe_*", "silu_and_mul"]) == 0
    out = capsys.readouterr().out
    assert f"removed {version}/121a/generated/silu_and_mul.cpp" in out
    generated = f"{version}/121a/generated/cutlass_instantiations/120"
    assert (f"removed {generated}" in out) == (version != "0.5.3")
    assert not lab.exists(container, generated)
    assert lab.exists(container, f"{version}/121a/cached_ops/.ninja_log") == (version == "0.5.3")
    assert lab.exists(container, f"{version}/121a/cached_ops/tmp/page.lock")

    done = lab.build(container, version, *modules)
    assert done == {name: "nothing" if name == "rope" else "compiled" for name in modules}
    assert docker("exec", container, "sh", "-c", stamp) == before


def test_a_lock_held_in_another_container(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """The lock reaches across, and its holder is named only where this container can see it."""
    lab.build(lab.start("dev"), "0.5.3", "page")
    other = lab.start("builder", project="somebody-else")
    lock = f"{ROOT}/0.5.3/121a/cached_ops/tmp/flashinfer_jit.lock"
    lab.background("docker", "exec", other, "python3", "-c", HOLD, lock, waits_for="held")
    assert main(["cache", "clear", "page"]) == 6
    error = capsys.readouterr().err
    assert "a batch build runs in 0.5.3/121a, by a process of another container, or of the machine itself" in error


def test_who_must_be_restarted(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    dev, serve = lab.start("dev"), lab.start("serve")
    lab.build(dev, "0.5.3", "page", "rope")
    library = f"{ROOT}/0.5.3/121a/cached_ops/page/page.so"
    lab.background("docker", "exec", serve, "python3", "-c", LOAD, library, waits_for="loaded")
    assert as_json(capsys, "cache", "clear", "rope")["restart"] == []
    assert as_json(capsys, "cache", "clear", "page", "--dry-run")["restart"] == ["serve"]
    assert main(["cache", "clear", "page"]) == 0
    assert "restart serve: it still runs page (pid " in capsys.readouterr().out


def test_a_kill_in_mid_clear_is_finished_by_the_next(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    container = lab.start("dev")
    lab.build(container, "0.5.3", "page", "rope")
    ops = f"{ROOT}/0.5.3/121a/cached_ops"
    many = f"import os; [open('{ops}/page/%d.o' % i, 'w').close() for i in range(60000)]"
    docker("exec", container, "python3", "-c", many)
    # It waits inside: a `docker exec` for each look would come too late on a busy machine.
    kill = (
        f"until ls -d {ROOT}/.envgen-work-*/0; do sleep 0.005; done; "
        "kill -9 $(grep -l '[e]nvgen-inside' /proc/[0-9]*/cmdline | cut -d/ -f3)"
    )
    killer = subprocess.Popen(
        ["docker", "exec", container, "sh", "-c", kill], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    lab.processes.append(killer)
    command = subprocess.Popen([sys.executable, "-m", "envgen", "cache", "clear", "page"], stderr=subprocess.PIPE)
    lab.processes.append(command)
    _, error = command.communicate(timeout=60)
    assert command.returncode == 3, error
    assert b"gave no answer" in error
    assert not lab.exists(container, "0.5.3/121a/cached_ops/page")
    left = as_json(capsys, "cache", "list")["leftovers"]
    assert left["count"] == 1
    assert main(["cache", "clear", "page"]) == 1  # gone already, but what was left of it goes now
    assert docker("exec", container, "sh", "-c", f"ls -A {ROOT}").split() == ["0.5.3"]
    assert docker("exec", container, "sh", "-c", f"ls -A {ops}").split() == [".ninja_deps", ".ninja_log", "rope", "tmp"]
    assert lab.build(container, "0.5.3", "page", "rope") == {"page": "compiled", "rope": "nothing"}


def test_a_read_only_mount_is_refused(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    container = lab.start("dev")
    lab.build(container, "0.5.3", "page")
    docker("rm", "-f", container)
    lab.start("dev", mount=f"{lab.volume}:ro")
    assert len(as_json(capsys, "cache", "list")["modules"]) == 1
    assert main(["cache", "clear", "page"]) == 6
    assert "ead-only" in capsys.readouterr().err
