# shellcheck shell=bash
# What the scripts here share. Sourced, never run.

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "error: $*"; exit 1; }
misuse() { say "error: $*"; say "see: $0 --help"; exit 2; }

envgen_cache() { printf '%s/envgen\n' "${XDG_CACHE_HOME:-$HOME/.cache}"; }

os_release() { # os_release KEY: one value of /etc/os-release
  # shellcheck disable=SC1091  # the machine's own file
  (. /etc/os-release && eval "printf '%s\n' \"\${$1:-}\"")
}

# install_missing COMMAND=PACKAGE...: apt-get install the packages whose command is not there; no apt-get at all when all are.
install_missing() {
  local pair packages=()
  for pair; do
    command -v "${pair%%=*}" >/dev/null || packages+=("${pair#*=}")
  done
  [ ${#packages[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "needs ${packages[*]}, and apt-get is not available to install them"
  [ "$(id -u)" = 0 ] || die "needs ${packages[*]}: install them (apt-get install ${packages[*]}), or run this as root"
  say "installing ${packages[*]} with apt-get"
  local log try
  log=$(mktemp)
  for try in 1 2 3; do # another apt-get may hold a lock that apt has no waiting for
    if { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        -o DPkg::Lock::Timeout=120 "${packages[@]}"; } >"$log" 2>&1 </dev/null; then
      rm -f "$log"
      return 0
    fi
    [ "$try" = 3 ] || sleep 5
  done
  tail -n 15 "$log" >&2
  die "apt-get could not install ${packages[*]} (whole log: $log)"
}

need_pip() { # fetch-source asks pip for the index, fetch-wheel downloads with it; Debian's python3 comes without
  install_missing python3=python3
  python3 -m pip --version >/dev/null 2>&1 || install_missing envgen-pip=python3-pip # always asked for here
}

# debian_mirror SUITE: the URI that this machine's own apt takes Debian's SUITE from, or failing that any Debian suite.
# apt itself reads the sources, so .list and .sources files, disabled entries and options are all understood.
# ENVGEN_DEBIAN_MIRROR overrules it, and is the only way on a machine that is not a Debian.
debian_mirror() {
  local uri
  if [ -n "${ENVGEN_DEBIAN_MIRROR:-}" ]; then
    printf '%s\n' "${ENVGEN_DEBIAN_MIRROR%/}"
    return 0
  fi
  [ "$(os_release ID)" = debian ] ||
    die "this machine is not a Debian: name a Debian mirror in ENVGEN_DEBIAN_MIRROR"
  uri=$(apt_uri "$1" main)
  # A suite named stable, testing, ...: any archive with a main component that is not the security one.
  [ -n "$uri" ] || uri=$(apt_uri '[a-z]+' main)
  [ -n "$uri" ] || die "found no Debian archive in this machine's apt sources: name one in ENVGEN_DEBIAN_MIRROR"
  printf '%s\n' "$uri"
}

# apt_uri SUITE_REGEX COMPONENT: the first archive URI of the machine's apt sources that offers it, or nothing.
apt_uri() {
  local uri
  read_apt_targets
  uri=$(awk -v suite="^($1)\$" -v component="$2" '$2 ~ suite && $3 == component && !n++ { print $1 }' <<<"$apt_targets")
  case $uri in # Debian's cloud images name their mirror in a file beside
    mirror+file:*) uri=$(awk 'NF && $1 !~ /^#/ && !n++ { print $1 }' "${uri#mirror+file:}") ;;
  esac
  printf '%s\n' "${uri%/}"
}

read_apt_targets() { # asks apt once: it takes a second
  # shellcheck disable=SC2016  # the fields are apt's, not the shell's
  [ -n "${apt_targets:-}" ] ||
    apt_targets=$(apt-get indextargets --no-release-info --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages')
}

debian_keyring() {
  local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  [ -e "$keyring" ] || install_missing envgen-keyring=debian-archive-keyring # Ubuntu has it as a package, too
  [ -e "$keyring" ] || die "Debian's archive keyring is not in $keyring, though debian-archive-keyring is installed"
  printf '%s\n' "$keyring"
}
