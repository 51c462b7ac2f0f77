# Written by `envgen render` from profile prod. Edits here are lost: change the project file.
# vLLM and FlashInfer from released wheels, on NVIDIA's CUDA image
# Without envgen:  docker buildx build -f Dockerfile -t mxfp4:prod .
# and a shell in it: docker run --rm -it --ipc host --gpus all mxfp4:prod
# It needs BuildKit 0.12 (Docker 25). The built-in frontend is enough, so there is no `# syntax=` line.

# Programs of the build: a step mounts only those that it runs. with-index gives uv the settings that pip has.
FROM scratch AS scripts
COPY --chmod=0755 docker/ /

# A -devel image: kernels are compiled while a server starts, with its nvcc, ptxas and headers.
FROM nvcr.io/nvidia/cuda:13.0.2-devel-ubuntu24.04@sha256:5dc1bca23d05bd37b011be68ec470c03b403a5da07ec3a86e41af9470e9d0cc6 AS base
# The time of all that is added; every later stage inherits it.
ARG SOURCE_DATE_EPOCH="1767225600"
# Installs packages for the build: ca-certificates, python3, python3-dev, python3-pip.
RUN --mount=from=scripts,source=/build/apt-install,target=/run/envgen/apt-install \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    /run/envgen/apt-install ca-certificates python3 python3-dev python3-pip

# Links the base image's Python.
# The lock was made without the base image: stops where that is not what the lock assumes.
RUN --mount=from=scripts,source=/build/bootstrap,target=/run/envgen/bootstrap \
    /run/envgen/bootstrap python3 python==3.12
ENV PATH="/opt/envgen/bin:$PATH"

# Fetches uv, which steps that install packages mount.
FROM base AS uv
RUN --mount=from=scripts,source=/runtime/lib,target=/run/envgen/lib \
    --mount=type=cache,target=/run/envgen/cache \
    --mount=from=scripts,source=/profiles/prod/locked/uv.txt,target=/run/envgen/locked.txt \
    python3 /run/envgen/lib/with-index python3 -m pip install --quiet --no-input --no-deps --no-compile --target /opt/uv --require-hashes -r /run/envgen/locked.txt

FROM base AS final
# Installs llama-benchy, cuda-python.
RUN --mount=from=scripts,source=/runtime/lib,target=/run/envgen/lib \
    --mount=type=cache,target=/run/envgen/cache \
    --mount=from=uv,source=/opt/uv/bin/uv,target=/opt/envgen/bin/uv \
    --mount=from=scripts,source=/profiles/prod/locked/deps.txt,target=/run/envgen/locked.txt \
    python3 /run/envgen/lib/with-index uv pip install --system --break-system-packages --compile-bytecode --no-deps --require-hashes -r /run/envgen/locked.txt
# Installs flashinfer-python==0.7.2.post1, vllm==0.33.0.
RUN --mount=from=scripts,source=/runtime/lib,target=/run/envgen/lib \
    --mount=type=cache,target=/run/envgen/cache \
    --mount=from=uv,source=/opt/uv/bin/uv,target=/opt/envgen/bin/uv \
    --mount=from=scripts,source=/profiles/prod/locked/install.txt,target=/run/envgen/locked.txt \
    python3 /run/envgen/lib/with-index uv pip install --system --break-system-packages --compile-bytecode --no-deps --require-hashes -r /run/envgen/locked.txt
# Installs packages for running: curl, ninja-build.
RUN --mount=from=scripts,source=/build/apt-install,target=/run/envgen/apt-install \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    /run/envgen/apt-install curl ninja-build

# gpt-oss's vocabulary, which it would fetch when it starts.
ADD --checksum=sha256:446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d --chmod=0644 https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken /workspace/tiktoken_encodings/o200k_base.tiktoken
ADD --checksum=sha256:223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7 --chmod=0644 https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken /workspace/tiktoken_encodings/cl100k_base.tiktoken
# Runtime programs: entry point, health check, compile-gate
COPY --from=scripts /runtime /opt/envgen
COPY --from=scripts --chmod=0644 /profiles/prod/runtime/manifest.json /opt/envgen/
# Variables that a service gets when it starts are in its shells, too.
RUN echo '[ ! -r /run/envgen-env ] || . /run/envgen-env' >>/etc/bash.bashrc
WORKDIR /workspace

# Services run as a user of the host. Through their second group, root's, they write to these folders and new volumes.
RUN install -d -m 0775 /run /root /workspace /root/.cache /root/.cache/huggingface /root/.cache/flashinfer /root/.cache/vllm /root/.cache/torch /root/.triton /root/.triton/cache

ENV CUDA_HOME="/usr/local/cuda" \
    FLASHINFER_CUDA_ARCH_LIST="12.1a" \
    TORCH_CUDA_ARCH_LIST="12.1a" \
    FLASHINFER_NVCC_THREADS="1" \
    NVCC_THREADS="1" \
    FLASHINFER_NVCC="/opt/envgen/bin/compile-gate" \
    PYTORCH_NVCC="/opt/envgen/bin/compile-gate" \
    TIKTOKEN_ENCODINGS_BASE="/workspace/tiktoken_encodings"

LABEL dev.envgen.project="mxfp4" \
    dev.envgen.profile="prod" \
    dev.envgen.lock="81f2bc8735a9aa2cd86ee2c0d07de6fdb64fc6825cad8534702165b9811ce35b" \
    org.opencontainers.image.title="mxfp4 prod" \
    org.opencontainers.image.description="vLLM and FlashInfer from released wheels, on NVIDIA's CUDA image" \
    org.opencontainers.image.version="flashinfer 0.7.2.post1, vllm 0.33.0" \
    org.opencontainers.image.base.name="nvcr.io/nvidia/cuda:13.0.2-devel-ubuntu24.04" \
    org.opencontainers.image.base.digest="sha256:5dc1bca23d05bd37b011be68ec470c03b403a5da07ec3a86e41af9470e9d0cc6" \
    dev.envgen.render="5571e2230e88ada2c81a7c81b65a5a4fac784fd8509c098f85390f198efc58b7"
ENTRYPOINT ["/opt/envgen/bin/entrypoint"]
CMD ["bash"]
