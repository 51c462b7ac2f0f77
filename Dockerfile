# Written by `envgen render` from profile prod. Edits here are lost: change the project file.
# Of the lines below: 748a04a34ca4.
# FlashInfer 0.5.3 and vLLM 0.14.0, built into the image
# Without envgen:  docker buildx build -f Dockerfile -t mxfp4:prod .
#   --secret id=ca_certificates,src=FILE   a company's CA certificates, for the build's downloads; no layer keeps them
#   --secret id=jobs,src=FILE              the number of compilers at once (default: as memory allows)
#   --build-context wheelhouse=FOLDER      wheels of your own
#
# A step mounts only the programs that it runs. with-network trusts the company's CA; with-index adds pip's index settings.
FROM scratch AS wheelhouse
FROM scratch AS scripts
COPY --chmod=0755 docker/ /
COPY --chmod=0755 docker/runtime/lib/ /lib/
COPY --from=wheelhouse / /lib/wheelhouse/
FROM nvcr.io/nvidia/pytorch:25.12-py3 AS origin

FROM origin AS base
# Installs packages for the build: ca-certificates, ccache, git, ninja-build.
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/runtime/lib/with-network,target=/run/envgen/lib/with-network \
    --mount=from=scripts,source=/build/apt-install,target=/run/envgen/apt-install \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    sh /run/envgen/lib/with-network sh /run/envgen/apt-install ca-certificates ccache git ninja-build

# Installs uv beside the base image's Python, and records which of its packages must stay as they are.
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/lib,target=/run/envgen/lib \
    --mount=type=cache,target=/run/envgen/cache \
    --mount=from=scripts,source=/build/bootstrap,target=/run/envgen/bootstrap \
    --mount=from=scripts,source=/build/protect,target=/run/envgen/protect \
    python3 /run/envgen/lib/with-index sh /run/envgen/bootstrap python3 \
    && python3 /run/envgen/protect record torch torchvision torchaudio triton flash-attn --off torchaudio opencv-python-headless

ENV PATH="/opt/envgen/bin:$PATH" \
    PIP_CONSTRAINT="/opt/envgen/constraints.txt" UV_CONSTRAINT="/opt/envgen/constraints.txt" \
    UV_OVERRIDE="/opt/envgen/overrides.txt"

# What compilers read, in builds and at run time.
FROM base AS cuda
ENV CUDA_HOME="/usr/local/cuda" \
    FLASHINFER_CUDA_ARCH_LIST="12.1a" \
    TORCH_CUDA_ARCH_LIST="12.1a" \
    FLASHINFER_NVCC_THREADS="1" \
    NVCC_THREADS="1"

# Fetches flashinfer: v0.5.3 of https://github.com/flashinfer-ai/flashinfer.git.
FROM base AS source-flashinfer
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/runtime/lib/with-network,target=/run/envgen/lib/with-network \
    --mount=from=scripts,source=/build/fetch-git,target=/run/envgen/fetch-git \
    sh /run/envgen/lib/with-network sh /run/envgen/fetch-git https://github.com/flashinfer-ai/flashinfer.git v0.5.3 /src/flashinfer

FROM cuda AS wheel-flashinfer
# Installs what the build of flashinfer needs: setuptools, packaging, wheel, apache-tvm-ffi.
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/lib,target=/run/envgen/lib \
    --mount=type=cache,target=/run/envgen/cache \
    python3 /run/envgen/lib/with-index python3 /run/envgen/lib/pip-install -- 'setuptools>=77' 'packaging>=24' wheel 'apache-tvm-ffi>=0.1,<0.2'

# Builds the wheel of flashinfer. The number of jobs is a secret, so that changing it rebuilds nothing.
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/runtime/lib/with-network,target=/run/envgen/lib/with-network \
    --mount=type=secret,id=jobs \
    --mount=from=scripts,source=/runtime/bin/compile-gate,target=/run/envgen/lib/compile-gate \
    --mount=type=cache,target=/run/envgen/cache/gate \
    --mount=from=scripts,source=/build/build-wheel,target=/run/envgen/build-wheel \
    --mount=from=source-flashinfer,source=/src/flashinfer,target=/src/flashinfer,rw \
    --mount=type=cache,target=/run/envgen/cache/ccache \
    sh /run/envgen/lib/with-network sh /run/envgen/build-wheel python3 /src/flashinfer /wheels

# Fetches vllm: v0.14.0 of https://github.com/vllm-project/vllm.git.
FROM base AS source-vllm
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/runtime/lib/with-network,target=/run/envgen/lib/with-network \
    --mount=from=scripts,source=/build/fetch-git,target=/run/envgen/fetch-git \
    sh /run/envgen/lib/with-network sh /run/envgen/fetch-git https://github.com/vllm-project/vllm.git v0.14.0 /src/vllm \
    && sh /run/envgen/lib/with-network sh /run/envgen/fetch-git https://github.com/nvidia/cutlass.git v4.2.1 /src/inputs/vllm/cutlass \
    && sh /run/envgen/lib/with-network sh /run/envgen/fetch-git https://github.com/triton-lang/triton.git v3.5.0 /src/inputs/vllm/triton_kernels \
    && sh /run/envgen/lib/with-network sh /run/envgen/fetch-git https://github.com/vllm-project/flash-attention.git 188be16520ceefdc625fdf71365585d2ee348fe2 /src/inputs/vllm/flash_attention \
    && sh /run/envgen/lib/with-network sh /run/envgen/fetch-git https://github.com/vllm-project/FlashMLA 46d64a8ebef03fa50b4ae74937276a5c940e3f95 /src/inputs/vllm/flashmla \
    && sh /run/envgen/lib/with-network sh /run/envgen/fetch-git https://github.com/IST-DASLab/qutlass.git 830d2c4537c7396e14a02a46fbddd18b5d107c65 /src/inputs/vllm/qutlass

# Applies the patches of vllm that its build needs.
RUN --mount=from=scripts,source=/build/apply-patches,target=/run/envgen/apply-patches \
    --mount=source=patches/vllm/0004-marlin-for-sm12x.patch,target=/run/envgen/patches/vllm/0004-marlin-for-sm12x.patch \
    --mount=source=patches/vllm/0005-fa3-for-hopper-only.patch,target=/run/envgen/patches/vllm/0005-fa3-for-hopper-only.patch \
    sh /run/envgen/apply-patches /src/vllm /run/envgen/patches/vllm/0004-marlin-for-sm12x.patch /run/envgen/patches/vllm/0005-fa3-for-hopper-only.patch

FROM cuda AS wheel-vllm
# Installs what the build of vllm needs: cmake, ninja, packaging, setuptools, setuptools-scm, wheel, jinja2, grpcio-tools.
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/lib,target=/run/envgen/lib \
    --mount=type=cache,target=/run/envgen/cache \
    python3 /run/envgen/lib/with-index python3 /run/envgen/lib/pip-install -- 'cmake>=3.26.1' ninja 'packaging>=24.2' 'setuptools>=77.0.3,<81.0.0' 'setuptools-scm>=8' wheel jinja2 'grpcio-tools>=1.76.0'

# Builds the wheel of vllm. The number of jobs is a secret, so that changing it rebuilds nothing.
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/runtime/lib/with-network,target=/run/envgen/lib/with-network \
    --mount=type=secret,id=jobs \
    --mount=from=scripts,source=/runtime/bin/compile-gate,target=/run/envgen/lib/compile-gate \
    --mount=type=cache,target=/run/envgen/cache/gate \
    --mount=from=scripts,source=/build/build-wheel,target=/run/envgen/build-wheel \
    --mount=from=source-vllm,source=/src/vllm,target=/src/vllm,rw \
    --mount=from=source-vllm,source=/src/inputs/vllm,target=/src/inputs/vllm,rw \
    --mount=type=cache,target=/run/envgen/cache/ccache \
    sh /run/envgen/lib/with-network env SETUPTOOLS_SCM_PRETEND_VERSION=0.14.0 VLLM_CUTLASS_SRC_DIR=/src/inputs/vllm/cutlass TRITON_KERNELS_SRC_DIR=/src/inputs/vllm/triton_kernels/python/triton_kernels/triton_kernels VLLM_FLASH_ATTN_SRC_DIR=/src/inputs/vllm/flash_attention FLASH_MLA_SRC_DIR=/src/inputs/vllm/flashmla QUTLASS_SRC_DIR=/src/inputs/vllm/qutlass \
    sh /run/envgen/build-wheel python3 /src/vllm /wheels python3 use_existing_torch.py

# Fetches vocabulary files, each proven by its SHA-256. Needs nothing of the stages above.
FROM origin AS encodings
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/runtime/lib/with-network,target=/run/envgen/lib/with-network \
    --mount=from=scripts,source=/build/fetch,target=/run/envgen/fetch \
    sh /run/envgen/lib/with-network python3 /run/envgen/fetch file /encodings/o200k_base.tiktoken 446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken \
    && sh /run/envgen/lib/with-network python3 /run/envgen/fetch file /encodings/cl100k_base.tiktoken 223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7 https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken

FROM cuda AS final
# Installs fastsafetensors, llama-benchy, fastapi.
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/lib,target=/run/envgen/lib \
    --mount=type=cache,target=/run/envgen/cache \
    python3 /run/envgen/lib/with-index python3 /run/envgen/lib/pip-install --never flashinfer-python --never vllm -- fastsafetensors llama-benchy==0.3.3 'fastapi>=0.115,<0.137'
# Installs flashinfer: the wheel that was built above.
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/lib,target=/run/envgen/lib \
    --mount=type=cache,target=/run/envgen/cache \
    --mount=from=wheel-flashinfer,source=/wheels,target=/run/envgen/wheels \
    python3 /run/envgen/lib/with-index python3 /run/envgen/lib/pip-install --own flashinfer-python --never vllm -- /run/envgen/wheels/*.whl
# Installs vllm: the wheel that was built above.
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/lib,target=/run/envgen/lib \
    --mount=type=cache,target=/run/envgen/cache \
    --mount=from=wheel-vllm,source=/wheels,target=/run/envgen/wheels \
    python3 /run/envgen/lib/with-index python3 /run/envgen/lib/pip-install --own vllm --never flashinfer-python -- /run/envgen/wheels/*.whl
# Applies patches of Python code alone to what is installed: an edit of one costs this step and no compiler.
RUN --mount=from=scripts,source=/build/apply-patches,target=/run/envgen/apply-patches \
    --mount=source=patches/flashinfer/0001-rewrite-build-ninja.patch,target=/run/envgen/patches/flashinfer/0001-rewrite-build-ninja.patch \
    --mount=source=patches/vllm/0001-mxfp4-sm12x-flashinfer-cutlass.patch,target=/run/envgen/patches/vllm/0001-mxfp4-sm12x-flashinfer-cutlass.patch \
    --mount=source=patches/vllm/0002-assume-32bit-indexing-if-there.patch,target=/run/envgen/patches/vllm/0002-assume-32bit-indexing-if-there.patch \
    --mount=source=patches/vllm/0003-fastsafetensors-own-device.patch,target=/run/envgen/patches/vllm/0003-fastsafetensors-own-device.patch \
    sh /run/envgen/apply-patches --installed python3 flashinfer /run/envgen/patches/flashinfer/0001-rewrite-build-ninja.patch \
    && sh /run/envgen/apply-patches --installed python3 vllm /run/envgen/patches/vllm/0001-mxfp4-sm12x-flashinfer-cutlass.patch /run/envgen/patches/vllm/0002-assume-32bit-indexing-if-there.patch /run/envgen/patches/vllm/0003-fastsafetensors-own-device.patch

# Installs what containers run, and the vocabulary files; fails if a package of pip.protect has changed.
RUN --mount=from=scripts,source=/runtime,target=/run/envgen/runtime \
    --mount=from=scripts,source=/build/protect,target=/run/envgen/protect \
    --mount=from=encodings,source=/encodings,target=/run/envgen/encodings \
    python3 /run/envgen/protect verify \
    && cp -R /run/envgen/runtime/. /opt/envgen/ \
    && mkdir -p /workspace/tiktoken_encodings && cp /run/envgen/encodings/* /workspace/tiktoken_encodings/ \
    && echo '[ ! -r /run/envgen-env ] || . /run/envgen-env' >>/etc/bash.bashrc
WORKDIR "/workspace"

# Installs packages for running: curl.
RUN --mount=type=secret,id=ca_certificates \
    --mount=from=scripts,source=/runtime/lib/with-network,target=/run/envgen/lib/with-network \
    --mount=from=scripts,source=/build/apt-install,target=/run/envgen/apt-install \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    sh /run/envgen/lib/with-network sh /run/envgen/apt-install curl

ENV FLASHINFER_NVCC="/opt/envgen/bin/compile-gate" \
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
    org.opencontainers.image.base.name="nvcr.io/nvidia/pytorch:25.12-py3" \
    dev.envgen.patches="flashinfer/0001-rewrite-build-ninja.patch vllm/0001-mxfp4-sm12x-flashinfer-cutlass.patch vllm/0002-assume-32bit-indexing-if-there.patch vllm/0003-fastsafetensors-own-device.patch vllm/0004-marlin-for-sm12x.patch vllm/0005-fa3-for-hopper-only.patch" \
    dev.envgen.inputs="apt.build=ccache%20git%20ninja-build apt.runtime=curl base.image=nvcr.io/nvidia/pytorch:25.12-py3 base.python=python3 build.ccache=true cuda.arch_list=12.1a cuda.home=/usr/local/cuda docker/build/apply-patches=#24fc6875 docker/build/apt-install=#b7a9c9e2 docker/build/bootstrap=#cf21d299 docker/build/build-wheel=#78765535 docker/build/fetch=#8f2a1448 docker/build/fetch-git=#09cbe514 docker/build/protect=#a4e9864c docker/runtime/bin/compile-gate=#fb9fd50d docker/runtime/bin/entrypoint=#7339c0f9 docker/runtime/bin/envgen-env=#48dc745e docker/runtime/bin/envgen-health=#773339f4 docker/runtime/bin/envgen-install=#f534796c docker/runtime/lib/memory-guard=#283750a3 docker/runtime/lib/pip-install=#e31fadff docker/runtime/lib/record-env=#dbac8df2 docker/runtime/lib/with-index=#38f4be85 docker/runtime/lib/with-network=#cdeaccbe patches/flashinfer/0001-rewrite-build-ninja.patch=#1d29de2d patches/vllm/0001-mxfp4-sm12x-flashinfer-cutlass.patch=#1f07a691 patches/vllm/0002-assume-32bit-indexing-if-there.patch=#58e06aad patches/vllm/0003-fastsafetensors-own-device.patch=#ae636f94 patches/vllm/0004-marlin-for-sm12x.patch=#ca7e6530 patches/vllm/0005-fa3-for-hopper-only.patch=#67e6bc13 pip.deps=fastapi>%3D0.115,<0.137 pip.override=torchaudio%20opencv-python-headless pip.protect=torch%20torchvision%20torchaudio%20triton%20flash-attn pip.tools=fastsafetensors%20llama-benchy%3D%3D0.3.3 sources.flashinfer.distribution=flashinfer-python sources.flashinfer.install.dependencies=true sources.flashinfer.install.requires=setuptools>%3D77%20packaging>%3D24%20wheel%20apache-tvm-ffi>%3D0.1,<0.2 sources.flashinfer.origin.git=https://github.com/flashinfer-ai/flashinfer.git sources.flashinfer.origin.ref=v0.5.3 sources.flashinfer.package=flashinfer sources.flashinfer.patches=0001-rewrite-build-ninja.patch sources.vllm.distribution=vllm sources.vllm.install.dependencies=true sources.vllm.install.env=#04c6d753 sources.vllm.install.inputs.cutlass=https://github.com/nvidia/cutlass.git%20v4.2.1 sources.vllm.install.inputs.flash_attention=https://github.com/vllm-project/flash-attention.git%20188be16520ceefdc625fdf71365585d2ee348fe2 sources.vllm.install.inputs.flashmla=https://github.com/vllm-project/FlashMLA%2046d64a8ebef03fa50b4ae74937276a5c940e3f95 sources.vllm.install.inputs.qutlass=https://github.com/IST-DASLab/qutlass.git%20830d2c4537c7396e14a02a46fbddd18b5d107c65 sources.vllm.install.inputs.triton_kernels=https://github.com/triton-lang/triton.git%20v3.5.0 sources.vllm.install.prepare=python3%20use_existing_torch.py sources.vllm.install.requires=#38e21c0c sources.vllm.origin.git=https://github.com/vllm-project/vllm.git sources.vllm.origin.ref=v0.14.0 sources.vllm.package=vllm sources.vllm.patches=#cd18ae5d tiktoken.directory=/workspace/tiktoken_encodings tiktoken.encodings.cl100k_base=#77ac79ed tiktoken.encodings.o200k_base=#e3b72022 working_dir=/workspace" \
    dev.envgen.render="f51e63a05ef176dcbd2c0d2885332919385f60a643311765979fdda04a1a3117"

ENTRYPOINT ["/opt/envgen/bin/entrypoint"]
CMD ["bash"]
