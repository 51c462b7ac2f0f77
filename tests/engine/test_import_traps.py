"""Everything that makes Python import another file than the profile's: each is red, and its fix, typed, makes it green.

One image and one set of containers. Each batch of traps catches three packages at once: stand-ins for flashinfer and
vllm (their names, as small real packages) and one with a `src` layout. docs/doctor.md has the table.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from local import until
from projects import BASE, Project, docker
from rendering import package

pytestmark = pytest.mark.engine

NAME = "envgentesttraps"
HOMES = {
    "flashinfer": "/workspace/flashinfer/flashinfer/__init__.py",
    "vllm": "/workspace/vllm/vllm/__init__.py",
    "mine": "/workspace/mine/src/mine/__init__.py",
}
SERVER = "import time, flashinfer\nprint('serving', flashinfer.__file__, flush=True)\ntime.sleep(600)\n"
# The ways in which a server imported another copy behind doctor's back.
SERVERS: dict[str, dict[str, Any]] = {
    "beside": {"command": ["python3", "/app/server.py"]},
    "workdir": {"command": ["python3", "-m", "server"], "working_dir": "/app/evil"},
    "pypath": {"command": ["sh", "-c", "PYTHONPATH=/app/evil exec python3 /right/server.py"]},
}


def stand_in(root: Path, name: str) -> None:
    """A package that has what doctor asks of the real one."""
    names = {"flashinfer": ["single_prefill_with_kv_cache", "BatchDecodeWithPagedKVCacheWrapper"],
             "vllm": ["LLM", "SamplingParams"]}.get(name, [])  # fmt: skip
    distribution = f"{name}-python" if name == "flashinfer" else name
    package(root, name, source="".join(f"def {one}(): pass\n" for one in names) or "HERE = 1\n")
    file = root / "pyproject.toml"
    text = file.read_text().replace(f'name = "{name}"', f'name = "{distribution}"')
    if name == "mine":
        (root / "src").mkdir()
        (root / name).rename(root / "src" / name)
        text = text.replace('packages = ["mine"]', 'package-dir = {"" = "src"}')
    file.write_text(text)
    for part in ("csrc", "include", "cutlass", "spdlog") if name == "flashinfer" else ():
        (root / name / "data" / part).mkdir(parents=True)
        (root / name / "data" / part / "x").touch()
    git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "as released"], ["config", "user.name", "t"],
                  ["config", "user.email", "t@localhost"]):  # fmt: skip
        subprocess.run([*git, *words], check=True)


class Traps:
    """The project, its file, and what doctor says."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.file = project.root / "envgen.yaml"
        self.text = self.file.read_text()

    def sh(self, script: str, service: str = "dev") -> None:
        docker("exec", f"{NAME}-dev-{service}-1", "sh", "-ec", script)

    def findings(self, service: str = "dev") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.project.envgen("doctor", service, "--json", code=None).json["findings"]
        assert not [one for one in found if one["evidence"].get("case") == "defect"], found
        return found

    def red(self, check: str, service: str = "dev") -> dict[str, dict[str, Any]]:
        """Source (or service) -> the only finding of a check about it that is not fine."""
        every = [one for one in self.findings(service) if one["check"] == check]
        bad = [one for one in every if one["severity"] in ("warning", "error")]
        keys = [re.split("[: ]", one["title"])[0] for one in bad]  # "vllm: can't be imported", "serve runs older code"
        assert len(set(keys)) == len(keys), bad
        return dict(zip(keys, bad, strict=True))

    def type(self, finding: dict[str, Any]) -> None:
        """Type a fix: a command in a shell, or a line into the profile."""
        text = finding["remedy"]["text"]
        if finding["remedy"]["kind"] == "profile":
            self.write(yaml.safe_load(text))
            return
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["sh", "-c", text], cwd=self.project.root, env={**os.environ, "PATH": path}, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"

    def write(self, line: dict[str, Any]) -> None:
        """Set the line's keys in the profile, and what is below them, as somebody who types it would."""
        document = yaml.safe_load(self.file.read_text())
        profile = document["profiles"]["dev"]
        for key, value in line.items():
            if key == "services":
                for service, settings in value.items():
                    profile["services"][service] |= settings
            else:
                profile[key] = value
        self.file.write_text(yaml.safe_dump(document, sort_keys=False))

    def anew(self, *services: str) -> None:
        """New containers; PYTHONPATH is in the image."""
        self.project.envgen("up", "--build", *services, "--recreate")


@pytest.fixture(scope="module")
def made(make_project: Callable[..., Project]) -> Traps:
    dev = {"command": ["sleep", "infinity"], "mounts": {"app": "./app:/app:ro"}}
    common = {"mounts": {"app": "./app:/app:ro", "right": "./right:/right:ro"}}
    profile = {
        "mode": "development", "base": {"image": BASE}, "cuda": {"arch_list": "12.1a"}, "gpu": "none",
        "build": {"ccache": False}, "working_dir": "/workspace",
        "python_path": ["/workspace/flashinfer", "/workspace/vllm", "/workspace/mine/src"],
        "sources": {
            name: {"origin": {"checkout": name}, "package": name, "mount": f"/workspace/{name}",
                   "distribution": "flashinfer-python" if name == "flashinfer" else name,
                   "install": {"requires": ["setuptools"]}}
            for name in HOMES
        },
        "services": {
            "dev": dev, **{name: {**common, **one} for name, one in SERVERS.items()},
        },
    }  # fmt: skip
    text = yaml.safe_dump({"default_profile": "dev", "profiles": {"dev": profile}}, sort_keys=False)
    project = make_project(NAME, text)
    for name in HOMES:
        stand_in(project.root / name, name)
    files = {
        "app/server.py": SERVER, "app/flashinfer/__init__.py": "", "app/evil/server.py": SERVER,
        "app/evil/flashinfer/__init__.py": "", "right/server.py": SERVER,
    }  # fmt: skip
    for path, content in files.items():
        (project.root / path).parent.mkdir(parents=True, exist_ok=True)
        (project.root / path).write_text(content)
    project.envgen("build")
    project.envgen("up", "dev")
    return Traps(project)


@pytest.fixture
def traps(made: Traps) -> Iterator[Traps]:
    """Green before and after each test; what the file says is as it was."""
    yield made
    if made.file.read_text() != made.text:
        made.file.write_text(made.text)
        made.anew("dev")


def green(traps: Traps) -> None:
    found = {one["title"] for one in traps.findings() if one["check"] == "import.truth"}
    assert {title.rpartition(" (")[0] for title in found} == {f"{name} is {file}" for name, file in HOMES.items()}


# --- files that are found first ---------------------------------------------------------------------------------------

EVIL = "mkdir -p /evil/{0} && echo EVIL=1 >/evil/{0}/__init__.py\n"
SITE = "/opt/envgen/env/lib/python3*/site-packages"
PATHS = "import sys; sys.path.insert(0, '{}')"
# Name -> package -> (what a user or a tool does in the container, case, the file that is named).
FILES: dict[str, dict[str, tuple[str, str, str]]] = {
    "an __init__.py in the checkout's root": {
        name: (f"touch /workspace/{name}/__init__.py", "other-file", f"/workspace/{name}/__init__.py") for name in HOMES
    },
    "a file or folder of that name where Python starts": {
        "flashinfer": ("touch /workspace/flashinfer.py", "shadowed", "/workspace/flashinfer.py"),
        "vllm": ("mkdir ~/vllm && touch ~/vllm/__init__.py", "other-copy", "/root/vllm/__init__.py"),
        "mine": ("touch ~/mine.py", "shadowed", "/root/mine.py"),
    },
    "what changes sys.path when Python starts": {
        "flashinfer": (EVIL.format("flashinfer") + f"cd {SITE} && echo \"{PATHS.format('/evil')}\" >evil.pth",
                       "other-copy", "site-packages/evil.pth"),
        "vllm": ("mkdir -p /tmp/z/vllm && touch /tmp/z/vllm/__init__.py && cd /tmp/z && python3 -m zipfile -c /evil.zip"
                 f" vllm && cd {SITE} && echo \"{PATHS.format('/evil.zip')}\" >zip.pth",
                 "other-copy", "site-packages/zip.pth"),
        "mine": (EVIL.format("mine").replace("/evil", "/evil2")
                 + f"echo \"{PATHS.format('/evil2')}\" >/workspace/mine/src/sitecustomize.py",
                 "other-copy", "/workspace/mine/src/sitecustomize.py"),
    },
    "a file that is broken": {
        "vllm": (f"echo 'def LLM(:' >{HOMES['vllm']}", "fails", HOMES["vllm"]),
    },
}  # fmt: skip


@pytest.mark.parametrize("trap", FILES)
def test_files_that_are_found_first(traps: Traps, trap: str) -> None:
    rows = FILES[trap]
    traps.sh("\n".join(script for script, _, _ in rows.values()))
    red = traps.red("import.truth")
    assert {name: one["evidence"]["case"] for name, one in red.items()} == {
        name: case for name, (_, case, _) in rows.items()
    }
    for name, (_, _, file) in rows.items():
        assert file in red[name]["seen"], red[name]
        traps.type(red[name])
    green(traps)


def test_an_import_that_fails(traps: Traps) -> None:
    """The right file is found, and what it needs is not there, or it raises."""
    traps.sh(
        "".join(f"cp {HOMES[name]} /tmp/{name}.kept; " for name in ("vllm", "mine"))
        + f"echo 'import not_there' >>{HOMES['vllm']}; echo 'raise RuntimeError(7)' >>{HOMES['mine']}"
    )
    red = traps.red("import.truth")
    assert {name: one["evidence"]["case"] for name, one in red.items()} == {"vllm": "fails", "mine": "fails"}
    assert "No module named 'not_there'" in red["vllm"]["seen"] and "RuntimeError: 7" in red["mine"]["seen"]
    traps.sh("".join(f"mv /tmp/{name}.kept {HOMES[name]}; " for name in ("vllm", "mine")))
    green(traps)


# --- what pip and uv install ------------------------------------------------------------------------------------------


def test_installations_of_another_copy(traps: Traps) -> None:
    """Metadata and code disagree: a wheel by pip, one by uv, an editable install of another folder."""
    copy = "cp -a /workspace/{0} /tmp/{0} && cd /tmp/{0} && sed -i 's/1\\.5/1.4/' pyproject.toml && "
    how = {"flashinfer": "pip install", "vllm": "uv pip install", "mine": "pip install -e"}
    for name, command in how.items():
        first, *rest = command.rpartition(" -e")[::2] if command.endswith(" -e") else (command, "")
        flag = "-e " if rest == [""] and command.endswith("-e") else ""
        traps.sh(copy.format(name) + f"{first} -q --no-deps --no-build-isolation --no-index {flag}.")
    red = {one["title"]: one for one in traps.findings() if one["check"] == "import.metadata" and one["remedy"]}
    assert sorted((title.split()[0], one["evidence"]["case"]) for title, one in red.items()) == [
        ("flashinfer-python", "second"), ("mine", "other-folder"), ("vllm", "second"),
    ]  # fmt: skip
    for one in red.values():
        traps.type(one)
    assert {one["severity"] for one in traps.findings() if one["check"] == "import.metadata"} == {"ok"}


# --- variables --------------------------------------------------------------------------------------------------------


def test_python_path_of_the_profile(traps: Traps) -> None:
    """One entry too many, in front, and one too few: the same line is right for both."""
    traps.write({"python_path": ["/evil", "/workspace/flashinfer", "/workspace/mine/src"]})
    traps.anew("dev")
    traps.sh(EVIL.format("flashinfer"))
    red = traps.red("import.truth")
    assert {name: one["evidence"]["case"] for name, one in red.items()} == {"flashinfer": "other-copy", "vllm": "trap"}
    line = "python_path: [/workspace/vllm, /workspace/flashinfer, /workspace/mine/src]"
    assert red["flashinfer"]["remedy"] == {"kind": "profile", "text": line}
    traps.type(red["flashinfer"])
    traps.anew("dev")
    green(traps)


# --- programs that run ------------------------------------------------------------------------------------------------


def serving(traps: Traps, service: str) -> str:
    """What the server itself says that it has imported."""
    until(lambda: "serving" in docker("logs", f"{NAME}-dev-{service}-1"))
    return docker("logs", f"{NAME}-dev-{service}-1").rpartition("serving ")[2].strip()


def test_servers_that_import_another_copy(traps: Traps) -> None:
    """Each server prints which one it has; doctor says the same of all of them, and that all of them are right after
    the fixes."""
    traps.project.envgen("up", *SERVERS)
    wrong = {name: serving(traps, name) for name in SERVERS}
    assert set(wrong.values()) == {"/app/flashinfer/__init__.py", "/app/evil/flashinfer/__init__.py"}
    red = traps.red("import.running")
    assert {name: one["evidence"]["origin"] for name, one in red.items()} == wrong
    assert {one["evidence"]["case"] for one in red.values()} == {"other"}
    assert "the entry /app of sys.path" in red["beside"]["seen"]
    assert "its PYTHONPATH is /app/evil, not the container's" in red["pypath"]["seen"]
    moved = set[str]()
    for one in red.values():  # two have the same folder in their way: it is moved once
        move, _, restart = one["remedy"]["text"].partition(" && ")
        text = restart if move in moved else one["remedy"]["text"]
        moved.add(move)
        traps.type({"remedy": {"kind": "command", "text": text}})
    assert {serving(traps, name) for name in SERVERS} == {HOMES["flashinfer"]}
    findings = [one for one in traps.findings() if one["check"] == "import.running"]
    assert {one["severity"] for one in findings} == {"ok"}, findings
    assert {one["title"].partition(":")[0] for one in findings} == {*SERVERS}
    traps.project.envgen("down", *SERVERS)


def test_a_server_that_is_older_than_an_edit(traps: Traps) -> None:
    """An edit, and one with an old time (as `rsync -a` and `tar` leave it)."""
    traps.project.envgen("up", "pypath")
    folder = traps.project.root / "flashinfer/flashinfer"
    cli = folder / "cli.py"
    text = cli.read_text()

    def rsync() -> None:
        cli.write_text(text + "# another edit\n")
        os.utime(cli, (1_700_000_000, 1_700_000_000))

    time.sleep(1.1)  # the kernel tells when a process started to a second
    for edit in (lambda: cli.write_text(text + "# an edit\n"), rsync):
        traps.project.envgen("restart", "pypath")
        serving(traps, "pypath")
        time.sleep(1.1)
        assert not traps.red("import.running", "pypath")
        edit()
        found = traps.red("import.running", "pypath")["pypath"]
        assert (found["evidence"]["case"], found["severity"]) == ("older", "warning")
        assert "/workspace/flashinfer/flashinfer/cli.py was changed" in found["seen"]
        assert shlex.split(found["remedy"]["text"])[1] == "restart"
    traps.type(found)
    assert not traps.red("import.running", "pypath")
