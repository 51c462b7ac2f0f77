"""A soak: a real vLLM under the systemd unit's command, steady requests, and faults in an order that a seed gives.

Systemd itself isn't there where tests run, so its unit is run by ``Unit``: `ExecStart` with NOTIFY_SOCKET, again after
`RestartSec` when it fails, `ExecStop` at the end. The unit's limit of three starts an hour is left out. In the first
half the service has no `restart`, so each end is the unit's; in the second Docker starts it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from faulty_server import Faulty
from projects import docker

SERVICE = "soak"
STEADY = 2.0  # seconds between two requests
START = 900.0  # seconds for a start beside everything else that a machine does
WEDGED = 300.0  # three minutes, a look each ten seconds, and the evidence
ENDS = 60.0
DISK = 64  # MiB of the project's .envgen
HEADLINES = re.compile(
    rf"{SERVICE} was restarted by Docker|{SERVICE} has ended|{SERVICE} is not ready|the engine does not answer"
)


@dataclass
class Outcome:
    """One fault: seconds until envgen noticed it, until a request was answered again, and what was printed of it."""

    kind: str
    at: float
    noticed: float | None = None
    served: float | None = None
    lines: list[str] = field(default_factory=list)
    failed: str = ""


class Unit:
    """Runs an exported unit."""

    def __init__(self, project: Path, text: str, folder: Path, env: dict[str, str]) -> None:
        self.words = dict(re.findall(r"^(ExecStart|ExecStop|RestartSec)=(.*)$", text, re.MULTILINE))
        self.project, self.readies = project, 0
        self.lines: list[tuple[float, str]] = []
        given = dict(shlex.split(line)[0].split("=", 1) for line in re.findall(r"^Environment=(.*)$", text, re.M))
        self.env = {**os.environ, **given, **env, "NOTIFY_SOCKET": str(folder / "notify")}
        self.process: subprocess.Popen[str] | None = None
        self.log = folder / "unit.log"
        self.stopping = False
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(self.env["NOTIFY_SOCKET"])
        for loop in (self._run, self._listen):
            threading.Thread(target=loop, daemon=True).start()

    def _listen(self) -> None:
        while b"READY=1" in self.notify.recv(4096):
            self.readies += 1

    def _run(self) -> None:
        while not self.stopping:
            self.process = subprocess.Popen(
                shlex.split(self.words["ExecStart"]), cwd=self.project, env=self.env, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
            )  # fmt: skip
            assert self.process.stdout is not None
            for line in self.process.stdout:
                self.add(line.rstrip())
            code = self.process.wait()
            self.add(f"unit: ended with {code}")
            if code in (0, 130, 143):
                return
            time.sleep(float(self.words["RestartSec"].rstrip("s")))

    def add(self, line: str) -> None:
        self.lines.append((time.monotonic(), line))
        with self.log.open("a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {line}\n")

    def stop(self) -> None:
        self.stopping = True
        subprocess.run(shlex.split(self.words["ExecStop"]), cwd=self.project, env=self.env, check=False)
        if self.process:
            self.process.wait(120)
        self.notify.close()


class Client(threading.Thread):
    """Steady requests. ``served``: when each that was answered began."""

    def __init__(self, server: Faulty) -> None:
        super().__init__(daemon=True)
        self.server, self.served, self.failures, self.ends = server, [0.0], 0, False

    def run(self) -> None:
        while not self.ends:
            began = time.monotonic()
            if self.server.completes(20):
                self.served.append(began)
            else:
                self.failures += 1
            time.sleep(STEADY)


class Soak:
    """``engine``: the folder of a private engine (scripts/engine) that may be stopped; None: those faults are left out."""

    def __init__(self, server: Faulty, folder: Path, *, minutes: float, seed: int, engine: Path | None = None) -> None:
        self.server, self.folder, self.seconds, self.seed = server, folder, minutes * 60, seed
        self.engine = engine
        self.state = server.server.project.root / ".envgen"
        self.outcomes: list[Outcome] = []
        self.before: dict[str, int] = {}
        self.after: dict[str, int] = {}
        self.unit: Unit
        self.watched: list[dict[str, int]] = []  # after the start of each half, and at its end
        self.client = Client(server)
        self.began = time.monotonic()
        (folder / "clock").write_text("0\n")
        source = Path(__file__).with_name("data") / "clock.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", folder / "clock.so", source], check=True)

    # --- faults: each returns what undoes it -------------------------------------------------------------------------

    def signals(self, title: str, number: signal.Signals) -> Callable[[], None]:
        self.server.send(title, number)
        return lambda: None

    def hang(self) -> Callable[[], None]:
        self.server.fault("hang", on=True)
        return lambda: self.server.fault("hang", on=False)

    def end_init(self) -> Callable[[], None]:
        os.kill(int(docker("inspect", "-f", "{{.State.Pid}}", self.server.container)), signal.SIGKILL)
        return lambda: None

    def fill_disk(self) -> Callable[[], None]:
        """Nothing can be written of the end that follows."""
        file = self.state / "filler"
        subprocess.run(["dd", "if=/dev/zero", f"of={file}", "bs=1M"], stderr=subprocess.DEVNULL, check=False)
        self.server.send("EngineCore", signal.SIGKILL)
        return file.unlink

    def lose_network(self) -> Callable[[], None]:
        """The engine's bridge of the project is down."""
        (network,) = docker("inspect", "-f", "{{range .NetworkSettings.Networks}}{{.NetworkID}} {{end}}",
                            self.server.container).split()  # fmt: skip
        subprocess.run(["ip", "link", "set", f"br-{network[:12]}", "down"], check=True)
        time.sleep(30)
        subprocess.run(["ip", "link", "set", f"br-{network[:12]}", "up"], check=True)
        return lambda: None

    def jump(self) -> Callable[[], None]:
        """The clock of envgen's process, an hour ahead and back."""
        for hour in ("3600", "-3600", "0"):
            (self.folder / "clock").write_text(hour + "\n")
            time.sleep(15)
        return lambda: None

    def freeze_engine(self) -> Callable[[], None]:
        os.kill(self.dockerd, signal.SIGSTOP)
        return lambda: os.kill(self.dockerd, signal.SIGCONT)

    def restart_engine(self) -> Callable[[], None]:
        script = Path(__file__).parents[2] / "scripts/engine"
        for verb in ("down", "up"):
            done = subprocess.run([script, "--dir", self.engine or "", verb], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        return lambda: None

    @property
    def dockerd(self) -> int:
        socket_path = os.environ["DOCKER_HOST"].removeprefix("unix://")
        return int((Path(socket_path).parent / "docker.pid").read_text())

    def faults(self) -> dict[str, tuple[Callable[[], Callable[[], None]], float]]:
        """Kind -> how it is made, and the seconds within which it must be noticed; 0: it is not to be noticed."""
        found: dict[str, tuple[Callable[[], Callable[[], None]], float]] = {}
        for title in ("EngineCore", "Worker", "api_server"):
            found[f"{title} stopped"] = (lambda it=title: self.signals(it, signal.SIGSTOP), WEDGED)  # type: ignore[misc]
        for title in ("EngineCore", "Worker", "api_server", "libexec/server"):
            found[f"{title} killed"] = (lambda it=title: self.signals(it, signal.SIGKILL), ENDS)  # type: ignore[misc]
        found["scheduler hangs"] = (self.hang, WEDGED)
        found["init killed"] = (self.end_init, ENDS)
        found["disk full, engine killed"] = (self.fill_disk, ENDS)
        found["network lost"] = (self.lose_network, 0)
        found["clock jumps"] = (self.jump, 0)
        if self.engine:
            found["Docker frozen"] = (self.freeze_engine, 120)
            found["Docker restarted"] = (self.restart_engine, 120)
        return found

    # --- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, object]:
        self.state.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", self.state], check=True)
        try:
            self.before = self.leftovers()
            self.client.start()
            bag: list[str] = []
            chance, faults = random.Random(self.seed), self.faults()
            self.note(f"seed {self.seed}, {self.seconds / 60:.0f} minutes, faults: {', '.join(faults)}")
            for half, restart in enumerate(("no", "on-failure:99")):
                self.start(restart)
                while time.monotonic() - self.began < self.seconds * (half + 1) / 2:
                    bag = bag or chance.sample(sorted(faults), len(faults))
                    self.one(bag.pop(), faults)
                self.watched.append(self.watching())
                self.unit.stop()
                (self.folder / "notify").unlink()
            self.client.ends = True
            self.client.join(60)
            self.server.server.project.envgen("down", "-p", "cpu", code=None)
            self.after = self.leftovers()
            shutil.copytree(self.state / "crash", self.folder / "crash", dirs_exist_ok=True)
        finally:
            self.client.ends = True
            subprocess.run(["umount", "-l", self.state], check=False)
        report = {
            "seed": self.seed, "minutes": round((time.monotonic() - self.began) / 60, 1),
            "answered": len(self.client.served) - 1, "unanswered": self.client.failures,
            "faults": [asdict(one) for one in self.outcomes], "watching": self.watched,
            "before": self.before, "after": self.after,
        }  # fmt: skip
        (self.folder / "report.json").write_text(json.dumps(report, indent=1))
        return report

    def start(self, restart: str) -> None:
        self.server.write(restart=restart, health={"http": "/health"})
        project = self.server.server.project
        text = project.envgen("export", "systemd", SERVICE, "-p", "cpu").out
        env = {"LD_PRELOAD": str(self.folder / "clock.so"), "CLOCK_OFFSET": str(self.folder / "clock")}
        self.unit = Unit(project.root, text, self.folder, env)
        self.until(lambda: self.unit.readies > 0, START, f"no start with restart: {restart}")
        self.watched.append(self.watching())

    def one(self, kind: str, faults: dict[str, tuple[Callable[[], Callable[[], None]], float]]) -> None:
        make, limit = faults[kind]
        # A server whose first token the health check has not seen is one that still compiles.
        self.until(lambda: self.client.served[-1] > time.monotonic() - 15, START, f"nothing served before: {kind}")
        time.sleep(12)
        done = Outcome(kind, round(time.monotonic() - self.began))
        first, began = len(self.unit.lines), time.monotonic()
        try:
            undo = make()
            if limit:
                self.until(lambda: bool(self.headlines(first)), limit, "it is not noticed")
                done.noticed = round(self.headlines(first)[0][0] - began, 1)
            undo()
            over = time.monotonic()
            self.until(lambda: self.client.served[-1] > over, START, "nothing is served again")
            done.served = round(self.client.served[-1] - began, 1)
            time.sleep(15)
        except (AssertionError, OSError, IndexError, subprocess.SubprocessError) as error:
            done.failed = str(error)
        done.lines = [line for _, line in self.headlines(first)]
        kinds = [match[0] for line in done.lines if (match := HEADLINES.search(line))]
        if not done.failed and (len(set(kinds)) < len(kinds) or bool(limit) != bool(kinds)):
            done.failed = f"told {len(kinds)} times"
        self.outcomes.append(done)
        self.note(json.dumps(asdict(done)))

    def headlines(self, first: int) -> list[tuple[float, str]]:
        return [row for row in self.unit.lines[first:] if HEADLINES.search(row[1])]

    def until(self, holds: Callable[[], bool], seconds: float, otherwise: str) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"{otherwise} ({seconds:.0f} s)"
            time.sleep(0.5)

    def note(self, line: str) -> None:
        with (self.folder / "soak.log").open("a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {line}\n")

    # --- what is left ------------------------------------------------------------------------------------------------

    def watching(self) -> dict[str, int]:
        """Handles, sockets and MiB of the process that watches."""
        pid = self.unit.process.pid if self.unit.process else 0
        with contextlib.suppress(OSError):  # it ended a moment ago
            return {**handles(pid), "MiB": resident(pid)}
        return {}

    def leftovers(self) -> dict[str, int]:
        time.sleep(5)
        found = {name: len(docker(*words.split()).split()) for name, words in {
            "containers": "ps -aq", "networks": "network ls -q", "volumes": "volume ls -q", "images": "image ls -aq",
        }.items()}  # fmt: skip
        root, own = str(self.server.server.project.root), os.getpid()
        commands = [(int(it.name), it) for it in Path("/proc").iterdir() if it.name.isdigit()]
        marks = ("VLLM::", "/libexec/server", f"{self.server.server.project.name}-cpu", root)
        found["processes"] = sum(
            any(mark in command_of(path) for mark in marks) for pid, path in commands if pid != own
        )
        found.update({f"dockerd's {name}": count for name, count in handles(self.dockerd).items()})
        names = [*Path("/dev/shm").iterdir(), *Path("/tmp").glob("envgen*")]
        found["files in /dev/shm and /tmp"] = len([it for it in names if str(it) not in root])
        found["MiB of .envgen"] = sum(it.stat().st_size for it in self.state.rglob("*") if it.is_file()) >> 20
        if self.engine:
            size = subprocess.run(["du", "-sxm", self.engine / "data"], capture_output=True, text=True).stdout
            found["MiB of the engine"] = int(size.split()[0])
        return found


def handles(pid: int) -> dict[str, int]:
    links = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(path.readlink()))
        except OSError:
            continue
    return {"handles": len(links), "sockets": len([link for link in links if link.startswith("socket:")])}


def resident(pid: int) -> int:
    return int(re.findall(r"^VmRSS:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.M)[0]) >> 10


def command_of(path: Path) -> str:
    try:
        return (path / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def private_engine() -> Path | None:
    """The folder of the engine in use, if `scripts/engine --dir` has made it for this run: ENVGEN_SOAK_ENGINE."""
    named = os.environ.get("ENVGEN_SOAK_ENGINE", "")
    return Path(named) if named and shutil.which("ip") else None
