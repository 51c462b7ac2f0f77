"""What `envgen prune` finds in folders and volumes, with find itself. tests/engine/test_prune.py has real volumes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from envgen.app import prune
from envgen.deployment import Deployment
from envgen.engine import process
from envgen.engine.values import ContainerMount, ExecResult
from envgen.profile.load import load_project

TEXT = """\
version: 1
name: lab
profiles:
  prod:
    mode: production
    gpu: none
    base: {image: "base:1"}
    caches: {huggingface: {path: /root/.cache/huggingface, host: my weights}}
    services:
      serve: {command: [sleep, infinity], model: {repo: acme/tiny}}
      other: {command: [sleep, infinity], model: {repo: acme/tiny}}
"""


class Engine:
    """An engine of this machine, whose volumes are in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def info(self) -> object:
        return type("Info", (), {"local": True})

    def image(self, _name: str) -> None:
        return None

    def run_once(self, image: str, argv: Sequence[str], **_: object) -> ExecResult:
        assert image == "lab:prod"
        return process.run([f"{self.folder}{word}" if word.startswith("/lab-prod") else word for word in argv])


def put(path: Path, days: float, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (time.time() - days * 86400,) * 2)
    return path


def test_parts_that_nobody_has_written_to_for_a_week_go(tmp_path: Path) -> None:
    (tmp_path / "envgen.yaml").write_text(TEXT)
    blobs = tmp_path / "my weights/hub/models--acme--tiny/blobs"
    old = [put(blobs / "aa.incomplete", 7.1), put(blobs / "dd.ee.incomplete", 40, 7)]
    young, whole = put(blobs / "bb.incomplete", 6.9), put(blobs / "cc", 40)
    other = put(blobs.parents[1] / "models--b--c/blobs/d.incomplete", 40)
    (blobs / "link.incomplete").symlink_to(whole)
    project = load_project(tmp_path / "envgen.yaml").project
    deployment = Deployment(project.profiles["prod"], tmp_path).with_cached(engine=Engine(tmp_path))
    (item,) = prune._downloads(deployment)
    assert (item.kind, item.name, item.bytes) == ("download", str(blobs), 17)
    put(old[0], 0)  # somebody goes on with it meanwhile
    assert prune.remove([item]) == [""]
    assert not old[1].exists() and all(it.exists() for it in (old[0], young, whole, other))
    assert list(prune._downloads(deployment)) == []


def test_kernels_of_releases_that_nothing_has_loaded_for_a_month(tmp_path: Path) -> None:
    (tmp_path / "envgen.yaml").write_text(TEXT)
    volume = ContainerMount("lab-prod-cache-flashinfer", "/root/.cache/flashinfer", "volume")
    top = tmp_path / volume.source
    for release, days in {"0.5.3": 40, "0.6.1": 45, "0.7.2": 29, "0.7.3": 33, "0.7.4": 28}.items():
        put(top / release / "121a/cached_ops/page/page so", days)
        put(top / release / "121a/generated/page.cu", 0)
    put(top / "0.7.3/121a/cached_ops/x\n1 2 y/z.so", 50, 7)
    lock = put(top / "0.6.1/121a/cached_ops/tmp/page.lock", 1, 0)  # loaded yesterday
    put(top / "0.5.1/cached_ops/tmp/page.lock", 0, 0)  # what a clear leaves
    put(top / ".envgen/0.5.3/121a/cached_ops/page", 99)
    put(top / "autotune/cached_ops/x.json", 99)
    project = load_project(tmp_path / "envgen.yaml").project
    deployment = Deployment(project.profiles["prod"], tmp_path).with_cached(engine=Engine(tmp_path))

    def left_over() -> dict[str, int]:
        return {item.name.partition(": ")[2]: item.bytes for item in prune._kernels(deployment, volume)}

    assert left_over() == {"0.5.3": 10, "0.7.3": 17}
    os.utime(lock, (time.time() - 60 * 86400,) * 2)
    assert left_over() == {"0.5.3": 10, "0.6.1": 10, "0.7.3": 17}
    for release in ("0.7.2", "0.7.4"):
        put(top / release / "121a/cached_ops/page/page so", 31 if release == "0.7.4" else 50)
    assert "0.7.4" not in left_over() and "0.7.2" in left_over()  # 0.7.4 was loaded last
