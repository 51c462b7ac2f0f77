# shellcheck shell=bash
# Leaves a mark in the environment of all that comes after, as NVIDIA's parts do (NVIDIA_CPU_ONLY and others).
export ENVGEN_STAND_IN_ENTRYPOINT=ran
