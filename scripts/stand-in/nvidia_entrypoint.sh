#!/bin/bash
# Stand-in for NVIDIA's /opt/nvidia/nvidia_entrypoint.sh, of the same shape: runs the parts in entrypoint.d, then the command.
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
for part in "$here"/entrypoint.d/*; do
  case $part in
    *.txt) cat "$part" ;;
    *.sh)
      # shellcheck source=/dev/null
      . "$part"
      ;;
  esac
done
echo
if [ $# -eq 0 ]; then exec /bin/bash; fi
exec "$@"
