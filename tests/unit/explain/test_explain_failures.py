"""Failures as real tools write them, and what is made of them."""

from __future__ import annotations

import pytest

from envgen.explain import Circumstances
from envgen.explain.read import cause_of, read_lines

# What a pattern takes that no rule's own example has, and several lines that each have a rule.
LOGS = [
    ("out_of_memory", "build", "c++: fatal error: Killed signal terminated program cc1plus\ncompilation "
                               "terminated.\nninja: build stopped: subcommand failed."),
    ("out_of_memory", "build", 'Killed\n    "OOMKilled": true,'),
    ("out_of_memory", "build", "Killed\n==> memory.events <==\noom 1\noom_kill 2\noom_group_kill 0"),
    ("killed", "build", 'Killed\n    "OOMKilled": false,\noom_kill 0'),
    ("no_python", "build", 'exec: "python3": executable file not found in $PATH: unknown'),
    ("out_of_memory", "build", "Killed\nc++: fatal error: Killed signal terminated program cc1plus"),
    ("out_of_memory", "build", "cc1plus: out of memory\nvirtual memory exhausted: Cannot allocate memory"),
    ("bad_alloc", "build", "terminate called after throwing an instance of 'std::bad_alloc'"),
    ("compiler_memory", "build", "subprocess.CalledProcessError: Command '['ninja']' died with <Signals.SIGKILL: 9>."),
    ("no_space", "build", "E: You don't have enough free space in /var/cache/apt/archives/."),
    ("patch", "build", "Checking patch a.py...\nerror: while searching for:\nold\nerror: patch failed: a.py:1\nerror: "
                       "a.py: patch does not apply\napply-patches: 0001-x.patch does not apply"),
    ("no_supported_archs", "serve", "RuntimeError: No supported CUDA\narchitectures found for major versions [12]."),
    ("patch_file", "build", "error: corrupt patch at line 12"),
    ("image_platform", "build", "ERROR: failed to solve: no match for platform in manifest: not found"),
    ("registry_auth", "build", "failed to solve: acme/base:1: pull access denied, repository does not exist or may "
                               "require authorization: server message: insufficient_scope: authorization failed"),
    ("rate_limit", "build", "unexpected status from HEAD request: 429 Too Many Requests"),
    ("tls", "build", "pip._vendor.requests.exceptions.SSLError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify "
                     "failed: self-signed certificate in certificate chain"),
    ("tls", "build", "fatal: unable to access 'https://github.com/x/': SSL certificate problem: unable to get local "
                     "issuer certificate"),
    ("tls", "build", "Caused by: invalid peer certificate: UnknownIssuer"),
    ("proxy", "build", "ProxyError('Cannot connect to proxy.', NewConnectionError('...'))"),
    ("proxy", "build", "proxyconnect tcp: dial tcp 10.0.0.1:3128: connect: connection refused"),
    ("dns", "build", "fatal: unable to access 'https://github.com/x/': Could not resolve host: github.com"),
    ("dns", "build", "W: Failed to fetch http://deb.example.org/debian  Temporary failure resolving "
                     "'deb.example.org'"),
    ("dns", "build", "error: failed to lookup address information: Name or service not known"),
    ("network", "build", "net/http: TLS handshake timeout"),
    ("network", "build", "ReadTimeoutError(\"HTTPSConnectionPool(host='index.example.org', port=443): Read timed "
                         "out.\")"),
    ("network", "build", "dial tcp 1.2.3.4:443: i/o timeout"),
    ("network", "build", "curl: (7) Failed to connect to github.com port 443: Connection refused"),
    ("git_ref", "build", "fetch-git: https://github.com/x/y.git has no v9.9.9"),
    ("undeclared_dependency", "build", "ModuleNotFoundError: No module named 'iniconfig'\n\nhint: This error likely "
                                  "indicates that `lib@1.5` depends on `iniconfig`, but doesn't declare it as a "
                                  "build dependency."),
    ("git_ref", "build", "fatal: reference is not a tree: 7554e4a32b15929289aa80e8bc8a4e5f6f779407"),
    ("image_platform", "build", "ERROR: failed to solve: a/b:1: failed to resolve source metadata for "
                                "docker.io/a/b:1: no match for platform in manifest: not found"),
    ("no_ray", "serve", 'error during container init: exec: "ray": executable file not found in $PATH: unknown'),
    ("module_parts", "serve", "ModuleNotFoundError: No module named 'vllm.entrypoints.openai.engine'"),
    ("gpu_fault", "serve", "NVRM: Xid (PCI:0000:01:00): 78, vGPU start failed"),
    ("xid_memory", "serve", "NVRM: Xid (PCI:0000:01:00): 94, pid=1, Contained: SM. RST: No"),
    ("transformers_name", "serve", "ImportError: cannot import name 'Glm9Config' from 'transformers' (/x.py)"),
    ("weights_names", "serve", "ValueError: There is no module or parameter named 'a.b' in Qwen3ForCausalLM"),
    ("fp4_arch", "serve", "ptxas error: Instruction 'cvt.e2m1x2' not supported on .target 'sm_121'"),
    ("attention_sinks", "serve", "ValueError: Selected backend AttentionBackendEnum.FLASHINFER is not valid for this "
                                 "configuration. Reason: ['sink setting not supported']"),
    ("attention_sinks", "serve", "ValueError: Selected backend AttentionBackendEnum.FLASHINFER is not valid for this "
                                 "configuration. Reason: ['attention sinks not supported']"),
    ("moe_backend_none", "serve", "NotImplementedError: No NvFp4 MoE backend supports the deployment configuration."),
    ("moe_backend", "serve", "RuntimeError: FlashInfer-CUTLASS MoE kernel does not support current device sm_120"),
    ("cutlass_kernel", "serve", "RuntimeError: [TensorRT-LLM][ERROR] Assertion failed: Failed to initialize cutlass "
                                "TMA WS grouped gemm. Error: Error Internal"),
    ("cutlass_kernel", "serve", "RuntimeError: Unsupported tile shape config 256256128 for MoE gemm."),
    ("cutlass_kernel", "serve", "Not Implemented: SM120 group GEMM only supports nvfp4."),
    ("cuda_forward", "serve", "Error 804: forward compatibility was attempted on non supported HW"),
    ("ray_memory", "serve", "(raylet) node_manager.cc:3069: 1 Workers (tasks / actors) killed due to memory pressure "
                            "(OOM), 0 Workers"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "log"), LOGS)
def test_known_failures(name: str, kind: str, log: str) -> None:
    cause = cause_of(
        ["INFO starting", *log.splitlines(), "make: *** [Makefile:3: all] Error 1"], service=kind == "serve"
    )
    assert cause is not None and cause.rule == name
    assert cause.evidence and cause.evidence in log


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
    assert all(words in cause.cause + cause.cure for words in ("another program", "it was memory", "build.max_jobs=1"))


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


OWN = "Including non-PyTorch memory, this process has"
OTHERS = (
    "Process 34 has 78.37 GiB memory in use. Of the allocated memory 0 bytes is allocated",
    f"Process 7 has 29.04 GiB memory in use. {OWN} 3.14 GiB memory in use.",
    f"{OWN} 41.20 GiB memory in use. Process 7 has 98.00 GiB memory in use.",
    f"Process 7 has 0 bytes memory in use. Process 8 has 110.00 GiB memory in use. {OWN} 802.00 MiB",
)
OURS = (  # in a container, the first may be the server itself
    "Process 7 has 78.37 GiB memory in use. Of the allocated memory 71.00 GiB is allocated",
    f"Process 7 has 12.10 GiB memory in use. {OWN} 66.00 GiB memory in use.",
    f"{OWN} 78.01 GiB memory in use. Of the allocated memory 1.20 GiB is allocated",
)


@pytest.mark.parametrize("uses", OTHERS + OURS)
def test_whose_memory_it_is(uses: str) -> None:
    lines = [
        "Loading safetensors checkpoint shards:   0% Completed",
        f"torch.OutOfMemoryError: CUDA out of memory. {uses}",
    ]
    (found,) = read_lines(lines, kind="serve").explanations
    assert found.rule == ("memory_others" if uses in OTHERS else "cuda_memory")
    assert ("GiB of it, more than this server" in found.cause) is (uses in OTHERS)


@pytest.mark.parametrize("log", ["ERROR: failed to build: failed to solve: x did not complete: cannot allocate memory",
                                 "$ docker build -t a .\ncannot allocate memory"])  # fmt: skip
def test_the_end_of_a_build_gets_no_fix_of_a_server(log: str) -> None:
    (found,) = read_lines(log.splitlines()).explanations
    assert found.rule == "build_memory" and "gpu-memory-utilization" not in found.cure


def test_a_parser_keeps_its_first_letter() -> None:
    (found,) = read_lines(["KeyError: invalid tool call parser: hermes2 (chose from { granite })"]).explanations
    assert "`hermes2`" in found.cause


def test_a_server_does_not_end_of_one_request() -> None:
    request = '{"error":{"message":"Expecting value: line 1","type":"BadRequestError","param":null,"code":400}}'
    died = Circumstances(failed=True, exit_code=1)
    assert [one.rule for one in read_lines([request]).explanations] == ["request_json"]
    assert read_lines([request], died, kind="serve").cause is None
    lines = [request, "torch.OutOfMemoryError: CUDA out of memory."]
    assert [one.rule for one in read_lines(lines, died, kind="serve").explanations] == ["cuda_memory"]
