docker run --rm -it --gpus all --ipc=host --network host \
  --ulimit memlock=-1 --ulimit stack=67108864 \
  -v "$MODEL_PATH:/workspace/model" \
  -e HF_TOKEN=$HF_TOKEN \
  nvcr.io/nvidia/vllm:${LATEST_VLLM_VERSION} \
  vllm serve /workspace/model \
    --served-model-name qwen3.6-35b-a3b \
    --host 0.0.0.0 \
    --port 8000 \
    --tensor-parallel-size 1 \
    --trust-remote-code \
    --kv-cache-dtype fp8 \
    --gpu-memory-utilization 0.4 \
    --max-model-len 262144 \
    --max-num-seqs 4 \
    --max-num-batched-tokens 8192 \
    --enable-chunked-prefill \
    --enable-prefix-caching \
    --reasoning-parser qwen3
