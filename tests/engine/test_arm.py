"""linux/arm64, which a Spark is: on an x86-64 machine under QEMU, registered for the length of this file.

The base is the stand-in for ARM under a name of its own, without PyTorch, which no profile here has. What runs in it
are real aarch64 programs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from projects import BASE, Project
from rendering import package

from envgen.engine.client import Engine

pytestmark = [pytest.mark.engine, pytest.mark.nightly]  # its base takes ten minutes where no cache has it

SCRIPTS = Path(__file__).parents[2] / "scripts"
ARM_BASE = "envgen-test-arm-base:1"
FILE = """
profiles:
  dev:
    mode: development
    base: {{image: "{base}"{platform}}}
    python_path: [/workspace/lib]
    pip: {{tools: [ninja]}}
    caches: {{flashinfer: {{path: /root/.cache/flashinfer}}}}
    sources:
      lib:
        origin: {{checkout: lib}}
        package: lib
        distribution: lib
        mount: /workspace/lib
        console_scripts: [lib-cli]
    services:
      dev: {{command: [sleep, infinity]}}
"""


def script(*words: str, check: bool = True) -> int:
    done = subprocess.run([SCRIPTS / words[0], *words[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done.returncode


@pytest.fixture(scope="module")
def arm_base(engine: Engine) -> Iterator[str]:
    registered = script("emulator", "status", check=False) == 0
    script("emulator", "up")
    try:
        script("stand-in-base", "--arch", "arm64", "--no-torch", ARM_BASE)
        yield ARM_BASE
    finally:
        if not registered:
            script("emulator", "down")


@pytest.fixture(scope="module")
def project(arm_base: str, make_project: Callable[..., Project]) -> Project:
    made = make_project("envgentestarm", FILE.format(base=arm_base, platform=", platform: linux/arm64"))
    package(made.root / "lib", "lib")
    made.envgen("build")
    made.envgen("up", "dev")
    return made


def test_the_main_job(project: Project) -> None:
    """Built, installed from the mount, green, and the real aarch64 wheel of ninja runs."""
    assert project.envgen("exec", "dev", "--", "uname", "-m").out == "aarch64\n"
    assert project.envgen("exec", "dev", "--", "lib-cli").out == "lib as released\n"
    program = project.envgen("exec", "dev", "--", "sh", "-c", 'od -An -tu2 -j18 -N2 "$(which ninja)"')
    assert program.out.split() == ["183"]  # the ELF header's aarch64
    assert project.envgen("exec", "dev", "--", "ninja", "--version").out.startswith("1.")
    found = project.envgen("doctor", "--json").json["findings"]
    # The machine of the test may have little room or an old Compose; nothing else may be noted.
    noted = [one["check"] for one in found if one["severity"] != "ok" and not one["check"].startswith("host.")]
    assert len(found) > 10 and noted == []


def test_modules_of_the_other_architecture_are_foreign(project: Project) -> None:
    """A cache folder that an x86-64 container filled: ARM can't load it."""
    program = (
        "import pathlib, sys; ops = pathlib.Path.home() / '.cache/flashinfer/0.5.3/121a/cached_ops'\n"
        "for name, code in (('page', 62), ('norm', 183)):\n"
        "    (ops / name).mkdir(parents=True)\n"
        "    head = b'\\x7fELF'.ljust(16, b'\\0') + bytes((3, 0)) + code.to_bytes(2, 'little')\n"
        "    (ops / name / (name + '.so')).write_bytes(head + bytes(64))\n"
        "    (ops / name / 'build.ninja').touch()\n"
    )
    project.envgen("exec", "dev", "--", "python3", "-c", program)
    states = {one["name"]: one["state"] for one in project.envgen("cache", "list", "--json").json["modules"]}
    assert states["page"] == "foreign" and states["norm"] != "foreign"
    assert "x86_64" in project.envgen("cache", "why", "page", code=None).out
    assert "removed page" in project.envgen("cache", "clear", "page").out


def test_the_gate_reads_memory_and_cores(project: Project) -> None:
    done = project.envgen("exec", "dev", "--", "compile-gate", "cc", "-x", "c", "-c", "/dev/null", "-o", "/tmp/x.o")
    assert done.code == 0
    machine = project.envgen("exec", "dev", "--", "od", "-An", "-tu2", "-j18", "-N2", "/tmp/x.o")
    assert machine.out.split() == ["183"]


def test_a_lock_of_one_platform_is_not_used_for_another(project: Project, make_project: Callable[..., Project]) -> None:
    other = make_project("envgentestarmlock", FILE.format(base=BASE, platform=""))
    package(other.root / "lib", "lib")
    project.envgen("lock")
    lock = project.root / "envgen.lock"
    text = lock.read_text()
    lock.unlink()  # the image was built without
    assert "linux/arm64" in text
    text = text.replace(ARM_BASE.partition(":")[0], BASE.rpartition(":")[0])
    (other.root / "envgen.lock").write_text(text.replace(":1:\n", f":{BASE.rpartition(':')[2]}:\n"))
    done = other.envgen("build", code=6)
    assert "the Python packages for linux/amd64 are not locked" in done.err
    assert "envgen lock --profile dev" in done.err
