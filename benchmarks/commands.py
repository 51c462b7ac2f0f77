"""The commands against their floors and peers, in one run: python benchmarks/commands.py [--engine]

Needs hpccm beside envgen in this environment (pip install hpccm); with --engine a Docker Engine and the base image.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import yaml
from ratio import HEADER, Command, row

TOP = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PYTHON = sys.executable
ENVGEN = str(BIN / "envgen")

# A multi-stage recipe in hpccm's own words, comparable to one envgen profile: two sources built, one image.
RECIPE = """
Stage0 += baseimage(image='nvcr.io/nvidia/pytorch:25.12-py3', _as='devel')
Stage0 += apt_get(ospackages=['git', 'cmake', 'ninja-build', 'ccache'])
Stage0 += pip(packages=['fastsafetensors', 'llama-benchy'], pip='pip3')
for name, url, tag in (('flashinfer', 'https://github.com/flashinfer-ai/flashinfer.git', 'v0.5.3'),
                       ('vllm', 'https://github.com/vllm-project/vllm.git', 'v0.14.0')):
    Stage0 += shell(commands=['git clone --depth 1 -b %s %s /src/%s' % (tag, url, name),
                              'cd /src/%s && git submodule update --init' % name,
                              'pip wheel --no-deps --no-build-isolation -w /wheels /src/%s' % name])
Stage1 += baseimage(image='nvcr.io/nvidia/pytorch:25.12-py3')
Stage1 += copy(_from='devel', src='/wheels', dest='/wheels')
Stage1 += shell(commands=['pip install --no-deps /wheels/*.whl'])
Stage1 += environment(variables={'FLASHINFER_CUDA_ARCH_LIST': '12.1a', 'VLLM_ATTENTION_BACKEND': 'FLASHINFER'})
Stage1 += label(metadata={'org.opencontainers.image.title': 'vllm'})
Stage1 += workdir(directory='/workspace')
"""


def start_up_and_render(work: Path) -> list[str]:
    project = work / "project"
    project.mkdir()
    for name in ("envgen.yaml", "patches"):
        source = TOP / name
        if source.is_dir():
            shutil.copytree(source, project / name)
        elif source.exists():
            shutil.copy(source, project / name)
    # The recipe describes one image, so the project that it is held against has one profile: production.
    single = work / "single"
    single.mkdir()
    document = yaml.safe_load((TOP / "envgen.yaml").read_text())
    del document["profiles"]["dev"]
    document["default_profile"] = "prod"
    (single / "envgen.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    if (TOP / "patches").is_dir():
        shutil.copytree(TOP / "patches", single / "patches")
    recipe = work / "recipe.py"
    recipe.write_text(RECIPE)
    help_ = Command("envgen --help", [ENVGEN, "--help"])
    click = Command("`python -c 'import click'`", [PYTHON, "-c", "import click"])
    render = Command("envgen render", [ENVGEN, "render"], cwd=project)
    imports = Command("`python -c 'import click, yaml, jinja2'`", [PYTHON, "-c", "import click, yaml, jinja2"])
    rows = [row("`envgen --help`", help_, click, 1.3), row("`envgen render`", render, imports, 1.3)]
    if (BIN / "hpccm").exists():
        peer = Command("hpccm, comparable recipe", [str(BIN / "hpccm"), "--recipe", str(recipe)])
        one = Command("envgen render", [ENVGEN, "render"], cwd=single)
        rows.append(row("`envgen render`, one profile", one, peer, 1.0))
        # Another name of the project each time: it stands in every rendered file.
        edited = ["sh", "-c", f'sed -i "s/^name: .*/name: x$$/" envgen.yaml; exec {ENVGEN} render']
        rows.append(row("the same, after an edit", Command("envgen render", edited, cwd=single), peer, 1.0))
        fresh = ["env", f"XDG_CACHE_HOME={work / 'none'}", "sh", "-c", f"rm -rf {work / 'none'}; exec {ENVGEN} render"]
        rows.append(row("the same, nothing remembered", Command("envgen render", fresh, cwd=single), peer, 1.0))
    else:
        rows.append("| `envgen render` | | hpccm is not installed here | | | 1.0x | not measured |")
    return rows


def on_an_engine(work: Path) -> list[str]:
    project = work / "quickstart"
    shutil.copytree(TOP / "examples" / "quickstart", project)
    for name in ("flashinfer", "vllm"):
        package = project / "checkouts" / name / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (project / "checkouts" / name / "pyproject.toml").write_text(f'[project]\nname = "{name}"\nversion = "0"\n')
    build = Command("envgen build", [ENVGEN, "build"], cwd=project)
    up = Command("envgen up", [ENVGEN, "up", "dev", "--no-install"], cwd=project)
    down = Command("envgen down", [ENVGEN, "down", "--volumes"], cwd=project)
    import subprocess

    subprocess.run(build.argv, cwd=project, check=True, capture_output=True)
    dockerfile = project / ".envgen" / "render" / "demo" / "Dockerfile.demo"
    bare = Command(
        "bare `docker buildx build`, all cached",
        ["docker", "buildx", "build", "-q", "-f", str(dockerfile), "-t", "envgen-bench:demo", str(project)],
    )
    rows = [row("`envgen build`, nothing to do", build, bare, 0.75)]
    subprocess.run(up.argv, cwd=project, check=True, capture_output=True)
    try:
        container = subprocess.run(
            ["docker", "ps", "-q", "--filter", "label=com.docker.compose.project=quickstart-demo"],
            check=True, capture_output=True, text=True,
        ).stdout.split()[0]  # fmt: skip
        execute = Command(
            "bare `docker exec C python3 -c pass`", ["docker", "exec", container, "python3", "-c", "pass"]
        )
        # The stub checkouts are not installed, so doctor ends with 1: what is timed is the same work.
        doctor = Command("envgen doctor", [ENVGEN, "doctor"], cwd=project, code=1)
        rows.append(row("`envgen doctor`", doctor, execute, 2.5))
    finally:
        subprocess.run(down.argv, cwd=project, check=False, capture_output=True)
        subprocess.run(["docker", "image", "rm", "-f", "envgen-bench:demo", "quickstart:demo"], check=False,
                       capture_output=True)  # fmt: skip
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="envgen-bench-") as folder:
        work = Path(folder)
        rows = start_up_and_render(work)
        if "--engine" in sys.argv:
            rows += on_an_engine(work)
    print("\n".join([HEADER, *rows]))


if __name__ == "__main__":
    main()
