"""The files of a service on several machines: one for the head, one for all workers, whatever their number."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from envgen.errors import ProjectError
from envgen.profile.load import load_project
from envgen.render.outputs import render_profile

TEXT = """\
version: 1
name: several
defaults:
  nodes:
{nodes}
profiles:
  cpu:
    mode: production
    base: {{image: debian}}
    cuda: {{arch_list: 12.1a}}
    services:
      serve:
        command: [vllm, serve, /models/tiny]
        args: {args}
        cluster: {{nodes: [{names}]}}
"""


def project(folder: Path, count: int, args: str) -> Path:
    names = [f"spark-{place}" for place in range(1, count + 1)]
    nodes = "\n".join(
        f"    {name}: {{context: {name}, address: 10.0.0.{place}, interface: eth0}}"
        for place, name in enumerate(names, 1)
    )
    file = folder / "envgen.yaml"
    file.write_text(TEXT.format(nodes=nodes, names=", ".join(names), args=args), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("count", "args"),
    [
        (2, "{tensor-parallel-size: 2}"),
        (3, "{pipeline-parallel-size: 3}"),
        (4, "{tensor-parallel-size: 4}"),
        (4, "{tensor-parallel-size: 2, pipeline-parallel-size: 2}"),
        (8, "{tensor-parallel-size: 8}"),
    ],
)
def test_one_file_for_the_head_and_one_for_the_workers(count: int, args: str, tmp_path: Path) -> None:
    profile = load_project(file=project(tmp_path, count, args), environ={}).project.profiles["cpu"]
    files = render_profile(profile, root=tmp_path).files
    added = {part: yaml.safe_load(files[f"compose/cpu.serve.{part}.yaml"])["services"]["serve"] for part in
             ("head", "worker")}  # fmt: skip
    assert sorted(name for name in files if ".serve." in name) == [
        f"compose/cpu.serve.{part}.yaml" for part in ("head", "rdma", "worker")
    ]
    words = {part: one["command"] for part, one in added.items()}
    assert [one[one.index("--nnodes") + 1] for one in words.values()] == [str(count)] * 2
    assert [word for word in words["worker"] if word not in words["head"]] == ["--headless"]
    assert all(one["network_mode"] == "host" for one in added.values())


@pytest.mark.parametrize(("count", "ranks"), [(3, 2), (4, 2), (4, 6), (8, 12)])
def test_ranks_that_the_machines_cannot_share_are_refused(count: int, ranks: int, tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match=f"{ranks} ranks cannot be shared by {count} machines"):
        load_project(file=project(tmp_path, count, f"{{tensor-parallel-size: {ranks}}}"), environ={})
