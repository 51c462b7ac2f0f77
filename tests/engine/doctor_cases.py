"""Which scenario makes each check of doctor find what, and which shows it silent. Plain data: unit tests read it too.

A scenario is a function of the same name in ``doctor_scenes.py``: a real container, and the whole command on it.
"""

from __future__ import annotations

# check -> case -> scenario
FIRES: dict[str, dict[str, str]] = {
    "host.docker": {"absent": "no_engine"},
    "host.gpu": {"no-cdi": "wants_cdi", "no-runtime": "little_memory", "no-gpu": "requires_a_gpu"},
    "host.ports": {"taken": "busy_port"},
    "host.exposure": {"open": "busy_port"},
    "host.clock": {"skew": "wrong_clock"},
    "image.exists": {"missing": "no_image"},
    "image.render": {"foreign": "trap", "outdated": "outdated"},
    "image.platform": {"wrong": "wrong_platform", "emulated": "emulated"},
    "container.running": {
        "none": "no_image", "ended": "restart_loop", "stopped": "stopped", "unhealthy": "bad_notes",
    },
    "container.others": {"died": "other_service_died", "paused": "other_service_paused"},
    "up.refused": {"refused": "no_image"},
    "weights.whole": {"not-whole": "weights_cut"},
    "container.image": {"older": "outdated"},
    "container.env": {"differ": "trap"},
    "container.restart": {"endless": "restart_loop", "looping": "restart_loop", "restarted": "restarted_once"},
    "python.start": {"no-document": "no_python", "hook": "hook_kills", "part": "bad_notes", "noise": "wrong_clock"},
    "mounts.sources": {
        "no-mount": "trap", "owner": "mount_of_another_user",
        **dict.fromkeys(("elsewhere", "moved", "missing", "empty", "no-package", "read-only", "dangling"), "mounts"),
    },
    "import.truth": {
        "trap": "trap", "other-file": "other_file", "incomplete": "incomplete",
        "shadowed": "shadowed", "fails": "good",
    },
    "import.running": {"other": "runs_another", "older": "runs_older"},
    "import.metadata": {"other-name": "vllm_wrong", "twice": "bad_notes"},
    "packages.locked": {"differ": "bad_versions"},
    "packages.protected": {"replaced": "bad_versions"},
    "patches.claimed": {"missing": "claims_lost"},
    "flashinfer.data": {"missing": "bad_versions", "unknown-version": "bad_notes"},
    "flashinfer.set": {"mismatch": "bad_versions"},
    "flashinfer.prebuilt": {"masked": "bad_notes"},
    "serve.flags": {"unknown": "vllm_wrong"},
    "mounts.caches": {"not-mounted": "bad_notes", "not-writable": "mount_of_another_user"},
    "tiktoken.files": {"missing": "vocabulary_missing", "other-file": "bad_notes"},
    "cuda.versions": {"cuda": "bad_versions", "cudnn": "bad_versions", "torch-cuda": "bad_versions"},
    "cuda.compilers": {"arch": "unknown_arch", "broken": "bad_versions"},
    "gpu.devices": {"none": "little_memory"},
    "jit.memory": {"off": "bad_versions"},
    "memory.unified": {"page-cache": "cached_memory"},
}  # fmt: skip

# check -> scenario in which it has nothing to say but OK. The ones that judge only what is there say so themselves.
SILENT: dict[str, str] = {
    **dict.fromkeys(
        (
            "host.docker", "host.plugins", "host.ports", "host.exposure", "host.clock", "image.exists",
            "image.render", "image.platform", "container.running", "container.image", "container.env",
            "container.restart", "python.start", "mounts.sources", "import.scripts", "import.metadata",
            "packages.locked", "packages.protected", "flashinfer.data",
            "flashinfer.set", "flashinfer.prebuilt", "mounts.caches", "tiktoken.files", "cuda.versions",
            "cuda.compilers", "jit.memory",
        ),
        "good",
    ),
    "patches.claimed": "claims_kept",
    "import.running": "runs_right",
    "memory.unified": "little_memory",
    "weights.whole": "weights_whole",
    "serve.flags": "vllm_right",
}  # fmt: skip

# Checks that have nothing to say where nothing is wrong: in this scenario they make no finding at all.
MUTE: dict[str, str] = {
    **dict.fromkeys(("host.events", "host.holders", "host.blocks"), "good"),
    "host.gpu": "good",  # gpu: none
    "host.memory": "good",  # the same
    "host.owners": "good",  # as root
    "gpu.devices": "good",
    "image.patches": "good",
    "patches.mounted": "good",
    "container.log": "good",
    "container.others": "good",
    "up.refused": "good",  # a container runs
}
