"""Makes the containers of doctor_scenes.py as Compose would label them, and runs `envgen doctor --json` on them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from doctor_lab import IMAGE, PP, PROJECT, docker, path_of, project

from envgen.cli import run_line as envgen

Report = dict[str, Any]


class Stage:
    """Makes containers as Compose would label them, and asks doctor about them."""

    def __init__(self, root: Path) -> None:
        self.root, self.count = root, 0

    def folder(self, name: str) -> Path:
        found = self.root / name
        found.mkdir()
        return found

    def labelled(self, tag: str, base: str = IMAGE, **labels: str) -> str:
        """An image of the lab with labels, as a build would set them."""
        name = f"{IMAGE}:{tag}-{PROJECT}"
        lines = [f"FROM {base}", *(f'LABEL dev.envgen.{key}="{value}"' for key, value in labels.items())]
        context = self.folder(f"image-{tag}")
        (context / "Dockerfile").write_text("\n".join(lines) + "\n")
        docker("build", "-q", "-t", name, str(context))
        return name

    def start(
        self,
        *,
        variant: str = "hook",
        path: str = PP,
        profile: str = "dev",
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        image: str = IMAGE,
        command: Sequence[str] = (),
        script: str = "",
        init: bool = True,
    ) -> str:
        """A container; ``script`` runs in it once it is up."""
        self.count += 1
        name = f"{PROJECT}-scene-{self.count}"
        values = {"PATH": path_of(variant), **({"PYTHONPATH": path} if path else {}), **(env or {})}
        labels = {"project": f"{PROJECT}-{profile}", "service": "dev" if profile == "dev" else "serve"}
        docker(
            "run", "-d", "--network", "none", "--name", name, *(["--init"] if init else []),
            *(word for key, value in labels.items() for word in ("--label", f"com.docker.compose.{key}={value}")),
            *(word for key, value in values.items() for word in ("-e", f"{key}={value}")), *args, image, *command,
        )  # fmt: skip
        if script:
            docker("exec", name, "sh", "-ec", script)
        return name

    def doctor(
        self, *words: str, profile: str = "dev", sets: Sequence[str] = (), variant: str = "hook", **values: str
    ) -> Report:
        """What the command says, in this process."""
        folder = self.root / f"project-{self.count}-{time.monotonic_ns()}"
        folder.mkdir()
        file = project(folder, variant=variant, **values)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            envgen(
                ["doctor", "--json", "-f", str(file), "-p", profile, *words, *(w for s in sets for w in ("--set", s))]
            )
        return dict(json.loads(out.getvalue()))

    def clear(self) -> None:
        found = docker("ps", "-aq", "--filter", f"name=^{PROJECT}-scene-").split()
        if found:
            docker("rm", "-f", "-v", *found)

    def remove_images(self) -> None:
        found = docker("image", "ls", "-q", "--filter", f"reference={IMAGE}:*-{PROJECT}").split()
        if found:
            docker("image", "rm", "-f", *set(found))


def site(variant: str) -> str:
    return f"/venv/{variant}/lib/python3.11/site-packages"


def metadata(variant: str, name: str, version: str) -> str:
    """Shell that makes pip believe in a distribution: its metadata and nothing else."""
    folder = f"{site(variant)}/{name.replace('-', '_')}-{version}.dist-info"
    text = f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n"
    return f"mkdir -p {folder} && printf '{text}' > {folder}/METADATA && touch {folder}/RECORD\n"


def note(name: str, document: Any) -> str:
    """Shell that leaves what a build leaves in /opt/envgen."""
    return f"mkdir -p /opt/envgen && cat > /opt/envgen/{name} <<'NOTE'\n{json.dumps(document)}\nNOTE\n"


def locked(**versions: str) -> dict[str, Any]:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    return {"inputs": {f"linux/{machine} pip deps {name}": version for name, version in versions.items()}}
