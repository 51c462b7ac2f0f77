docker run -it \
  -p 8000:8000 \
  --gpus all \
  --shm-size=16g \
  -e HF_TOKEN="$HF_TOKEN" \
  -e VLLM_USE_V2_MODEL_RUNNER=1 \
  vllm/vllm-openai:gemma ${HF_MODEL_HANDLE} \
  --gpu-memory-utilization 0.8 \
  --max-model-len 262144 \
  --attention-backend TRITON_ATTN \
  --max-num-seqs 10 \
  --diffusion-config '{"canvas_length":256}' \
  --override-generation-config '{"max_new_tokens": null}' \
  --enable-auto-tool-choice \
  --tool-call-parser gemma4 \
  --reasoning-parser gemma4 \
  --enable-prefix-caching \
  --default-chat-template-kwargs '{"enable_thinking": true}' \
  --load-format fastsafetensors
