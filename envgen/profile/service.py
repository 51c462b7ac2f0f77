"""A service in the model of a project file: its command and flags, its health, and the weights that
it loads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from envgen.profile import shape as p
from envgen.profile.flags import RANKS, ArgValue, in_words, plain_name, whole_ranks, words_of
from envgen.profile.shape import key
from envgen.profile.values import ByteSize, ContainerPath, Duration, GpuId, HostPath, PortMapping


@dataclass(frozen=True)
class Health:
    """How Docker itself watches the service. The port is ``Service.http_port``."""

    http: str = key("A path that must answer 200, such as /health.", item=p.URL_PATH)
    interval: Duration = key("Time between checks.", Duration(10))
    timeout: Duration = key("A check that takes longer has failed.", Duration(10))
    retries: int = key("Failures in a row that make it unhealthy.", 3, low=1, high=100)
    start_period: Duration = key("Failures in this time don't count.", Duration(1800))
    complete: Duration = key(
        "With ready.model: a server idle for this long must generate one token; 0s: never.",
        Duration(60),
    )
    wedged: str = key(
        "A server that answered before and then generates nothing for three minutes while it is asked: restart ends it"
        " with exit code 76 and its stacks in the log, and what starts an ended server again (`restart`, `up --stay`,"
        " systemd) does so; tell: it is unhealthy, no more; off: it is never asked for a token.",
        "restart",
        item=p.WEDGED,
    )


@dataclass(frozen=True)
class Ready:
    """What `envgen up` waits for after Docker calls the container healthy."""

    timeout: Duration = key("Give up after this long.", Duration(3600))
    model: str | None = key(
        "A name that /v1/models must list, and that must complete a prompt. Unset, with `model`: the first of"
        " `served-model-name`, else the repository.",
        None,
    )
    port: int | None = key(
        "The container's port that answers HTTP; it must be published.", None, low=1, high=65535
    )
    prompt: str = key("The prompt to complete, at temperature 0.", "The capital of France is")
    expect_text: str | None = key("Text that the completion must contain; unset: any.", None)
    expect: Mapping[str, str] = key(
        "Regular expressions (RE2) that the log must match by then, each under a name of your own, such as attention.",
        {},
        names=p.NAME,
    )
    forbid: Mapping[str, str] = key(
        "Regular expressions that the log must not match.", {}, names=p.NAME
    )


@dataclass(frozen=True)
class ModelRef:
    """The weights that a service loads: a repository on the Hugging Face Hub at one revision."""

    repo: str = key("The repository, such as openai/gpt-oss-120b.", item=p.HUB_REPO)
    revision: str = key(
        "A branch, tag or commit. `envgen lock` pins its commit.", "main", item=p.HUB_REVISION
    )
    ignore: tuple[str, ...] = key(
        "Files that `envgen model pull` leaves out: gpt-oss has its weights three times.",
        ("original/*", "metal/*"),
        item=p.HUB_IGNORE,
    )


def draft_of(repo: object, revision: object = None) -> ModelRef | None:
    """The weights that a flag names for drafts; None for a folder, or a method that has no model
    of its own.
    """
    if not isinstance(repo, str) or not re.fullmatch(p.HUB_REPO, repo):
        return None
    return ModelRef(
        repo, revision if isinstance(revision, str) else "main", ("original/*", "metal/*")
    )


@dataclass(frozen=True)
class Cluster:
    """Several machines that serve one model together, by vLLM's own multi-node mode."""

    nodes: tuple[str, ...] = key(
        "The machines, as named below `nodes`. The first has rank 0 and the API.", item=p.NODE
    )
    port: int = key(
        "Port of the first node where all ranks meet (--master-port).", 29501, low=1024, high=65535
    )


@dataclass(frozen=True)
class Mount:
    """A file or folder of this machine in the container. ``TEXT``: the short form; `layers.py`
    spells it out.
    """

    host: HostPath = key(
        "The file or folder on this machine. It must be there when the service starts."
    )
    path: ContainerPath = key("Where the container sees it.")
    read_only: bool = key("The container can't change it.", False)

    TEXT = r"[^:\x00-\x1f\x7f]+:/[^:\x00-\x1f\x7f]*(:r[ow])?"
    EXAMPLE = "~/models:/models:ro"


@dataclass(frozen=True)
class Service:
    command: tuple[str, ...] = key("The program and its positional words, one word per item.")
    args: Mapping[str, ArgValue] = key(
        "Flags by their long names, without dashes. true: the bare flag. false: --no-FLAG for vLLM; nothing for other"
        " programs, and for the few flags of vLLM's without that form. null: removed. A list: several words; a mapping:"
        " JSON. A name with a dot always gets its value.",
        {},
        names=p.FLAG,
    )
    env: Mapping[str, str] = key("Variables for this service alone.", {}, names=p.ENV_NAME)
    ports: tuple[PortMapping, ...] = key(
        "Published ports. With 127.0.0.1 only this machine reaches the port; without an address, as in Compose, the"
        " whole network does, past ufw.",
        (),
    )
    working_dir: ContainerPath | None = key("The folder it starts in.", None)
    user: str | None = key(
        "The user it runs as: host (you, so that files in checkouts stay yours), root, or UID[:GID]; unset:"
        " host where checkouts are mounted and for a server in production, else the image's own user, which is root.",
        None,
        item=p.USER,
    )
    interactive: bool = key("Keep a terminal open (a shell service).", False)
    restart: str = key(
        "What Docker does when it ends: no, on-failure:N (a server that ends by itself has failed, with any exit code),"
        " unless-stopped, or always. Only the last two also start it with the engine; where GPU and machine share"
        " memory, they need the guard of `memory.floor`.",
        "no",
        item=p.RESTART,
    )
    health: Health | None = key("Docker's health check.", None)
    ready: Ready | None = key("What `envgen up` waits for.", None)
    model: ModelRef | None = key(
        "The weights it loads. `envgen model pull` fetches them, and `up` starts nothing until they are there. It is "
        "also the default of what `vllm serve` loads, and so of the name that the server answers to.",
        None,
    )
    cluster: Cluster | None = key("The machines that run it together; unset: one machine.", None)
    needs_memory: ByteSize | None = key(
        "Memory that must be free on the engine's machine before it is started (unified memory: the GPU's too).",
        None,
    )
    mounts: Mapping[str, Mount] = key(
        "Files and folders of this machine, each under a name: the keys below, or HOST:CONTAINER[:ro] as in Compose.",
        {},
        names=p.NAME,
    )
    network: str | None = key(
        "host: the machine's own network. `ports` has no effect then.",
        None,
        item=p.NETWORK,
    )
    shm_size: ByteSize | None = key("Size of its /dev/shm; unset: as in the profile.", None)
    gpu: tuple[GpuId, ...] | None = key("Its GPUs, by number or UUID; []: none; unset: all.", None)

    @property
    def draft(self) -> ModelRef | None:
        """The separate model that drafts tokens for `model`; None without one."""
        value = self.flag("speculative-config")
        try:
            config = json.loads(value) if isinstance(value, str) else None
        except ValueError:
            config = None
        if not isinstance(config, dict):
            config = {}
        spelled = self.flag("spec-model") or self.flag("speculative-config.model")
        repo = spelled or config.get("model")
        if self.model is None or repo == self.model.repo:
            return None
        revision = self.flag("speculative-config.revision")
        return draft_of(repo, revision or config.get("revision"))

    @property
    def models(self) -> tuple[ModelRef, ...]:
        """All weights that it loads: `model`, and its draft."""
        return tuple(one for one in (self.model, self.draft) if one is not None)

    def flag(self, name: str) -> ArgValue | None:
        """The value of a flag in `args`, which may be spelled with dashes or underscores, or in
        `command`.
        """
        for flag, value in self.args.items():
            if plain_name(flag) == name:
                return value
        return in_words(self.command, name)

    @property
    def ranks(self) -> int:
        """The number of vLLM's ranks by its flags; 0 where they can't be read."""
        return whole_ranks({name: self.flag(name) for name in RANKS})

    @property
    def argv(self) -> tuple[str, ...]:
        """The whole command: words, then flags in the order of the file."""
        words = list(self.command)
        for name, value in self.args.items():
            words += words_of(
                name, value, of_vllm=self.command[:1] == ("vllm",) or self.is_vllm_server
            )
        if (
            self.model is not None
            and self.model.revision != "main"
            and "revision" not in self.args
            and self.is_vllm
        ):
            words += ["--revision", self.model.revision]
        return tuple(words)

    @property
    def host_ports(self) -> tuple[PortMapping, ...]:
        """The ports of the machine that it uses: those it publishes; with `network: host` the one
        it listens on.
        """
        if self.network is None:
            return self.ports
        port = self.http_port
        local = self.args.get("host") == "127.0.0.1"
        return (PortMapping(port, port, "127.0.0.1" if local else ""),) if port else ()

    @property
    def own_port(self) -> tuple[str, int | None] | None:
        """The port that its arguments name: (key of the file, port or None); None if unknown."""
        value = self.flag("port")
        key = "args.port" if "port" in self.args else "command"
        if value is None:
            return ("vLLM's default", 8000) if self.is_vllm_server else None
        return (
            (key, int(value))
            if isinstance(value, str) and re.fullmatch(r"[1-9][0-9]{0,4}", value)
            else None
        )

    @property
    def http_port(self) -> int | None:
        """The port in the container that is known to answer HTTP; None where unknown."""
        if self.ready is not None and self.ready.port is not None:
            return self.ready.port
        if self.own_port is not None and (self.is_vllm_server or self.health is not None):
            return self.own_port[1]
        return 8000 if self.health is not None else None

    @property
    def serves(self) -> bool:
        """Whether it is a server: one that ends by itself has failed, with any exit code."""
        return (self.ready is not None or self.health is not None) and not self.interactive

    @property
    def served_name(self) -> str | None:
        """The name by which the server lists its model: `ready.model`, else the first that its
        command gives it.
        """
        return (self.ready.model if self.ready is not None else None) or next(
            iter(self.names), None
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names that vLLM's server lists, by its flags: `served-model-name`, else the model
        that it loads.
        """
        names = self.flag("served-model-name")
        if isinstance(names, tuple):
            return names
        if not isinstance(names, str):
            names = self.flag("model")
            if self.is_vllm and len(self.command) > 2:
                names = self.command[2]
        return (names,) if isinstance(names, str) else ()

    @property
    def is_vllm(self) -> bool:
        """Whether the command is `vllm serve`."""
        return self.command[:2] == ("vllm", "serve")

    @property
    def is_vllm_server(self) -> bool:
        """Whether it starts vLLM's API server, by `vllm serve` or as a module."""
        return self.is_vllm or "vllm.entrypoints.openai.api_server" in self.command
