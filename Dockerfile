# Written by `envgen render` from profile prod. Edits here are lost: change the project file.
# Of the lines below: 676f08d72e10.
# vLLM and FlashInfer from released wheels, on NVIDIA's CUDA image
# Without envgen:  docker buildx build -f Dockerfile -t mxfp4:prod .
#   --secret id=ca_certificates,src=FILE   a company's CA certificates, for the build's downloads; no layer keeps them
#   --build-context wheelhouse=FOLDER      wheels of your own
#
# A step mounts only the programs that it runs. with-network trusts the company's CA; with-index adds pip's index settings.
FROM scratch AS wheelhouse
FROM scratch AS scripts
COPY --chmod=0755 docker/ /
COPY --chmod=0755 docker/runtime/lib/ /lib/
COPY --from=wheelhouse / /lib/wheelhouse/
FROM nvcr.io/nvidia/cuda:13.0.2-devel-ubuntu24.04 AS origin

FROM origin AS base
# Installs packages for the build: ca-certificates, python3, python3-dev, python3-pip.
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/runtime/lib/with-network,target=/run/envgen/lib/with-network \
    --mount=from=scripts,source=/build/apt-install,target=/run/envgen/apt-install \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    sh /run/envgen/lib/with-network sh /run/envgen/apt-install ca-certificates python3 python3-dev python3-pip

# Installs uv beside the base image's Python, and records which of its packages must stay as they are.
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/lib,target=/run/envgen/lib \
    --mount=type=cache,target=/run/envgen/cache \
    --mount=from=scripts,source=/build/bootstrap,target=/run/envgen/bootstrap \
    --mount=from=scripts,source=/build/protect,target=/run/envgen/protect \
    python3 /run/envgen/lib/with-index sh /run/envgen/bootstrap python3 \
    && python3 /run/envgen/protect record torch torchvision torchaudio triton flash-attn --off

ENV PATH="/opt/envgen/bin:$PATH" \
    PIP_CONSTRAINT="/opt/envgen/constraints.txt" UV_CONSTRAINT="/opt/envgen/constraints.txt" \
    UV_OVERRIDE="/opt/envgen/overrides.txt"

# Fetches vocabulary files, each proven by its SHA-256. Needs nothing of the stages above.
FROM base AS encodings
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/runtime/lib/with-network,target=/run/envgen/lib/with-network \
    --mount=from=scripts,source=/build/fetch,target=/run/envgen/fetch \
    sh /run/envgen/lib/with-network python3 /run/envgen/fetch file /encodings/o200k_base.tiktoken 446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken \
    && sh /run/envgen/lib/with-network python3 /run/envgen/fetch file /encodings/cl100k_base.tiktoken 223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7 https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken

FROM base AS final
# Installs llama-benchy, cuda-python.
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/lib,target=/run/envgen/lib \
    --mount=type=cache,target=/run/envgen/cache \
    python3 /run/envgen/lib/with-index python3 /run/envgen/lib/pip-install --never flashinfer-python --never vllm -- llama-benchy==0.4.0 'cuda-python>=13,<14'
# Installs flashinfer-python, vllm==0.33.0.
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/lib,target=/run/envgen/lib \
    --mount=type=cache,target=/run/envgen/cache \
    python3 /run/envgen/lib/with-index python3 /run/envgen/lib/pip-install --own flashinfer-python --own vllm -- flashinfer-python vllm==0.33.0

# Installs what containers run, and the vocabulary files; fails if a package of pip.protect has changed.
RUN --mount=from=scripts,source=/runtime,target=/run/envgen/runtime \
    --mount=from=scripts,source=/build/protect,target=/run/envgen/protect \
    --mount=from=encodings,source=/encodings,target=/run/envgen/encodings \
    python3 /run/envgen/protect verify \
    && cp -R /run/envgen/runtime/. /opt/envgen/ \
    && mkdir -p /workspace/tiktoken_encodings && cp /run/envgen/encodings/* /workspace/tiktoken_encodings/ \
    && echo '[ ! -r /run/envgen-env ] || . /run/envgen-env' >>/etc/bash.bashrc
WORKDIR "/workspace"

# Installs packages for running: curl, ninja-build.
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/runtime/lib/with-network,target=/run/envgen/lib/with-network \
    --mount=from=scripts,source=/build/apt-install,target=/run/envgen/apt-install \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    sh /run/envgen/lib/with-network sh /run/envgen/apt-install curl ninja-build

ENV CUDA_HOME="/usr/local/cuda" \
    FLASHINFER_CUDA_ARCH_LIST="12.1a" \
    TORCH_CUDA_ARCH_LIST="12.1a" \
    FLASHINFER_NVCC_THREADS="1" \
    NVCC_THREADS="1" \
    FLASHINFER_NVCC="/opt/envgen/bin/compile-gate" \
    PYTORCH_NVCC="/opt/envgen/bin/compile-gate" \
    CCACHE_PREFIX="/opt/envgen/bin/compile-gate" \
    CMAKE_C_COMPILER_LAUNCHER="/opt/envgen/bin/compile-gate" \
    CMAKE_CXX_COMPILER_LAUNCHER="/opt/envgen/bin/compile-gate" \
    CMAKE_CUDA_COMPILER_LAUNCHER="/opt/envgen/bin/compile-gate" \
    SSL_CERT_FILE="/etc/ssl/certs/ca-certificates.crt" \
    REQUESTS_CA_BUNDLE="/etc/ssl/certs/ca-certificates.crt" \
    TIKTOKEN_ENCODINGS_BASE="/workspace/tiktoken_encodings"

LABEL dev.envgen.project="mxfp4" \
    dev.envgen.profile="prod" \
    dev.envgen.lock="" \
    org.opencontainers.image.base.name="nvcr.io/nvidia/cuda:13.0.2-devel-ubuntu24.04" \
    dev.envgen.inputs="apt.runtime=curl%20ninja-build base.apt=python3%20python3-dev%20python3-pip base.image=nvcr.io/nvidia/cuda:13.0.2-devel-ubuntu24.04 base.python=python3 cuda.arch_list=12.1a cuda.home=/usr/local/cuda docker/build/apt-install=#a074dfbc docker/build/bootstrap=#cf21d299 docker/build/fetch=#b15e6f59 docker/build/protect=#a4e9864c docker/runtime/bin/compile-gate=#fb9fd50d docker/runtime/bin/entrypoint=#7339c0f9 docker/runtime/bin/envgen-env=#48dc745e docker/runtime/bin/envgen-health=#773339f4 docker/runtime/bin/envgen-install=#f534796c docker/runtime/lib/memory-guard=#46e6ea11 docker/runtime/lib/pip-install=#d348c9c9 docker/runtime/lib/record-env=#9e421dce docker/runtime/lib/server=#3995d4f2 docker/runtime/lib/with-index=#b1cf40b6 docker/runtime/lib/with-network=#cdeaccbe pip.deps=cuda-python>%3D13,<14 pip.protect=torch%20torchvision%20torchaudio%20triton%20flash-attn pip.tools=llama-benchy%3D%3D0.4.0 sources.flashinfer.distribution=flashinfer-python sources.flashinfer.install.dependencies=true sources.flashinfer.origin.wheel=flashinfer-python sources.vllm.distribution=vllm sources.vllm.install.dependencies=true sources.vllm.origin.wheel=vllm%3D%3D0.33.0 tiktoken.directory=/workspace/tiktoken_encodings tiktoken.encodings.cl100k_base=#77ac79ed tiktoken.encodings.o200k_base=#e3b72022 working_dir=/workspace" \
    dev.envgen.render="af89dc0fa7bc3f4809958ebb6c77810b7999987611ba2e0445f9e8381237ee11"

ENTRYPOINT ["/opt/envgen/bin/entrypoint"]
CMD ["bash"]
