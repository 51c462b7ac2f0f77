"""Commands and Compose files from public issues, pull requests and repositories, shortened to what matters; folders of
people's machines have other names.

Each: the text, its words after `vllm serve`, and what else must be in the profile or be named as not placed.
"""

from __future__ import annotations

from typing import Any

PUBLIC: dict[str, tuple[str, str, dict[str, Any]]] = {
    "vllm#3710": (
        "docker stop vllm_d\ndocker rm vllm_d\n"
        "docker run -d --restart unless-stopped \\\n    --runtime nvidia --gpus all \\\n    --name vllm_d \\\n"
        "    -v /home/super/data/models:/workspace/models \\\n    -p 5010:8000 \\\n    --shm-size 10.24g \\\n"
        "    --ipc=host \\\n    -e CUDA_VISIBLE_DEVICES=0,1 \\\n    -e NCCL_P2P_DISABLE=1 \\\n"
        "    vllm/vllm-openai:latest \\\n    --gpu-memory-utilization 0.7 --trust-remote-code \\\n"
        "    --max-model-len 8192 --model /workspace/models/Qwen1.5-7B-Chat \\\n"
        "    --served-model-name Qwen1.5-7B-Chat \\\n    --tensor-parallel-size 2 --enforce-eager\n"
        "docker logs -f vllm_d\n",
        "/workspace/models/Qwen1.5-7B-Chat --gpu-memory-utilization 0.7 --trust-remote-code --max-model-len 8192"
        " --served-model-name Qwen1.5-7B-Chat --tensor-parallel-size 2 --enforce-eager",
        {
            "ports": ["5010:8000"], "gpu": ["0", "1"], "ipc": "host", "env": {"NCCL_P2P_DISABLE": "1"},
            "restart": "unless-stopped", "left": ["volumes /home/super/data/models:/workspace/models: "],
        },
    ),
    "sonar#562": (
        "sudo docker run --shm-size=32g --log-opt max-size=10m --log-opt max-file=1 --rm -it"
        " --gpus '\"device=0,1,2,3\"' -p 9000:8000 --mount type=bind,source=/home/me/.cache,target=/root/.cache"
        " vllm/vllm-openai:v0.5.3.post1 --model casperhansen/llama-3-70b-instruct-awq --tensor-parallel-size 4"
        " --dtype half --gpu-memory-utilization 0.92 -q awq",
        "casperhansen/llama-3-70b-instruct-awq --tensor-parallel-size 4 --dtype half --gpu-memory-utilization 0.92"
        " --quantization awq",
        {
            "ports": ["9000:8000"], "gpu": ["0", "1", "2", "3"], "shm": "32g",
            "left": ["log-opt max-size=10m: ", "log-opt max-file=1: ", "volumes /home/me/.cache:/root/.cache: "],
        },
    ),
    "yandy/dockerapps": (
        "docker run --rm --gpus all -v $PWD/.cache/huggingface:/root/.cache/huggingface -p 8000:8000 --ipc=host"
        " vllm/vllm-openai:v0.6.6.post1 --model deepseek-ai/DeepSeek-V3 --trust-remote-code\n",
        "deepseek-ai/DeepSeek-V3 --trust-remote-code",
        {"ports": ["8000:8000"], "ipc": "host", "caches": {"huggingface": "./.cache/huggingface"}},
    ),
    "vllm#12308": (
        """\
services:
  embeddings:
    image: vllm/vllm-openai:v0.6.4
    command:
      - "--task"
      - "embedding"
      - "--model"
      - "intfloat/multilingual-e5-large"
      - "--host"
      - "0.0.0.0"
      - "--port"
      - "9000"
      - "--gpu-memory-utilization"
      - "0.25"
    environment:
      - HF_TOKEN=$HF_TOKEN
      - CUDA_VISIBLE_DEVICES=0
    volumes:
      - /home/ubuntu/.cache/huggingface/:/root/.cache/huggingface/
    ports:
      - "9010:9000"
    deploy:
      resources:
        reservations:
          devices:
          - driver: nvidia
            count: all
            capabilities: [gpu]
    healthcheck:
      test: curl -f http://localhost:9000/health || exit 1
      start_period: 30s
    restart: always
""",
        "intfloat/multilingual-e5-large --task embedding --port 9000 --gpu-memory-utilization 0.25",
        {
            "ports": ["9010:9000"], "secrets": ["HF_TOKEN"], "gpu": ["0"], "restart": "always",
            "left": ["volumes /home/ubuntu/.cache/huggingface/:/root/.cache/huggingface/: ", "healthcheck: "],
        },
    ),
    "devstral": (
        """\
version: '3.8'
services:
  vllm:
    image: vllm/vllm-openai:latest
    container_name: vllm-devstral
    ipc: host
    env_file:
      - ../.env
    volumes:
      - ~/.cache/huggingface:/root/.cache/huggingface
      - ~/vllm/llm/models:/models
    ports:
      - "80:8000"
    command: --model /models/Devstral-Small-2505-UD-Q8_K_XL.gguf --trust-remote-code --tensor-parallel-size 2
    restart: unless-stopped
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: all
              capabilities: [gpu]
""",
        "/models/Devstral-Small-2505-UD-Q8_K_XL.gguf --trust-remote-code --tensor-parallel-size 2",
        {
            "ports": ["80:8000"], "gpu": [], "mounts": ["~/vllm/llm/models:/models"],
            "caches": {"huggingface": "~/.cache/huggingface"}, "left": ["env_file ../.env: "],
        },
    ),
    "vision": (
        """\
services:
 vllm:
    image: vllm/vllm-openai:v0.6.3.post1
    ports:
      - "8000:8000"
    volumes:
      - /mnt/llm:/app/model
    command: [
      "--model", "/app/model/Llama-3.2-11B-Vision-Instruct",
      "--gpu-memory-utilization", "0.65",
      "--max-num-seqs","2",
      "--quantization","fp8",
      "--enforce-eager",]
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids: ['0','1']
              capabilities: [gpu]
""",
        "/app/model/Llama-3.2-11B-Vision-Instruct --gpu-memory-utilization 0.65 --max-num-seqs 2 --quantization fp8"
        " --enforce-eager",
        {"ports": ["8000:8000"], "gpu": ["0", "1"], "left": ["volumes /mnt/llm:/app/model: "]},
    ),
    "defaults": (
        """\
services:
  vllm:
    image: vllm/vllm-openai:latest
    volumes:
      - ${HF_HOME:-~/.cache/huggingface}:/root/.cache/huggingface
    ports:
      - "8000:8000"
    environment:
      - HUGGING_FACE_HUB_TOKEN=${HUGGING_FACE_HUB_TOKEN}
    command: --model ${MODEL:-google/gemma-2-9b-it} --tensor-parallel-size ${TP:-4} --host 0.0.0.0 --port 8000
    ipc: host
    ulimits:
      memlock: -1
      stack: 67108864
    networks:
      - vllm_network
""",
        "google/gemma-2-9b-it --tensor-parallel-size 4",
        {
            "secrets": ["HF_TOKEN"], "ipc": "host", "ulimits": {"memlock": -1, "stack": 67108864},
            "caches": {"huggingface": "~/.cache/huggingface"}, "left": ["networks vllm_network: "],
        },
    ),
    "folded": (
        """\
version: "3"
services:
  vllm-openai:
    volumes:
      - ~/.cache/huggingface:/root/.cache/huggingface
      - ./models:/models
    environment:
      - HUGGING_FACE_HUB_TOKEN=
    ports:
      - 8000:8000
    image: vllm/vllm-openai:latest
    command: >
      --model /models/mistral
      --max-model-len 2048
      --max-num-seqs 64
""",
        "/models/mistral --max-model-len 2048 --max-num-seqs 64",
        {"ports": ["8000:8000"], "secrets": ["HF_TOKEN"], "mounts": ["./models:/models"], "env": {}},
    ),
    "vllm-cpu": (
        "# Start vllm container\ndocker run -d \\\n  --name vllm \\\n  -p 8000:8000 \\\n  --privileged=true \\\n"
        "  quay.io/higginsd/vllm-cpu:65393ee064 \\\n  --host 0.0.0.0 \\\n  --port 8000 \\\n"
        "  --enable-auto-tool-choice \\\n  --tool-call-parser llama3_json \\\n"
        "  --model /root/.cache/Llama-3.2-1B-Instruct \\\n  --served-model-name meta-llama/Llama-3.2-1B-Instruct\n",
        "/root/.cache/Llama-3.2-1B-Instruct --enable-auto-tool-choice --tool-call-parser llama3_json"
        " --served-model-name meta-llama/Llama-3.2-1B-Instruct",
        {"ports": ["8000:8000"], "left": ["privileged true: "]},
    ),
    "lora": (
        "docker run -it --name vllm-server --rm --gpus='\"device=0\"' --ipc=host --ulimit memlock=-1 \\\n"
        "  --ulimit stack=67108864 -v $(pwd):/workspace -p 8001:8001 \\\n  -e NCCL_P2P_DISABLE=1 \\\n"
        "  vllm/vllm-openai:v0.7.2 \\\n  --model /workspace/Qwen2.5-7B-Instruct-bnb-4bit \\\n  --enable-lora \\\n"
        "  --lora-modules grpo=/workspace/Qwen2.5-7B-Instruct-qlora/checkpoint-1 \\\n  --load-format bitsandbytes \\\n"
        "  --port 8001 \\\n  --max_model_len 8096\n",
        "/workspace/Qwen2.5-7B-Instruct-bnb-4bit --enable-lora"
        " --lora-modules grpo=/workspace/Qwen2.5-7B-Instruct-qlora/checkpoint-1 --load-format bitsandbytes"
        " --port 8001 --max-model-len 8096",
        {"ports": ["8001:8001"], "gpu": ["0"], "mounts": [".:/workspace"], "ulimits": {"memlock": -1, "stack": 67108864}},
    ),
    "offline": (
        "docker run --runtime nvidia --gpus all -v ~/.cache/huggingface:/root/.cache/huggingface \\\n"
        '  --env "HF_HUB_OFFLINE=1" -p 8000:8000 --ipc=host vllm/vllm-openai:latest \\\n'
        '  --model Qwen/Qwen2.5-Coder-0.5B-Instruct --max_model_len 1024 --api_key "EMPTY"\n',
        "Qwen/Qwen2.5-Coder-0.5B-Instruct --max-model-len 1024",
        {"env": {"HF_HUB_OFFLINE": "1"}, "left": ["api-key: write"]},
    ),
    # In the long form, as Compose's own documentation has it.
    "long form": (
        """\
services:
  vllm:
    image: vllm/vllm-openai:latest
    gpus: all
    command: o/m --chat-template /app/chat.jinja
    ports:
      - target: 8000
        published: "9000"
        host_ip: 127.0.0.1
        protocol: tcp
    volumes:
      - {type: bind, source: ./chat.jinja, target: /app/chat.jinja, read_only: true}
      - type: bind
        source: ~/.cache/huggingface
        target: /root/.cache/huggingface
      - {type: tmpfs, target: /tmp}
""",
        "o/m --chat-template /app/chat.jinja",
        {
            "ports": ["127.0.0.1:9000:8000"], "mounts": ["./chat.jinja:/app/chat.jinja"],
            "caches": {"huggingface": "~/.cache/huggingface"}, "left": ["volumes type=tmpfs,target=/tmp: "],
        },
    ),
}  # fmt: skip

# With the address of each, read on 2026-11-29: who wrote it wanted a server, not a test.
ADDRESSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "github.com/vllm-project/vllm/blob/0487d5c2/docs/getting_started/installation/gpu.cuda.inc.md": (
        "podman run --device nvidia.com/gpu=all \\\n-v ~/.cache/huggingface:/root/.cache/huggingface \\\n"
        '--env "HF_TOKEN=$HF_TOKEN" \\\n-p 8000:8000 \\\n--ipc=host \\\ndocker.io/vllm/vllm-openai:latest \\\n'
        "--model Qwen/Qwen3-0.6B\n",
        "Qwen/Qwen3-0.6B",
        {"secrets": ["HF_TOKEN"], "caches": {"huggingface": "~/.cache/huggingface"}, "none": ["device"]},
    ),
    "github.com/eugr/spark-vllm-docker/issues/272": (
        "docker run -d \\\n  --name vllm-gemma-4-26b-a4b-it-nvfp4 \\\n  --gpus all --ipc=host --network host \\\n"
        "  -e VLLM_NVFP4_GEMM_BACKEND=marlin \\\n  -v ~/.cache/huggingface:/root/.cache/huggingface \\\n"
        "  -v /home/me/gemma4_patched.py:/usr/local/lib/python3.12/dist-packages/vllm/model_executor/models/gemma4.py \\\n"
        "  vllm-node-tf5:latest  \\\n  vllm serve bg-digitalservices/Gemma-4-26B-A4B-it-NVFP4 \\\n"
        "    --served-model-name gemma-4-26b \\\n    --host 0.0.0.0 --port 8888 \\\n    --quantization modelopt \\\n"
        "    --dtype auto \\\n    --kv-cache-dtype fp8 \\\n    --gpu-memory-utilization 0.85 \\\n"
        "    --max-model-len 262144 \\\n    --max-num-seqs 4 \\\n    --moe-backend marlin \\\n    --trust-remote-code\n",
        "bg-digitalservices/Gemma-4-26B-A4B-it-NVFP4 --served-model-name gemma-4-26b --port 8888 --quantization modelopt"
        " --dtype auto --kv-cache-dtype fp8 --gpu-memory-utilization 0.85 --max-model-len 262144 --max-num-seqs 4"
        " --moe-backend marlin --trust-remote-code",
        {
            "network": "host", "ipc": "host", "env": {"VLLM_NVFP4_GEMM_BACKEND": "marlin"},
            "left": ["volumes /home/me/gemma4_patched.py:/usr/local"],
        },
    ),
    "github.com/eugr/spark-vllm-docker/issues/133": (
        "docker run \\\n  --privileged \\\n  --gpus all \\\n  -it --rm \\\n  --network host --ipc=host \\\n"
        "  -v  ~/.cache/modelscope:/root/.cache/modelscope \\\n  vllm-node \\\n"
        '  bash -c -i " VLLM_USE_MODELSCOPE=True  vllm serve \\\n  QuantTrio/Qwen3.5-27B-AWQ \\\n'
        "  --port 8000 --host 0.0.0.0 \\\n  --gpu-memory-utilization 0.7 \\\n"
        '  --load-format fastsafetensors"\n',
        "QuantTrio/Qwen3.5-27B-AWQ --gpu-memory-utilization 0.7 --load-format fastsafetensors",
        {
            "network": "host", "env": {"VLLM_USE_MODELSCOPE": "True"}, "left": ["privileged: "],
            "mounts": ["~/.cache/modelscope:/root/.cache/modelscope"],
        },
    ),
    "github.com/Th0rgal/vllm-gb10-dgx-spark/blob/491ae5a6/README.md": (
        "docker run -d --name step3-vl \\\n  --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 \\\n"
        "  -p 8000:8000 -v /root/.cache/huggingface:/root/.cache/huggingface \\\n"
        "  th0rgal/vllm-gb10-dgx-spark:latest \\\n  vllm serve stepfun-ai/Step3-VL-10B \\\n    -tp 1 \\\n"
        "    --reasoning-parser deepseek_r1 \\\n    --enable-auto-tool-choice \\\n    --tool-call-parser hermes \\\n"
        "    --trust-remote-code\n",
        "stepfun-ai/Step3-VL-10B --tensor-parallel-size 1 --reasoning-parser deepseek_r1 --enable-auto-tool-choice"
        " --tool-call-parser hermes --trust-remote-code",
        {"ports": ["8000:8000"], "ipc": "host", "ulimits": {"memlock": -1, "stack": 67108864}},
    ),
    "github.com/vllm-project/vllm/issues/27251": (
        "docker run -d   --name Qwen3-Coder-480B-A35B-Instruct-GGUF   --runtime nvidia   --gpus '\"device=0,1,2,3,4,5,6,7\"'"
        "   -v /my_model/Qwen3-Coder-480B-GGUF:/root/.cache/modelscope/Qwen3-Coder-480B-GGUF   -p 8056:8081   --ipc=host"
        "   docker.io/vllm/vllm-openai:v0.10.2   --api-key qwen3coder480b"
        "     --model /root/.cache/modelscope/Qwen3-Coder-480B-GGUF/Qwen3-Coder-480B-A35B-Instruct-Q4_K_M-Merge.gguf"
        "   --served-model-name Qwen3-Coder-480B-A35B-Instruct   --enable-auto-tool-choice   --tool-call-parser qwen3_coder"
        "   --gpu-memory-utilization 0.85   --tensor-parallel-size 8 --reasoning-parser qwen3   --max-model-len 50000"
        "   --port 8081",
        "/root/.cache/modelscope/Qwen3-Coder-480B-GGUF/Qwen3-Coder-480B-A35B-Instruct-Q4_K_M-Merge.gguf"
        " --served-model-name Qwen3-Coder-480B-A35B-Instruct --enable-auto-tool-choice --tool-call-parser qwen3_coder"
        " --gpu-memory-utilization 0.85 --tensor-parallel-size 8 --reasoning-parser qwen3 --max-model-len 50000 --port 8081",
        {"ports": ["8056:8081"], "gpu": list("01234567"), "left": ["api-key: write", "volumes /my_model/Qwen3"]},
    ),
    "github.com/nlzy/vllm-gfx906/issues/63": (
        "docker run --rm -it   --ipc=host   --device /dev/kfd   --device /dev/dri   -p 8000:8000"
        "   -v /models/QwQ-32B-GPTQ:/model   docker.io/mixa3607/vllm-gfx906:jena-20251010004720"
        "   python3 -m vllm.entrypoints.openai.api_server     --model /model     --max-model-len 32768"
        "     --gpu-memory-utilization 0.98     --enforce-eager     --enable-auto-tool-choice     --tool-call-parser hermes",
        "/model --max-model-len 32768 --gpu-memory-utilization 0.98 --enforce-eager --enable-auto-tool-choice"
        " --tool-call-parser hermes",
        {"left": ["device /dev/kfd: ", "device /dev/dri: ", "volumes /models/QwQ-32B-GPTQ:/model: "]},
    ),
    "github.com/vllm-project/vllm/issues/3435": (
        """\
services:
  vllm:
    image: vllm/vllm-openai:latest
    command: --model mistralai/Mistral-7B-v0.1
    environment:
      - HUGGING_FACE_HUB_TOKEN="key"
    volumes:
      - ~/.cache/huggingface:/root/.cache/huggingface
    ports:
      - "8000:8000"
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: 1
              capabilities: [gpu]
""",
        "mistralai/Mistral-7B-v0.1",
        {"gpu": ["0"], "secrets": ["HF_TOKEN"], "caches": {"huggingface": "~/.cache/huggingface"}},
    ),
    # The numbers of CUDA_VISIBLE_DEVICES are those in the container, which has GPUs 2 and 3.
    "github.com/vllm-project/vllm/issues/17337": (
        """\
services:
  vllm-openai:
    runtime: nvidia
    restart: always
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids: [ '2', '3']
              capabilities: [ gpu ]
    volumes:
      - ~/.cache/huggingface:/root/.cache/huggingface
      - /home/me/models:/models
    environment:
      - HUGGING_FACE_HUB_TOKEN=
      - CUDA_VISIBLE_DEVICES=0,1
    ports:
      - 8001:8000
    ipc: host
    image: vllm/vllm-openai:v0.8.5
    command: --model /models/Qwen3-30B-A3B-bnb-4bit --served-model-name qwen3-a3b --tensor_parallel_size 2
      --max_model_len 8192 --dtype half --max_num_seqs 1 --gpu_memory_utilization 0.9 --enable-reasoning
      --reasoning-parser deepseek_r1
""",
        "/models/Qwen3-30B-A3B-bnb-4bit --served-model-name qwen3-a3b --tensor-parallel-size 2 --max-model-len 8192"
        " --dtype half --max-num-seqs 1 --gpu-memory-utilization 0.9 --enable-reasoning --reasoning-parser deepseek_r1",
        {"gpu": ["2", "3"], "ports": ["8001:8000"], "restart": "always", "left": ["volumes /home/me/models:/models: "]},
    ),
    "github.com/vllm-project/vllm/pull/47578": (
        """\
version: '3.8'

services:
  vllm-server:
    image: vllm-intel-xpu:2026-07-06_09-14-3d7f357eb
    pull_policy: never
    ports:
      - "8002:8000"
    #shm_size: '32gb'
    ipc: host
    privileged: true
    environment:
      - VLLM_WORKER_MULTIPROC_METHOD=spawn
      - HF_TOKEN=hf_Ke............
      #- VLLM_ALLOW_LONG_MAX_MODEL_LEN=1
      - HF_HUB_DISABLE_SYMLINKS=1
    devices:
      - /dev/dri/card0:/dev/dri/card0
    volumes:
      #- triton_cache5:/root/.triton/cache
      - vllm_hf_cache:/root/.cache/huggingface
    entrypoint: []
    restart: unless-stopped
    command: >
      vllm serve webhie/Qwen3.6-27B-int4-AutoRound-Code
      --served-model-name webhie/Qwen3.6-27B-int4-AutoRound
      --dtype auto
      --port 8000
      --gpu-memory-utilization 0.93
      --tensor-parallel-size 2
      --kv-cache-dtype fp8
      --enable-auto-tool-choice
      --reasoning-parser qwen3
""",
        "webhie/Qwen3.6-27B-int4-AutoRound-Code --served-model-name webhie/Qwen3.6-27B-int4-AutoRound --dtype auto"
        " --gpu-memory-utilization 0.93 --tensor-parallel-size 2 --kv-cache-dtype fp8 --enable-auto-tool-choice"
        " --reasoning-parser qwen3",
        {
            "env": {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "HF_HUB_DISABLE_SYMLINKS": "1"}, "secrets": ["HF_TOKEN"],
            "ports": ["8002:8000"], "left": ["devices /dev/dri/card0:/dev/dri/card0: ", "privileged true: "],
        },
    ),
    # No image: it is built.
    "github.com/vllm-project/vllm/issues/21681": (
        """\
services:
  vllm:
    build:
      context: .
      dockerfile: Dockerfile
    runtime: nvidia
    environment:
      NVIDIA_VISIBLE_DEVICES: all
      HF_TOKEN: ${HF_TOKEN}
      HUGGING_FACE_HUB_TOKEN: ${HF_TOKEN}
    volumes:
      - huggingface-cache:/app/.cache/huggingface
    ports:
      - "8000:8000"
    ipc: host
    command: [
      "--model=Qwen/Qwen3-Reranker-4B",
      "--max-model-len=8192",
      "--disable-log-requests",
      "--hf_overrides={\\"architectures\\": [\\"Qwen3ForSequenceClassification\\"],\\"classifier_from_token\\":
 [\\"no\\", \\"yes\\"],\\"is_original_qwen3_reranker\\": true}"
    ]
""",
        "Qwen/Qwen3-Reranker-4B --max-model-len 8192 --disable-log-requests --hf-overrides"
        ' \'{"architectures":["Qwen3ForSequenceClassification"],"classifier_from_token":["no","yes"],'
        '"is_original_qwen3_reranker":true}\'',
        {"secrets": ["HF_TOKEN"], "left": ["build context=.: "]},
    ),
    # Pasted with the prompt of its shell.
    "github.com/vllm-project/vllm/issues/49011": (
        "(.venv312) me@DESKTOP:~/py312cuda130$ vllm serve unsloth/Qwen3.6-27B-NVFP4   --host 0.0.0.0   --port 8000"
        "   --served-model-name qwen3.6   --max-num-seqs 1   --async-scheduling   --tool-call-parser qwen3_xml"
        "   --enable-auto-tool-choice   --kv-cache-dtype nvfp4   --compilation-config '{\"cudagraph_mode\":\"PIECEWISE\"}'"
        "   --attention-backend FLASHINFER   --enable-flashinfer-autotune"
        '   --speculative-config \'{"method":"mtp","num_speculative_tokens":2}\'   --hf-overrides \'{"text_config":'
        '{"rope_parameters":{"mrope_interleaved": true, "mrope_section": [11, 11, 10], "rope_type": "yarn",'
        ' "rope_theta": 10000000, "partial_rotary_factor": 0.25, "factor": 4.0}}}\'\n',
        "unsloth/Qwen3.6-27B-NVFP4 --served-model-name qwen3.6 --max-num-seqs 1 --async-scheduling"
        " --tool-call-parser qwen3_xml --enable-auto-tool-choice --kv-cache-dtype nvfp4"
        " --compilation-config '{\"cudagraph_mode\":\"PIECEWISE\"}' --attention-backend FLASHINFER"
        ' --enable-flashinfer-autotune --speculative-config \'{"method":"mtp","num_speculative_tokens":2}\''
        ' --hf-overrides \'{"text_config":{"rope_parameters":{"mrope_interleaved":true,"mrope_section":[11,11,10],'
        '"rope_type":"yarn","rope_theta":10000000,"partial_rotary_factor":0.25,"factor":4.0}}}\'',
        {},
    ),
    "github.com/vllm-project/vllm/issues/12106": (
        "VLLM_CACHE_ROOT=/home/me/temp CUDA_VISIBLE_DEVICES=1,2,3,4 VLLM_WORKER_MULTIPROC_METHOD=spawn"
        " vllm serve Qwen/Qwen2-VL-72B-Instruct --host 0.0.0.0 --port 8000 --tensor-parallel-size 4"
        " --disable_custom_all_reduce --limit-mm-per-prompt \"image=10\" --quantization 'bitsandbytes'"
        '  --load_format "bitsandbytes"',
        "Qwen/Qwen2-VL-72B-Instruct --tensor-parallel-size 4 --disable-custom-all-reduce --limit-mm-per-prompt image=10"
        " --quantization bitsandbytes --load-format bitsandbytes",
        {
            "gpu": list("1234"), "env": {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
            "left": ["VLLM_CACHE_ROOT=/home/me/temp: envgen sets it itself"],
        },
    ),
    "github.com/vllm-project/vllm/issues/7456": (
        "$ vllm serve /models/Meta-Llama-3.1-405B-Instruct -tp 8 -pp 2"
        " --speculative-model /models/Meta-Llama-3.1-8B-Instruct --use-v2-block-manager --num-speculative-tokens 5",
        "/models/Meta-Llama-3.1-405B-Instruct --tensor-parallel-size 8 --pipeline-parallel-size 2"
        " --speculative-model /models/Meta-Llama-3.1-8B-Instruct --use-v2-block-manager --num-speculative-tokens 5",
        {"ready": "/models/Meta-Llama-3.1-405B-Instruct"},
    ),
    "github.com/pjpan/LLM-practice/blob/2ce20ce5/llm_deploy/qwen/start_qwen_server.sh": (
        "#!/usr/bin/env bash\n\npython -m vllm.entrypoints.openai.api_server \\\n    --model  Qwen/Qwen-7B-Chat\\\n"
        "    --tokenizer Qwen/Qwen-7B-Chat\\\n    --trust-remote-code  \\\n    --tensor-parallel-size 1",
        "Qwen/Qwen-7B-Chat --tokenizer Qwen/Qwen-7B-Chat --trust-remote-code --tensor-parallel-size 1",
        {},
    ),
}  # fmt: skip
