"""Failures as real tools write them, and what is made of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.explain import Circumstances, cause_of, rules, rules_for

LOGS = [
    # memory
    ("out_of_memory", "c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n"
                      "ninja: build stopped: subcommand failed."),
    ("out_of_memory", "nvcc error   : 'cicc' died due to signal 9 (Kill signal)"),
    ("killed", "/bin/sh: line 1:  4711 Killed                  make -j16"),
    ("killed", "Killed"),
    ("killed", "process exited with code 137"),
    ("out_of_memory", 'Killed\n    "OOMKilled": true,'),
    ("out_of_memory", "Killed\n==> memory.events <==\noom 1\noom_kill 2\noom_group_kill 0"),
    ("out_of_memory", "[ 1] python3 invoked oom-killer: gfp_mask=0x1100cca"),
    ("killed", 'Killed\n    "OOMKilled": false,\noom_kill 0'),
    ("no_python", "/bin/sh: 1: python3: not found"),
    ("no_python", "/bin/bash: line 1: python3: command not found"),
    ("no_python", '/run/envgen/lib/with-network: 9: exec: python3: not found'),
    ("no_python", 'exec: "python3": executable file not found in $PATH: unknown'),
    ("out_of_memory", "Killed\nc++: fatal error: Killed signal terminated program cc1plus"),
    ("out_of_memory", "cc1plus: out of memory\nvirtual memory exhausted: Cannot allocate memory"),
    ("out_of_memory", "terminate called after throwing an instance of 'std::bad_alloc'"),
    ("compiler_memory", "subprocess.CalledProcessError: Command '['ninja']' died with <Signals.SIGKILL: 9>."),
    # disk
    ("no_space", "cp: error writing '/wheels/x.whl': No space left on device"),
    ("no_space", "OSError: [Errno 28] No space left on device"),
    ("no_space", "E: You don't have enough free space in /var/cache/apt/archives/."),
    # patches
    ("patch", "Checking patch vllm/a.py...\nerror: while searching for:\nold\nerror: patch failed: vllm/a.py:1\n"
              "error: vllm/a.py: patch does not apply\napply-patches: 0001-x.patch does not apply"),
    ("patch", "patching file a.cu\nHunk #2 FAILED at 10.\n1 out of 2 hunks FAILED -- saving rejects to file a.cu.rej"),
    ("patch", "error: corrupt patch at line 12"),
    # registries
    ("unknown_base", "nvcr.io/nvidia/pytorch:99.99-py3: failed to resolve source metadata for "
                     "nvcr.io/nvidia/pytorch:99.99-py3: nvcr.io/nvidia/pytorch:99.99-py3: not found"),
    ("image_platform", "ERROR: failed to solve: no match for platform in manifest: not found"),
    ("unknown_base", "manifest unknown: manifest unknown"),
    ("other_architecture", "exec /bin/sh: exec format error"),
    ("registry_auth", "failed to solve: acme/base:1: pull access denied, repository does not exist or may require "
                      "authorization: server message: insufficient_scope: authorization failed"),
    ("registry_auth", "failed to authorize: failed to fetch anonymous token: unexpected status from GET request to "
                      "https://nvcr.io/proxy_auth?scope=x: 401 Unauthorized"),
    ("rate_limit", "toomanyrequests: You have reached your unauthenticated pull rate limit."),
    ("rate_limit", "unexpected status from HEAD request: 429 Too Many Requests"),
    # networks
    ("tls", "pip._vendor.requests.exceptions.SSLError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
            "self-signed certificate in certificate chain"),
    ("tls", "fatal: unable to access 'https://github.com/x/': SSL certificate problem: unable to get local issuer "
            "certificate"),
    ("tls", "tls: failed to verify certificate: x509: certificate signed by unknown authority"),
    ("tls", "Caused by: invalid peer certificate: UnknownIssuer"),
    ("proxy", "curl: (56) Received HTTP code 407 from proxy after CONNECT"),
    ("proxy", "ProxyError('Cannot connect to proxy.', NewConnectionError('...'))"),
    ("proxy", 'proxyconnect tcp: dial tcp 10.0.0.1:3128: connect: connection refused'),
    ("dns", "fatal: unable to access 'https://github.com/x/': Could not resolve host: github.com"),
    ("dns", "W: Failed to fetch http://deb.example.org/debian  Temporary failure resolving 'deb.example.org'"),
    ("dns", "dial tcp: lookup nvcr.io on 127.0.0.53:53: no such host"),
    ("dns", "error: failed to lookup address information: Name or service not known"),
    ("network", "error: RPC failed; curl 56 GnuTLS recv error (-9)\nfatal: early EOF"),
    ("network", "net/http: TLS handshake timeout"),
    ("network", "ReadTimeoutError(\"HTTPSConnectionPool(host='index.example.org', port=443): Read timed out.\")"),
    ("network", "dial tcp 1.2.3.4:443: i/o timeout"),
    ("network", "curl: (7) Failed to connect to github.com port 443: Connection refused"),
    # sources and packages
    ("git_ref", "fatal: couldn't find remote ref refs/pull/999999/head"),
    ("git_ref", "fetch-git: https://github.com/x/y.git has no v9.9.9"),
    ("python_package", "ERROR: No matching distribution found for flashinfer-python==0.0.0"),
    ("python_package", "  x No solution found when resolving dependencies:"),
    ("debian_package", "E: Unable to locate package ccachee"),
    ("debian_package", "E: Reading state information...\nUnable to locate package ccachee"),
    ("build_dependency", "    ModuleNotFoundError: No module named 'iniconfig'\n\n"
                         "hint: This error likely indicates that `lib@1.5` "
                         "depends on `iniconfig`, but doesn't declare it as a build dependency."),
    ("source_release", '#28 ERROR: process "/bin/sh -c make" did not complete successfully: exit code: 137: context '
                       "canceled: context canceled\n"
                       "#20 fetch: no source distribution of humanize 99.0 on https://index.example.org/simple"),
    ("protected_package", "protect: torch 2.10 of the base image was replaced by 2.9 in /x\n"
                          "protect: an installation broke pip.protect; switch the dependency off in pip.override"),
    ("dockerfile", "ERROR: failed to solve: dockerfile parse error on line 2: unknown instruction: RUNN"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "log"), LOGS)
def test_known_failures(kind: str, log: str) -> None:
    cause = cause_of(["Collecting wheels", *log.splitlines(), "make: *** [Makefile:3: all] Error 1"])
    assert cause is not None
    assert cause.rule == kind
    assert cause.evidence and cause.evidence in log
    assert cause.cause and cause.cure


SERVICE_LOGS = [
    ("cuda_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    (
        "memory_taken",
        "ValueError: Free memory on device (3/119 GiB) on startup is less than desired GPU memory utilization",
    ),
    (
        "toolkit_missing",
        'Error response from daemon: could not select device driver "nvidia" with capabilities: [[gpu]]',
    ),
    ("gpu", "RuntimeError: Found no NVIDIA driver on your system."),
    ("fp4_arch", "ptxas error: Instruction 'cvt.e2m1x2' not supported on .target 'sm_121'"),
    ("cuda_arch", "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    ("model_access", "huggingface_hub.errors.GatedRepoError: 401 Client Error."),
    ("model_missing", "OSError: acme/tiny is not a local folder and is not a valid model identifier listed on"),
    ("vocabulary", "openai_harmony.HarmonyError: error downloading or loading vocab file: failed to download"),
    ("shared_memory", "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'"),
    ("module_missing", "ModuleNotFoundError: No module named 'vllm'"),
    ("arguments", "api_server.py: error: unrecognized arguments: --max-modl-len 5"),
    ("program_missing", 'exec: "vllm": executable file not found in $PATH'),
    ("podman_init", 'container create: lookup init binary: exec: "catatonit": executable file not found in $PATH'),
    ("port", "OSError: [Errno 98] Address already in use"),
    ("killed", "RuntimeError: Engine core was killed\nKilled"),
    (
        "attention_sinks",
        "ValueError: Selected backend AttentionBackendEnum.FLASHINFER is not valid for this configuration. "
        "Reason: ['sink setting not supported']",
    ),
    (
        "attention_sinks",
        "ValueError: Selected backend AttentionBackendEnum.FLASHINFER is not valid for this configuration. "
        "Reason: ['attention sinks not supported']",
    ),
    ("moe_backend", "NotImplementedError: No NvFp4 MoE backend supports the deployment configuration."),
    ("moe_backend", "RuntimeError: FlashInfer-CUTLASS MoE kernel does not support current device sm_120"),
    (
        "cutlass_kernel",
        "RuntimeError: [TensorRT-LLM][ERROR] Assertion failed: Failed to initialize cutlass TMA WS grouped gemm. "
        "Error: Error Internal",
    ),
    ("cutlass_kernel", "RuntimeError: Unsupported tile shape config 256256128 for MoE gemm."),
    ("cutlass_kernel", "Not Implemented: SM120 group GEMM only supports nvfp4."),
    ("other_archs_only", "RuntimeError: No supported CUDA architectures found for major versions [9, 10]."),
    ("no_supported_archs", "RuntimeError: No supported CUDA architectures found for major versions [10, 12]."),
    ("cuda_compat", "Error 804: forward compatibility was attempted on non supported HW"),
    ("nvcc_path", "/bin/sh: 1: :/usr/local/cuda/bin/nvcc: not found"),
    ("harmony_tokens", "openai_harmony.HarmonyError: Unexpected token 12606 while expecting start token 200006"),
    (
        "ray_memory",
        "(raylet) node_manager.cc:3069: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers",
    ),
    ("rdma_memory", "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"),
]


@pytest.mark.parametrize(("kind", "log"), SERVICE_LOGS)
def test_known_failures_of_services(kind: str, log: str) -> None:
    cause = cause_of(["INFO starting", *log.splitlines()], service=True)
    assert cause is not None and cause.rule == kind


def test_the_kinds_above_are_rules() -> None:
    known = {rule.rule for rule in rules()}
    assert {kind for kind, _ in LOGS + SERVICE_LOGS} <= known


@pytest.mark.parametrize(
    "line",
    [
        "skilled workers", "[5/9] Building CUDA object oom_handler.cu.o", "Successfully installed killed-1.0",
        "test_not_found ... ok", "warning: unused variable 'proxy'", "copying x509.py", "error: expected ';'",
        "make: *** [Makefile:3: all] Error 1",
        '#28 ERROR: process "/bin/sh -c make" did not complete successfully: exit code: 137: context canceled',
    ],
)  # fmt: skip
def test_what_merely_looks_like_a_cause(line: str) -> None:
    assert cause_of([line], Circumstances(exit_code=1)) is None


def test_the_certain_cause_beats_an_early_warning() -> None:
    lines = ["WARNING: Retrying after connection broken: Read timed out.", "ok", "Killed", "make: *** Error 137"]
    cause = cause_of(lines, Circumstances(exit_code=2))
    assert cause is not None and cause.rule == "killed" and cause.evidence == "Killed"


def test_exit_137_alone_says_killed_not_why() -> None:
    cause = cause_of(["compiling"], Circumstances(exit_code=137))
    assert cause is not None and (cause.rule, cause.evidence) == ("killed", "exit code 137")
    assert "another program" in cause.cause and "whether it was memory" in cause.cure and "--max-jobs 1" in cause.cure


@pytest.mark.parametrize(
    "line",
    [
        "DEBUG Some attention backends are not valid for cuda. Reasons: {FLASHINFER: [sink setting not supported]}",
        "PATH=/usr/bin:/usr/local/cuda/bin/nvcc", "[1/9] /usr/local/cuda/bin/nvcc -c page.cu",
        "node:237:237 [0] NCCL INFO dlvsym failed on x - /lib/libmlx5.so: undefined symbol: x, version MLX5_1.25",
        "(EngineCore pid=9) WARNING 11-26 06:28:55 [flashinfer.py:670] Temporary failure in name resolution)",
        "2026-11-26 06:28:55,098 - WARNING - core.py:594 - flashinfer.jit: No space left on device",
    ],
)  # fmt: skip
def test_what_a_healthy_service_prints(line: str) -> None:
    assert cause_of([line], service=True) is None


def test_what_the_engine_knows_of_memory_is_certain() -> None:
    killed = Circumstances(exit_code=137, oom_killed=True)
    cause = cause_of(["loading"], killed, service=True)
    assert cause is not None and cause.rule == "server_memory" and "Docker" in cause.evidence
    assert "compil" not in cause.cause + cause.cure  # no compiler ran
    better = cause_of(["torch.OutOfMemoryError: CUDA out of memory."], killed, service=True)
    assert better is not None and better.rule == "cuda_memory"


def test_a_very_long_line_is_cut_in_the_evidence() -> None:
    cause = cause_of(["No space left on device " + "x" * 10_000_000])
    assert cause is not None and len(cause.evidence) <= 400


@given(st.lists(st.text()), st.none() | st.integers(-255, 255))
def test_any_text_is_taken(lines: list[str], code: int | None) -> None:
    cause = cause_of(lines, Circumstances(exit_code=code))
    assert cause is None or cause.rule in {rule.rule for rule in rules_for("build")}
