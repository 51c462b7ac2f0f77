# shellcheck shell=bash
# A virtual environment with envgen in it. Sourced after common.sh, never run.

# make_venv DIR CHECKOUT [dev]: a virtual environment in DIR with the checkout installed into it; with `dev` editable,
# and with what its developers need, as requirements-dev.txt locks it.
# Built beside and renamed, so that a kill leaves none or a whole one.
make_venv() {
  local dir=$1 what=$2 dev=${3-} python log
  for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && break
    python=
  done
  [ -n "$python" ] || { install_missing python3=python3; python=python3; }
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    say "python3-venv is missing"
    install_missing envgen-python3-venv=python3-venv # it has no command to look for
  fi
  log=$(mktemp)
  rm -rf -- "$dir"
  mkdir -p "$(dirname "$dir")"
  say "making a virtual environment with envgen ($("$python" --version))"
  if ! {
    "$python" -m venv "$dir" &&
      { [ -z "$dev" ] || install_envgen "$dir/bin" -r "$what/requirements-dev.txt"; } &&
      install_envgen "$dir/bin" ${dev:+--no-deps -e} "$what"
  } >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    rm -rf -- "$dir"
    die "pip could not install envgen (whole log: $log)"
  fi
  rm -f "$log"
}

# uv takes a tenth of pip's time. It doesn't read pip's configuration, so where it finds no index pip does it.
install_envgen() { # install_envgen BIN WORDS... of `pip install`
  local bin=$1
  shift
  if "$bin/python" -m pip install -q --disable-pip-version-check 'uv>=0.5' &&
    UV_NATIVE_TLS=true UV_SYSTEM_CERTS=true "$bin/uv" pip install -q --python "$bin/python" "$@"; then
    return 0
  fi
  "$bin/python" -m pip install -q --disable-pip-version-check "$@"
}
