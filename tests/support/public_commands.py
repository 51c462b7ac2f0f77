"""Commands and Compose files from public issues, pull requests and repositories, shortened to what matters.

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
              count: 2
              capabilities: [gpu]
""",
        "/models/Devstral-Small-2505-UD-Q8_K_XL.gguf --trust-remote-code --tensor-parallel-size 2",
        {
            "ports": ["80:8000"], "gpu": ["0", "1"], "mounts": ["~/vllm/llm/models:/models"],
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
    "vllm#16796": (
        "podman run --device nvidia.com/gpu=all \\\n  -v ~/.cache/huggingface:/root/.cache/huggingface \\\n"
        '  --env "HF_TOKEN=$HF_TOKEN" \\\n  -p 8000:8000 \\\n  --ipc=host \\\n'
        "  docker.io/vllm/vllm-openai:latest \\\n  --model mistralai/Mistral-7B-v0.1\n",
        "mistralai/Mistral-7B-v0.1",
        {"secrets": ["HF_TOKEN"], "caches": {"huggingface": "~/.cache/huggingface"}, "none": ["device"]},
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
            "caches": {"huggingface": "~/.cache/huggingface"}, "left": ["volumes /tmp: "],
        },
    ),
}  # fmt: skip
