"""The scripts that rendered Dockerfiles carry, run as they stand: real git repositories, HTTP servers on loopback."""

from __future__ import annotations

import base64
import ctypes
import fcntl
import hashlib
import http.server
import importlib.metadata
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uv
from hypothesis import given
from hypothesis import strategies as st
from local import Quiet, serving

from envgen.explain import Circumstances
from envgen.explain.read import cause_of

DOCKER = Path(__file__).resolve().parents[2] / "docker"
SCRIPTS = {
    path.name: path
    for path in DOCKER.glob("*/**/*")
    if path.is_file() and path.relative_to(DOCKER).parts[0] != "profiles"
}


def run(script: str, *argv: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> tuple[int, str]:
    interpreter = sys.executable if SCRIPTS[script].read_text().startswith("#!/usr/bin/env python3") else "sh"
    ours = ("PIP_", "UV_", "SSL_", "APT_", "REQUESTS_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(ours) and "proxy" not in k.lower()}
    done = subprocess.run(
        [interpreter, str(SCRIPTS[script]), *map(str, argv)],
        env={**clean, "PIP_CONFIG_FILE": os.devnull, **(env or {})},
        cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


# --- servers ----------------------------------------------------------------------------------------------------------


SILENT = "application/silent"  # half of the answer, and then nothing


class Server(http.server.ThreadingHTTPServer):
    """Answers from a dict; counts requests; a path's answers may be a list of (status, body)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, list[tuple[int, bytes, str]]] = {}
        self.asked: list[tuple[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, path: str, body: bytes, kind: str = "text/html", status: int = 200) -> None:
        self.answers.setdefault(path, []).append((status, body, kind))


class Handler(Quiet):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization", "")))
        answers = self.server.answers.get(self.path, [(404, b"", "text/html")])
        status, body, kind = answers.pop(0) if len(answers) > 1 else answers[0]
        if kind == SILENT:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            time.sleep(3)
        else:
            self.reply(body, status, kind)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    with serving(found):
        yield found


# --- fetch file -------------------------------------------------------------------------------------------------------


def test_the_first_place_with_the_right_bytes_wins(server: Server, tmp_path: Path) -> None:
    server.put("/wrong", b"other")
    server.put("/right", b"words")
    digest = hashlib.sha256(b"words").hexdigest()
    wrong = [tmp_path / "missing", f"{server.url}/gone", f"{server.url}/wrong"]
    code, output = run("fetch", "file", tmp_path / "out/file", digest, *wrong)
    assert code == 1 and "no address gave file" in output and not (tmp_path / "out").exists()
    code, output = run("fetch", "file", tmp_path / "out/file", digest, *wrong, f"{server.url}/right")
    assert code == 0 and "404" in output and f"expected {digest}" in output
    assert (tmp_path / "out/file").read_bytes() == b"words"


def test_a_server_that_falls_silent_is_tried_again_and_no_password_is_shown(server: Server, tmp_path: Path) -> None:
    server.put("/words", b"words", SILENT)
    server.put("/words", b"words")
    place, digest = server.url.replace("://", "://user:secret@") + "/words", hashlib.sha256(b"words").hexdigest()
    code, output = run("fetch", "file", tmp_path / "file", digest, place, env={"PIP_DEFAULT_TIMEOUT": "1"})
    assert code == 0 and "trying again" in output and "secret" not in output, output
    assert (tmp_path / "file").read_bytes() == b"words"


# --- with-network, with-index, apply-patches, protect, envgen-health --------------------------------------------------


def test_a_ca_is_added_to_the_systems_and_forgotten(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----MARK-----\n")
    same = "REQUESTS_CA_BUNDLE PIP_CERT CURL_CA_BUNDLE GIT_SSL_CAINFO NODE_EXTRA_CA_CERTS"
    show = 'grep -c MARK "$SSL_CERT_FILE"; cat "$APT_CONFIG"; echo "$SSL_CERT_FILE"; '
    show += f'for v in {same}; do eval "[ \\$$v = $SSL_CERT_FILE ]" || echo "no $v"; done; exit 7'
    code, output = run("with-network", "sh", "-c", show, env={"ENVGEN_CA": str(tmp_path / "ca.pem")})
    assert code == 7
    count, apt, bundle = output.splitlines()
    assert count == "1"
    assert apt == f'Acquire::https::CAInfo "{bundle}";'
    assert not Path(bundle).exists()
    (tmp_path / "ca.pem").write_text("")
    for name in ("ca.pem", "none"):  # without one nothing is set
        env = {"ENVGEN_CA": str(tmp_path / name)}
        assert run("with-network", "sh", "-c", 'echo "[${SSL_CERT_FILE:-}]"', env=env) == (0, "[]\n")


def test_uv_gets_pips_configuration(server: Server, tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text(
        f"[global]\nindex-url = {server.url}/simple\nextra_index_url =\n  https://two.example\n  https://three.example\n"
        "[install]\nfind-links = /wheels /more\ntrusted-host = one.example\n"
    )
    show = 'echo "$UV_DEFAULT_INDEX|$UV_INDEX|$UV_FIND_LINKS|$UV_INSECURE_HOST|${PIP_NO_INDEX:-}"'
    code, output = run(
        "with-index", "sh", "-c", show, env={"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "HOME": str(tmp_path)}
    )
    assert (code, output) == (
        0,
        f"{server.url}/simple|https://two.example https://three.example|/wheels,/more|one.example|\n",
    )
    env = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "HOME": str(tmp_path), "PIP_INDEX_URL": f"{server.url}/env"}
    assert run("with-index", "sh", "-c", show, env=env)[1].startswith(f"{server.url}/env|")
    env["UV_DEFAULT_INDEX"] = "https://uv.example"
    assert run("with-index", "sh", "-c", show, env=env)[1].startswith("https://uv.example|")


def test_where_no_index_answers_wheels_at_hand_are_enough(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    env = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    code, output = run("with-index", "sh", "-c", 'echo "no index: $PIP_NO_INDEX"', env=env)
    assert code == 0 and "no index: 1\n" in output
    assert "no package index answers (127.0.0.1: " in output


def test_patches_apply_exactly_or_not_at_all(tmp_path: Path) -> None:
    """Also below a folder that is somebody else's repository, where `git apply` would skip the files."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    folder = tmp_path / "build/src"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("one\n")
    for name, old, code in (("good", "one", 0), ("fuzzy", "uno", 1)):
        (tmp_path / f"{name}.patch").write_text(edit("a.py", old))
        done, output = run("apply-patches", folder, tmp_path / f"{name}.patch")
        assert done == code and (code == 0 or "fuzzy.patch does not apply" in output), output
        assert (folder / "a.py").read_text() == "two\n"


class Site:
    """A package as pip installs it, with what its wheel carries, and the script that patches it."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.root, self.record = folder / "site", folder / "patches.json"
        self.script = folder / "apply-patches"
        moved = f"RECORD = {str(self.record)!r}"
        self.script.write_text(
            SCRIPTS["apply-patches"].read_text().replace('RECORD = "/opt/envgen/patches.json"', moved)
        )
        self.patches = folder / "patches/kit"
        self.patches.mkdir(parents=True)
        listed = [*files, "kit-1.dist-info/METADATA", "kit-1.dist-info/RECORD"]
        files = {**files, listed[-2]: "Metadata-Version: 2.1\nName: kit\nVersion: 1\n"}
        files[listed[-1]] = "".join(f"{name},,\n" for name in listed)
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)

    def apply(self, *texts: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
        names = [self.patches / f"{number:04d}.patch" for number, _ in enumerate(texts, 1)]
        for path, text in zip(names, texts, strict=True):
            path.write_text(text)
        return call(self.script, "--installed", *options, "kit", *map(str, names), env={"PYTHONPATH": str(self.root)})

    def read(self, name: str) -> str:
        return (self.root / name).read_text()


def edit(name: str, old: str = "one", new: str = "two") -> str:
    return f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-{old}\n+{new}\n"


def create(name: str, text: str = "new") -> str:
    return f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+{text}\n"


KIT = {"kit/__init__.py": "", "kit/a.py": "one\n", "kit/data/csrc/a.cu": "one\n", "kit/data/include/kit/a.cuh": "one\n",
       "kit/jit/csrc/a.cu": "three\n"}  # fmt: skip


def test_a_patch_reaches_every_file_that_a_wheel_carries(tmp_path: Path) -> None:
    """By RECORD and context: of two files that end alike, the one whose lines fit."""
    site = Site(tmp_path, KIT)
    kernel = edit("csrc/a.cu") + edit("include/kit/a.cuh") + create("include/kit/new.cuh")
    code, output = site.apply(edit("kit/a.py", "one", "two = 2"), kernel, edit("csrc/a.cu", "two", "2"))
    assert code == 0, output
    assert site.read("kit/a.py") == "two = 2\n"
    assert [site.read(f"kit/{name}/csrc/a.cu") for name in ("data", "jit")] == ["2\n", "three\n"]
    assert site.read("kit/data/include/kit/new.cuh") == "new\n"
    assert list(site.root.glob("kit/__pycache__/a.*.pyc"))
    record = json.loads(site.record.read_text())
    changed = record[str(site.root / "kit/data/csrc/a.cu")]
    assert changed["patches"] == ["kit/0002.patch", "kit/0003.patch"] and changed["distribution"] == "kit"
    assert changed["sha256"] == hashlib.sha256(b"2\n").hexdigest()
    assert len(record) == 4


def test_a_patch_for_another_release_is_left_out_where_the_image_knows_the_version(tmp_path: Path) -> None:
    """A wheel without a version in the project has one in the image; a shipped series has ranges."""
    site = Site(tmp_path, KIT)
    older = "Description: old\n more\nApplies-To: >=0.5,\n <1\n\n" + edit("kit/a.py", "gone", "two")
    newer = "Applies-To: >=1, <2\n\n" + edit("kit/a.py")
    assert site.apply(older, newer)[0] == 1
    code, output = site.apply(older, newer, edit("kit/a.py", "two", "3"), options=("--in-range",))
    assert code == 0 and "0001.patch is left out: it is for >=0.5, <1, and 1 is installed" in output, output
    assert site.read("kit/a.py") == "3\n" and len(json.loads(site.record.read_text())) == 1


@pytest.mark.parametrize("name", ["csrc/gone.cu", "CMakeLists.txt", "tests/a.py"])
@pytest.mark.parametrize("how", [edit, create])
def test_what_a_wheel_lacks_is_named_and_nothing_is_changed(tmp_path: Path, name: str, how: Any) -> None:
    site = Site(tmp_path, {key: text for key, text in KIT.items() if "csrc" not in key})
    code, output = site.apply(edit("kit/a.py") + how(name))
    assert code == 1
    assert f"0001.patch does not apply: the installed package has no {name}" in output
    assert site.read("kit/a.py") == "one\n"


def test_moves_and_deletions_of_installed_files(tmp_path: Path) -> None:
    site = Site(tmp_path, KIT)
    move = "diff --git a/csrc/a.cu b/csrc/b.cu\nsimilarity index 50%\nrename from csrc/a.cu\nrename to csrc/b.cu\n"
    move += "--- a/csrc/a.cu\n+++ b/csrc/b.cu\n@@ -1 +1 @@\n-one\n+two\n"
    drop = "diff --git a/kit/a.py b/kit/a.py\ndeleted file mode 100644\n"
    drop += "--- a/kit/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n"
    code, output = site.apply(move, drop)
    assert code == 0, output
    assert site.read("kit/data/csrc/b.cu") == "two\n"
    assert not (site.root / "kit/data/csrc/a.cu").exists() and not (site.root / "kit/a.py").exists()


def test_a_link_is_not_patched(tmp_path: Path) -> None:
    site = Site(tmp_path, KIT)
    link = "diff --git a/kit/l b/kit/l\nnew file mode 120000\n--- /dev/null\n+++ b/kit/l\n@@ -0,0 +1 @@\n+/etc/passwd\n"
    link += "\\ No newline at end of file\n"
    code, output = site.apply(link)
    assert code == 1 and "a patch may change plain files only" in output
    assert not (site.root / "kit/l").is_symlink()


NAMES = st.lists(st.sampled_from(["a", "b", "kit", "csrc"]), min_size=1, max_size=4).map("/".join)
APPLY = runpy.run_path(str(SCRIPTS["apply-patches"]))


@given(st.lists(NAMES, min_size=1, max_size=6, unique=True), NAMES)
def test_a_place_is_always_one_of_the_package_and_ends_alike(known: list[str], name: str) -> None:
    found = APPLY["places"](name, known)
    assert set(found) <= set(known)
    assert all(Path(place).name == Path(name).name for place in found)
    assert name not in known or found[0] == name
    new = APPLY["place_of_new"](name, known)
    assert f"/{new}".endswith(f"/{name}") or not new
    assert Path(new).parent in {Path(one).parent for one in known} or not new


@pytest.fixture
def protected(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """The script with its folder moved, and a torch that lies on PYTHONPATH."""
    script = tmp_path / "protect"
    script.write_text(
        SCRIPTS["protect"].read_text().replace('FOLDER = "/opt/envgen"', f"FOLDER = {str(tmp_path / 'home')!r}")
    )
    info = tmp_path / "site/torch-2.9.1+ngc.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1+ngc\n")
    (info / "RECORD").write_text("torch/__init__.py,,\n")
    return script, {"PYTHONPATH": str(tmp_path / "site")}


def call(script: Path, *argv: str, env: dict[str, str]) -> tuple[int, str]:
    command = [sys.executable, str(script), *argv]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_what_is_there_is_pinned_and_what_is_off_is_never_installed(protected: tuple[Path, dict[str, str]]) -> None:
    script, env = protected
    code, output = call(script, "record", "torch", "not_there", "--off", "Num.ba", env=env)
    assert code == 0, output
    home = script.parent / "home"
    assert (home / "constraints.txt").read_text() == "torch==2.9.1+ngc\n"
    assert (home / "overrides.txt").read_text() == 'num-ba ; sys_platform == "never"\ntorch ; sys_platform == "never"\n'
    assert call(script, "verify", env=env) == (0, "protect: unchanged packages of the base image: 1\n")


def test_what_is_removed_is_gone_and_never_comes_back(tmp_path: Path) -> None:
    """In an environment of its own, with our pip: it uninstalls nothing from outside of it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=120)
    python = tmp_path / "venv/bin/python"
    (site,) = tmp_path.glob("venv/lib/*/site-packages")
    (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    info = site / "flash_attn-2.7.dist-info"
    info.mkdir()
    (site / "flash_attn.py").write_text("")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.7\n")
    files = ("flash_attn.py", "flash_attn-2.7.dist-info/METADATA", "flash_attn-2.7.dist-info/RECORD")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    script = tmp_path / "protect"
    script.write_text(SCRIPTS["protect"].read_text().replace("/opt/envgen", str(tmp_path / "home")))
    words = [str(python), str(script), "record", "torch", "--off", "numba", "--remove", "Flash_Attn", "not-there"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and "Successfully uninstalled flash" in done.stdout, done.stderr
    assert not info.exists() and not (site / "flash_attn.py").exists()
    off = (tmp_path / "home/overrides.txt").read_text().replace(' ; sys_platform == "never"', "").split()
    assert off == ["flash-attn", "not-there", "numba"]


@pytest.mark.parametrize("change", ["replaced", "removed", "rebuilt"])
def test_the_gate_sees_a_change(protected: tuple[Path, dict[str, str]], change: str) -> None:
    script, env = protected
    call(script, "record", "torch", env=env)
    info = script.parent / "site/torch-2.9.1+ngc.dist-info"
    if change == "replaced":
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0\n")
    elif change == "rebuilt":  # the same version, other files
        (info / "RECORD").write_text("torch/__init__.py,sha256=x,1\n")
    else:
        shutil.rmtree(info)
    code, output = call(script, "verify", env=env)
    assert code == 1
    assert "protect: torch 2.9.1+ngc of the base image was re" in output


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (302, 1)])
def test_healthy_is_200_only(server: Server, status: int, code: int) -> None:
    server.put("/health", b"", status=status)
    words = ("envgen-health", "--port", server.server_port, "--path", "/health")
    assert run(*words, env={"http_proxy": "http://127.0.0.1:9"})[0] == code


class Engine(Quiet):
    """A STAND-IN for vLLM's API server: healthy whatever its engine does. ``answer``: of a completion."""

    answer, tokens, asked, more, paused = 200, 0, 0, b"", False

    def do_GET(self) -> None:
        if self.path == "/is_paused":
            self.reply(json.dumps({"is_paused": Engine.paused}).encode())
            return
        self.reply(b'vllm:generation_tokens_total{engine="0"} %d.0\n' % Engine.tokens + Engine.more)

    def do_POST(self) -> None:
        Engine.asked += 1
        if Engine.answer == 200:
            Engine.tokens += 1
        self.reply(b"{}", Engine.answer)


@pytest.fixture
def check(tmp_path: Path) -> Iterator[Any]:
    """Asks for the health of an engine that must have completed something in the last ``seconds``."""
    Engine.answer, Engine.tokens, Engine.asked = 200, 0, 0
    with serving(Engine) as url:
        words = ("envgen-health", "--port", url.rpartition(":")[2], "--path", "/health", "--model", "m", "--limit", 2)
        yield lambda seconds: run(*words, "--idle", seconds, env={"TMPDIR": str(tmp_path)})


def test_an_idle_server_is_asked_for_a_token_and_a_busy_one_is_not(check: Any) -> None:
    for Engine.answer in (500, 401):  # alive: kernels may be compiled before the first token; it refuses the question
        assert check(0)[0] == 0
    Engine.answer = 200
    assert check(0)[0] == 0 and Engine.asked == 3
    assert check(1000)[0] == 0 and Engine.asked == 3  # it has just completed one
    Engine.tokens += 5
    assert check(0)[0] == 0 and Engine.asked == 3
    Engine.answer = 500  # a dead engine behind a healthy port
    assert check(0) == (1, "envgen-health: m generates nothing: answered 500\n")
    Engine.answer = 200
    assert check(0)[0] == 0


SERVER = """
import os, sys, time
def stuck_here():
    sys.stderr.write("worker %d\\n" % os.getpid()); sys.stderr.flush()
    time.sleep(600)
stuck_here()
"""


@pytest.mark.parametrize("sign", [None, signal.SIGSTOP])
def test_a_wedged_server_is_ended_with_its_stacks_and_a_code_of_its_own(
    tmp_path: Path, sign: signal.Signals | None
) -> None:
    """The engine answered once, then generates nothing: after three failures over three minutes its processes end."""
    env = {**os.environ, "TMPDIR": str(tmp_path), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    (tmp_path / "bin").mkdir()
    for name in ("nvidia-smi", "py-spy"):
        (tmp_path / "bin" / name).write_text('#!/bin/sh\necho "${0##*/} $*"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    libexec = tmp_path / "opt/libexec"
    shutil.copytree(DOCKER / "runtime", tmp_path / "opt")
    health = (tmp_path / "opt/bin/envgen-health").read_text().replace("QUIET = 180.0", "QUIET = 0.0")
    (tmp_path / "opt/bin/envgen-health").write_text(health)
    server = subprocess.Popen(
        [sys.executable, str(libexec / "server"), sys.executable, "-c", SERVER],
        env=env, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stderr is not None
    read = [server.stderr.readline(), server.stderr.readline()]
    worker = int(read[1].split()[1])
    if sign is not None:
        os.kill(worker, sign)
    Engine.answer, Engine.tokens, Engine.asked = 200, 0, 0
    with serving(Engine) as url:
        words = [sys.executable, str(tmp_path / "opt/bin/envgen-health"), "--port", url.rpartition(":")[2],
                 "--path", "/health", "--model", "m", "--limit", "2", "--idle", "0", "--wedged", "restart"]  # fmt: skip

        def check(program: Path = tmp_path / "opt") -> int:
            words[1] = str(program / "bin/envgen-health")
            return subprocess.run(words, env=env, capture_output=True, check=False).returncode

        assert check() == 0  # it answers
        Engine.answer = 500
        assert [check(), check()] == [1, 1] and server.poll() is None
        assert check(DOCKER / "runtime") == 1  # as it is, it waits for three minutes
        Engine.tokens += 1  # progress: the count begins again
        assert check() == 0
        assert [check(), check()] == [1, 1] and server.poll() is None
        if sign is None:  # a debugger holds it
            ptrace = ctypes.CDLL(None).ptrace
            assert ptrace(16, worker, None, None) == 0  # PTRACE_ATTACH
            os.waitpid(worker, 0x40000000)  # __WALL
            assert [check(), check()] == [1, 1] and not (tmp_path / "envgen-wedged").exists()
            ptrace(17, worker, None, None)  # PTRACE_DETACH
        assert check() == 1
        assert server.wait(60) == 76
        rest = server.stderr.read()
    assert "in stuck_here" in rest and "the server was wedged and was ended" in rest
    assert "the server is ended: m generates nothing: answered 500" in rest and f"wedged: process {worker} " in rest
    for line in (
        "vllm:generation_tokens_total", "nvidia-smi --query-gpu=utilization.gpu,power.draw,clocks.sm,",
        "nvidia-smi --query-compute-apps=pid,", f"py-spy dump --nonblocking --pid {worker}",
    ):  # fmt: skip
        assert f"envgen: wedged: {line}" in rest, rest


def test_a_server_that_sleeps_or_has_never_answered_is_not_ended(check: Any, tmp_path: Path) -> None:
    Engine.answer = 500
    assert [check(0)[0] for _ in range(5)] == [0] * 5  # the first token may take half an hour
    Engine.answer = 200
    assert check(0)[0] == 0
    Engine.answer, Engine.more = 500, b'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0\n'
    asked = Engine.asked
    try:
        assert [check(0)[0] for _ in range(4)] == [0] * 4 and Engine.asked == asked
    finally:
        Engine.more = b""
    assert check(0)[0] == 1
    assert not (tmp_path / "envgen-wedged").exists()  # `tell`: without --wedged nothing is ended


def test_a_token_of_before_the_first_check_proves_a_server(check: Any) -> None:
    """`up` asks for one as soon as the server answers: an engine that hangs right after it is no first compile."""
    Engine.tokens, Engine.answer = 4, 500
    assert check(0)[0] == 1


@pytest.mark.parametrize("program", ["cicc", "somebody-else"])
def test_an_engine_that_waits_for_a_compiler_is_not_wedged(check: Any, tmp_path: Path, program: str) -> None:
    """A compiler is one that the server has started: of its own number's descendants."""
    Engine.tokens, Engine.answer = 4, 500
    shutil.copy(shutil.which("sleep") or "", tmp_path / program)
    (tmp_path / "envgen-server").write_text(str(os.getpid()))
    with subprocess.Popen([tmp_path / program, "60"]) as compiler:
        assert check(0)[0] == (program != "cicc")
        (tmp_path / "envgen-server").write_text("1234567")
        assert check(0)[0] == 1
        compiler.kill()


def test_a_paused_server_is_not_wedged(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Engine.tokens, Engine.answer, Engine.paused = 4, 500, True
    try:
        assert check(0)[0] == 1  # without VLLM_SERVER_DEV_MODE nobody can pause it
        monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
        assert check(0)[0] == 0
        Engine.paused = False
        assert check(0)[0] == 1
    finally:
        Engine.paused = False


def test_a_long_prompt_that_fills_the_cache_is_progress(check: Any) -> None:
    assert check(0)[0] == 0
    Engine.answer = 500
    try:
        for used in range(1, 6):
            Engine.more = b'vllm:kv_cache_usage_perc{engine="0"} 0.%d\n' % used
            assert check(0)[0] == 0
    finally:
        Engine.more = b""


def test_nobody_listening_is_unhealthy() -> None:
    code, output = run("envgen-health", "--port", 9, "--path", "/health")
    assert code == 1
    assert output.startswith("envgen-health: port 9: ")


# --- envgen-install ---------------------------------------------------------------------------------------------------


@pytest.fixture
def starting(tmp_path: Path) -> Callable[[], subprocess.Popen[str]]:
    """Starts `envgen-install --start` for a checkout whose git hangs; it may take 3 s."""
    (tmp_path / "src/lib").mkdir(parents=True)
    (tmp_path / "src/lib/__init__.py").touch()
    mount = {"name": "lib", "package": "lib", "distribution": "lib", "mount": str(tmp_path / "src")}
    (tmp_path / "sources.json").write_text(json.dumps({"sources": [mount]}))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "bin/git").chmod(0o755)
    script = tmp_path / "envgen-install"
    text = SCRIPTS["envgen-install"].read_text().replace('HOME = "/opt/envgen"', f"HOME = {str(tmp_path)!r}")
    script.write_text(text.replace("START = 300", "START = 3"))
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "VIRTUAL_ENV": str(tmp_path / "env"), "MAX_JOBS": "1"}
    return lambda: subprocess.Popen(
        [sys.executable, "-I", str(script), "--start"], env=env, stderr=subprocess.PIPE, text=True
    )


def test_a_start_whose_git_hangs_ends_in_words(starting: Callable[[], subprocess.Popen[str]], tmp_path: Path) -> None:
    with starting() as child:
        _, error = child.communicate(timeout=60)
    assert child.returncode == 1
    why = f"does git answer in {tmp_path}/src, and is the disk of each well?"
    assert error == f"envgen: the mounted sources were not checked within 3 s: {why}\n"


def test_the_wait_for_another_installation_has_no_limit(
    starting: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    (tmp_path / "bin/git").write_text("#!/bin/sh\n")
    (tmp_path / "env/.envgen").mkdir(parents=True)
    with (tmp_path / "env/.envgen/lock").open("w") as file, starting() as child:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert child.stderr is not None
        while "waiting for it" not in child.stderr.readline():
            assert child.poll() is None, child.stderr.read()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(3)
        child.kill()


# --- record-env -------------------------------------------------------------------------------------------------------


def test_what_the_start_up_changed_is_noted_and_nothing_else(tmp_path: Path) -> None:
    """Run as the entry point does: descriptor 3 is the command's stdout. Then read as `docker exec` does."""
    text = SCRIPTS["record-env"].read_text()
    script = tmp_path / "record-env"
    script.write_text(text.replace('"/run/envgen-env"', repr(str(tmp_path / "env"))))
    before = {"PATH": os.environ["PATH"], "SAME": "1", "LIBS": "a", "GIVEN": "", "ODD": "it's\n$HOME"}
    (tmp_path / "env.before").write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in before.items()))
    now = {**before, "LIBS": "compat:a", "GIVEN": "4", "NEW": "it's\n$HOME", "not-a-name": "x"}
    argv = f"exec {sys.executable} {script} sh -c 'echo out; echo $LIBS' 3>&1 1>&2"
    done = subprocess.run(["sh", "-c", argv], env=now, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("out\ncompat:a\n", "")

    def exec_with(**given: str) -> dict[str, str]:
        show = f". {tmp_path}/env; {sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
        done = subprocess.run(
            ["sh", "-c", show], env={**before, **given}, capture_output=True, text=True, check=True, timeout=60
        )
        return {key: value for key, value in json.loads(done.stdout).items() if key in {**now, **given}}

    wanted = {key: value for key, value in now.items() if key != "not-a-name"}
    assert exec_with() == wanted
    assert exec_with(GIVEN="9", NEW="mine") == {**wanted, "GIVEN": "9", "NEW": "mine"}  # `docker exec -e` is stronger


@pytest.mark.parametrize(("command", "code"), [("nosuchprogram", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_be_run_is_named(tmp_path: Path, command: str, code: int) -> None:
    script = f"exec {sys.executable} {SCRIPTS['record-env']} {command} 3>&1 1>&2"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code
    assert f"envgen: cannot run {command}: " in done.stderr


# --- pip-install --needs ----------------------------------------------------------------------------------------------

FAKE_UV = '#!/bin/sh\nshift 5\n[ ! -e ours.py ] || echo "in the checkout"\nfor word; do echo "$word"; done\n'

BACKEND = """\
def get_requires_for_build_editable(settings):
    print("a backend that talks", flush=True)
    {body}
"""


def needs(folder: Path, *words: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
    """With a uv that prints what it is to install."""
    uv, script = folder / "fake-uv", folder / "pip-install"
    uv.write_text("#!/bin/sh\nexit 2\n" if fails else FAKE_UV)
    uv.chmod(0o755)
    script.write_text(SCRIPTS["pip-install"].read_text().replace('"/opt/envgen/bin/uv"', repr(str(uv))))
    command = [sys.executable, str(script), "--for", "lib", "--needs", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


INSTALLED = (
    "pip-install: looks for modules that several packages bring\npip-install: packages: 0; compiles modules: 0\n"
)


def with_backend(folder: Path, body: str, requires: str = "[]") -> Path:
    (folder / "pyproject.toml").write_text(
        f'[build-system]\nrequires = {requires}\nbuild-backend = "ours"\nbackend-path = ["."]\n'
    )
    (folder / "ours.py").write_text(BACKEND.format(body=body))
    return folder


WANTED = """["pytest", "pytest>=9999", "nosuch-package", 'nosuch-too; python_version < "3"']"""
NEEDS = [  # requires, what the backend does, options, exit code, what is printed, and how the one line of error begins
    (WANTED, "return []", (), 0, "pytest>=9999\nnosuch-package\n" + INSTALLED, ""),
    ("[]", "return ['pytest', 'nosuch-package']", (), 0, "", ""),
    ("[]", "return ['pytest', 'nosuch-package']", ("--ask",), 0,
     f"a backend that talks\nnosuch-package\n{INSTALLED}", ""),
    ("[]", "raise ValueError('first\\nthe reason')", ("--ask",), 1, "a backend that talks\n",
     "envgen: lib: its build backend ours failed: ValueError: first the reason; write its requirements in "),
    ("[]", "raise SystemExit('the reason')", ("--ask",), 1, "a backend that talks\n",
     "envgen: lib: its build backend ours failed: SystemExit: the reason; write its requirements in "),
]  # fmt: skip


@pytest.mark.parametrize(("requires", "body", "words", "code", "out", "error"), NEEDS)
def test_what_a_build_needs(
    tmp_path: Path, requires: str, body: str, words: tuple[str, ...], code: int, out: str, error: str
) -> None:
    """What is installed already is not wanted again; a backend is asked for more, and its failure is one sentence."""
    done = needs(with_backend(tmp_path, body, requires), *words)
    assert (done.returncode, done.stdout) == (code, out)
    assert done.stderr.startswith(error) and done.stderr.count("\n") == (code != 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[build-system", "pyproject.toml: "),
        ("[build-system]\nrequires = 1", "has another form than PEP 518 says"),
        ("build-system = 1", "pyproject.toml: "),
        ('[build-system]\nrequires = ["not a requirement"]', "pyproject.toml: InvalidRequirement: "),
    ],
)
def test_a_damaged_pyproject_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    done = needs(tmp_path)
    assert message in done.stderr and done.returncode == len(done.stderr.splitlines()) == 1, done.stderr


def test_what_cannot_be_installed_is_one_sentence_that_names_the_key(tmp_path: Path) -> None:
    done = needs(with_backend(tmp_path, "return []", '["nosuch-package"]'), fails=True)
    assert done.returncode == 1
    message = "envgen: lib: cannot install nosuch-package, which its build needs; write its requirements in "
    assert done.stderr.splitlines()[-1].startswith(f"{message}sources.lib.install.requires, ")


def test_a_wheel_that_is_gone_or_of_another_machine_is_one_sentence(tmp_path: Path) -> None:
    """pip takes none of another Python or machine, and none that the index has no more."""
    index, out = tmp_path / "index", tmp_path / "out"
    index.mkdir()
    for tags in ("cp27-cp27mu-linux_x86_64", "cp38-abi3-manylinux_2_28_s390x"):
        (index / f"lib-1.0-{tags}.whl").write_bytes(b"")
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, str(SCRIPTS["pip-install"]), "--keep", str(out), "--", "lib==1.0"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert (
        last.startswith("pip-install: no wheel of lib==1.0 for Python 3.") and "another release in `binaries`" in last
    )
    assert "No matching distribution found for lib==1.0" in done.stderr


def wheel(folder: Path, name: str, version: str, *requires: str, **modules: str) -> None:
    """A wheel; ``modules``: their texts."""
    info, files = f"{name}-{version}.dist-info", {f"{module}.py": text for module, text in modules.items()}
    rows = "".join(f"{path},sha256={hashed(text)},{len(text)}\n" for path, text in files.items())
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    files[f"{info}/METADATA"] = "\n".join(lines) + "\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = f"{rows}{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        for path, text in files.items():
            file.writestr(path, text)


def hashed(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


@pytest.mark.parametrize("words", [["one-lib", "two==1.0"], ["two==1.0", "one-lib"]])
def test_a_wheel_without_a_version_is_kept_at_the_one_that_another_asks_for(tmp_path: Path, words: list[str]) -> None:
    """Not at the newest, and not at what is asked for another platform. Its dependencies are none of the two."""
    index, out = tmp_path / "index", tmp_path / "out"
    index.mkdir()
    for version in ("1.0", "1.5", "2.0"):
        wheel(index, "one_lib", version, "three>=1")
    wheel(index, "two", "1.0", 'One_Lib==1.0; sys_platform == "never"', "one.lib==1.5", "four")
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, str(SCRIPTS["pip-install"])]
    subprocess.run([*command, "--keep", str(out), "--", *words], env=env, check=True, timeout=120)
    found = sorted(str(path.relative_to(out)) for path in out.rglob("*.whl"))
    assert found == ["one-lib/one_lib-1.5-py3-none-any.whl", "two/two-1.0-py3-none-any.whl"]
    wheel(index, "five", "1.0")  # nobody asks for a version
    subprocess.run([*command, "--keep", str(out), "--", "five"], env=env, check=True, timeout=120)
    assert (out / "five" / "five-1.0-py3-none-any.whl").is_file()


def test_an_extra_is_that_of_its_own_wheel(tmp_path: Path) -> None:
    """FlashInfer 0.7.2 has an extra b12x, too, which asks for another CuTe DSL than vLLM's."""
    for name, extra, version in (("flashinfer_x", "b12x", "4.7"), ("vllm_x", "b12x", "4.8")):
        (tmp_path / name).mkdir()
        wheel(tmp_path / name, name, "1.0", f'cute-x=={version}; extra == "{extra}"', "always-x")
    needs_of = runpy.run_path(str(SCRIPTS["pip-install"]))["needs_of"]
    assert needs_of(str(tmp_path), []) == ["always-x", "always-x"]
    assert needs_of(str(tmp_path), ["vllm.x[b12x]"]) == ["always-x", "cute-x==4.8", "always-x"]


class Distribution:
    """An installed distribution with many modules, which counts how often its METADATA is parsed."""

    def __init__(self, name: str, digest: str) -> None:
        self.name, self.digest, self.parsed = name, digest, 0

    @property
    def metadata(self) -> dict[str, str]:
        self.parsed += 1
        return {"Name": self.name}

    def read_text(self, _name: str) -> str:
        return "".join(f"ours/{number}.py,sha256={self.digest}=,1\n" for number in range(50))

    def locate_file(self, name: str) -> str:
        return f"/nosuch/link/{name}"


def test_modules_of_several_packages_are_found_by_one_look_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of a base image with 24,000 modules parsed and resolved a file for each: minutes."""
    installed, resolved = [Distribution("One.Lib", "1"), Distribution("two", "2")], []

    def realpath(path: str) -> str:
        resolved.append(path)
        return "/real"

    monkeypatch.setattr("importlib.metadata.distributions", lambda: installed)
    monkeypatch.setattr("os.path.realpath", realpath)
    owners = runpy.run_path(str(SCRIPTS["pip-install"]))["shared"]()
    assert owners["/real/ours/49.py"] == {"one-lib": "sha256=1", "two": "sha256=2"} and len(owners) == 50
    assert [one.parsed for one in installed] == [1, 1] and len(resolved) == 2


@pytest.mark.parametrize("prefer", ["one", "two", ""])
def test_a_module_that_two_packages_bring_is_of_the_one_that_is_preferred(tmp_path: Path, prefer: str) -> None:
    index, venv_, script = tmp_path / "index", tmp_path / "venv", tmp_path / "pip-install"
    index.mkdir()
    for name in ("one", "two"):
        wheel(index, name, "1.0", ours=f'OWNER = "{name}"\n', alike="", **{name: ""})
    python = venv_ / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv_], check=True, timeout=120)
    script.write_text(SCRIPTS["pip-install"].read_text().replace('"/opt/envgen/bin/uv"', repr(uv.find_uv_bin())))
    words = [*(("--prefer", prefer) if prefer else ()), "--", "--find-links", str(index), "one", "two"]
    env = {**os.environ, "PIP_NO_INDEX": "1", "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_CONCURRENT_INSTALLS": "1"}
    done = subprocess.run(
        [str(python), str(script), *words], env=env, capture_output=True, text=True, timeout=120, check=True
    )
    asked = [str(python), "-c", "import ours; print(ours.OWNER)"]
    owner = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    if prefer:
        assert owner == prefer and "warning" not in done.stdout
    else:
        (line,) = [one for one in done.stdout.splitlines() if "warning" in one]
        assert f"ours.py is of {owner} (one, two bring it, too); choose: `pip: {{prefer: [{owner}]}}`" in line


def test_a_project_without_pyproject_is_built_by_setuptools(tmp_path: Path) -> None:
    done = needs(tmp_path)
    assert done.returncode == 0 and done.stdout in ("", "setuptools>=40.8.0\n" + INSTALLED)


@pytest.mark.parametrize("version", ['version = "1.5"', 'dynamic = ["version"]'])
def test_uv_names_what_a_build_lacks_and_the_cure_names_our_key(tmp_path: Path, version: str) -> None:
    """uv's own advice is to edit pyproject.toml. It names a version where there is one before the build."""
    body = "return []\n\n\ndef build_editable(*words):\n    import envgen_nosuch.inner"
    with_backend(tmp_path, body)
    with (tmp_path / "pyproject.toml").open("a") as file:
        file.write('[project]\nname = "lib"\n' + version + "\n")
    words = ["pip", "install", "--offline", "--python", sys.executable, "--no-deps", "--no-build-isolation", "-e", "."]
    done = subprocess.run(
        [str(uv.find_uv_bin()), *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    cause = cause_of(done.stderr.splitlines())
    assert cause is not None and cause.cause.startswith("the build of lib imports"), done.stderr
    assert cause.cause.endswith(": envgen_nosuch") and "sources.NAME.install.requires" in cause.cure


def test_a_build_stops_where_the_base_image_is_not_what_the_lock_assumes(tmp_path: Path) -> None:
    (tmp_path / "pip.py").write_text("")
    (tmp_path / "mkdir").write_text("#!/bin/sh\nexit 3\n")  # what follows is for an image
    (tmp_path / "mkdir").chmod(0o755)
    major, minor = sys.version_info[:2]
    here = f"python=={major}.{minor}"
    env = {"PYTHONPATH": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    yes = "PyYAML==" + importlib.metadata.version("pyyaml")
    assert run("bootstrap", sys.executable, here, yes.lower(), env=env) == (3, "")
    code, text = run("bootstrap", sys.executable, "python==2.7", "no-such==1", env=env)
    assert code == 1
    assert f"assumes python==2.7, and the base image has {here.removeprefix('python==')}\n" in text
    assert "assumes no-such==1, and the base image has no no-such\n" in text
    cause = cause_of([f"#9 0.4 {line}" for line in text.splitlines()], Circumstances(True, 1))
    assert cause is not None and cause.rule == "lock_assumption"
