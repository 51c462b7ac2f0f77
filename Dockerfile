# Written by `envgen render` from profile prod. Edits here are lost: change the project file.
# FlashInfer 0.5.3 and vLLM 0.14.0, built into the image
#
# Without envgen:  docker buildx build -f Dockerfile -t mxfp4:prod .
#   --secret id=ca_certificates,src=FILE   a company's CA certificates, for the downloads of the build; nothing keeps them
#   --secret id=jobs,src=FILE              a file with the number of compilers at once (default 1); changes rebuild nothing
#   --build-context wheelhouse=FOLDER      wheels of your own

# The programs of the steps below. Each step mounts only those that it runs, so an edit re-runs only what uses them.
FROM scratch AS scripts
COPY --chmod=0755 <<'EOF' /build/with-network
#!/bin/sh
# with-network COMMAND...: runs it so that HTTPS works behind a company's own certificate authority.
# The CA file comes as a build secret (or from $ENVGEN_CA). The bundle that is made of it lies in memory: no layer keeps it.
set -eu

# uv brings its own list of authorities; the system's may know more (a base image with the company's CA in it).
if [ -s /etc/ssl/certs/ca-certificates.crt ]; then export UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1; fi
ca=${ENVGEN_CA:-/run/secrets/ca_certificates}
[ -s "$ca" ] || exec "$@"

folder=$(mktemp -d /dev/shm/envgen.XXXXXX 2>/dev/null || mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
chmod 755 "$folder" # apt downloads as another user
bundle=$folder/ca.pem
for system in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem; do
  if [ -s "$system" ]; then
    cat "$system"
    echo
    break
  fi
done >"$bundle"
cat "$ca" >>"$bundle"
chmod 644 "$bundle"
printf 'Acquire::https::CAInfo "%s";\n' "$bundle" >"$folder/apt.conf"
chmod 644 "$folder/apt.conf"

export SSL_CERT_FILE="$bundle" REQUESTS_CA_BUNDLE="$bundle" CURL_CA_BUNDLE="$bundle" PIP_CERT="$bundle"
export GIT_SSL_CAINFO="$bundle" NODE_EXTRA_CA_CERTS="$bundle" APT_CONFIG="$folder/apt.conf"
"$@"
EOF
COPY --chmod=0755 <<'EOF' /build/with-index
#!/usr/bin/env python3
"""with-index COMMAND...: runs it so that uv uses the same package indexes and wheel folders as pip.

uv does not read pip's configuration; company images and hosts carry their index there. Also adds the wheelhouse folder.
"""

import configparser
import os
import sys

WHEELHOUSE = "/run/envgen/wheelhouse"


def pip_settings():
    """pip's settings, weakest first as pip reads them: files, then variables."""
    home = os.path.expanduser("~")
    files = [
        "/etc/xdg/pip/pip.conf",
        "/etc/pip.conf",
        os.path.join(home, ".pip/pip.conf"),
        os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "pip/pip.conf"),
        os.path.join(os.environ.get("VIRTUAL_ENV") or sys.prefix, "pip.conf"),
        os.environ.get("PIP_CONFIG_FILE", ""),
    ]
    found = {}
    for name in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(name or os.devnull, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            print("with-index: ignoring %s: %s" % (name, error), file=sys.stderr)
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                found.update({key.replace("_", "-"): value for key, value in parser.items(section)})
    for key in ("index-url", "extra-index-url", "find-links", "trusted-host", "no-index"):
        value = os.environ.get("PIP_" + key.upper().replace("-", "_"))
        if value:
            found[key] = value
    return found


def main(argv):
    if not argv:
        sys.exit("usage: with-index COMMAND...")
    settings = pip_settings()
    links = settings.get("find-links", "").split()
    if os.path.isdir(WHEELHOUSE) and os.listdir(WHEELHOUSE):
        links.append(WHEELHOUSE)
    values = {
        "UV_DEFAULT_INDEX": settings.get("index-url", "").strip(),
        "UV_INDEX": " ".join(settings.get("extra-index-url", "").split()),
        "UV_FIND_LINKS": ",".join(links),
        "UV_INSECURE_HOST": " ".join(settings.get("trusted-host", "").split()),
        "UV_NO_INDEX": "1" if settings.get("no-index", "").lower() in ("1", "true", "yes", "on") else "",
        "PIP_FIND_LINKS": " ".join(links),
        "UV_LINK_MODE": "copy",
        "UV_HTTP_TIMEOUT": "120",
        # The default of 3 gives up after 50 seconds without a connection; a build of an hour should outlive a router.
        "UV_HTTP_RETRIES": "6",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
    }
    for name, value in values.items():
        if value:
            os.environ.setdefault(name, value)
    for tool in ("uv", "pip"):  # kept between builds when the build mounts them
        folder = "/run/envgen/cache/" + tool
        if os.path.isdir(folder):
            os.environ[tool.upper() + "_CACHE_DIR"] = folder
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.exit("with-index: cannot run %s: %s" % (argv[0], error))


main(sys.argv[1:])
EOF
COPY --chmod=0755 <<'EOF' /build/bootstrap
#!/bin/sh
# bootstrap PYTHON: puts uv into /opt/envgen/bin, outside of the site-packages of PYTHON, and remembers PYTHON there.
# With a list at /run/envgen/locked.txt: exactly the uv that stands in it.
set -eu

python=$1
"$python" -m pip --version >/dev/null 2>&1 || {
  echo "bootstrap: $python of the base image has no pip; envgen needs it to install uv" >&2
  exit 1
}
set -- uv
if [ -s /run/envgen/locked.txt ]; then set -- --require-hashes -r /run/envgen/locked.txt; fi
"$python" -m pip install --no-input --quiet --no-deps --no-compile --target /opt/envgen/uv "$@"
mkdir -p /opt/envgen/bin
ln -s ../uv/bin/uv /opt/envgen/bin/uv
ln -s "$("$python" -c 'import sys; print(sys.executable)')" /opt/envgen/bin/base-python
/opt/envgen/bin/uv --version
EOF
COPY --chmod=0755 <<'EOF' /build/protect
#!/usr/bin/env python3
"""Keeps packages of the base image as they are: torch is never swapped for another build.

protect record PACKAGE... [--off PACKAGE...]   write what every later installation must respect
protect verify                                 fail if one of them was changed since
"""

import hashlib
import importlib.metadata
import json
import os
import re
import sys

FOLDER = "/opt/envgen"
RECORD = os.path.join(FOLDER, "protected.json")


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def state(name):
    """What identifies an installed package: version, place and file list; None when it is not installed."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    files = found.read_text("RECORD") or found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    return {
        "version": found.version,
        "location": str(found.locate_file("")),
        "files": hashlib.sha256(files.encode("utf-8", "surrogateescape")).hexdigest(),
    }


def write(name, lines):
    with open(os.path.join(FOLDER, name), "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))


def record(protected, off):
    os.makedirs(FOLDER, exist_ok=True)
    present = {name: state(name) for name in sorted(set(map(normal, protected)))}
    present = {name: found for name, found in present.items() if found}
    switched_off = sorted(set(map(normal, off)) | set(present))
    # pip obeys the constraints. uv, which does not see system packages from a venv, must not consider them at all.
    # The names that nobody has keep uv from warning of files without a package.
    pinned = ["%s==%s" % (name, found["version"]) for name, found in present.items()]
    write("constraints.txt", pinned or ["envgen-pins-nothing==0"])
    never = ['%s ; sys_platform == "never"' % name for name in switched_off or ["envgen-switches-off-nothing"]]
    write("overrides.txt", never)
    with open(RECORD, "w", encoding="utf-8") as file:
        json.dump(present, file, indent=1, sort_keys=True)
    key = [sys.version, sys.executable, present]
    with open(os.path.join(FOLDER, "overlay.key"), "w", encoding="utf-8") as file:
        file.write(hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest() + "\n")
    for name, found in present.items():
        print("protect: keeping %s %s" % (name, found["version"]))
    return 0


def verify():
    with open(RECORD, encoding="utf-8") as file:
        before = json.load(file)
    failed = 0
    for name, was in before.items():
        now = state(name)
        if now == was:
            continue
        failed = 1
        seen = "removed" if now is None else "replaced by %s in %s" % (now["version"], now["location"])
        print("protect: %s %s of the base image was %s" % (name, was["version"], seen), file=sys.stderr)
    if failed:
        print("protect: an installation broke pip.protect; switch the dependency off in pip.override", file=sys.stderr)
    else:
        print("protect: %d packages of the base image are as they were" % len(before))
    return failed


def main(argv):
    if argv[:1] == ["record"]:
        words = argv[1:]
        cut = words.index("--off") if "--off" in words else len(words)
        return record(words[:cut], words[cut + 1 :])
    if argv == ["verify"]:
        return verify()
    print(__doc__, file=sys.stderr)
    return 2


sys.exit(main(sys.argv[1:]))
EOF
COPY --chmod=0755 <<'EOF' /build/apt-install
#!/bin/sh
# apt-install PACKAGE[=VERSION]...: installs what is not there yet; when all of it is, apt is not even asked.
# What follows --arch ARCH is for that architecture alone.
set -eu

wanted='' here=yes
for package; do
  case $package in
    --arch)
      here=
      continue
      ;;
    amd64 | arm64)
      if [ -z "$here" ]; then
        here=no
        [ "$package" != "$(dpkg --print-architecture)" ] || here=yes
        continue
      fi
      ;;
  esac
  [ "$here" = yes ] || continue
  name=${package%%=*}
  have=$(dpkg-query -W -f '${db:Status-Abbrev}${Version}' "$name" 2>/dev/null || true)
  case $package in
    *=*) [ "$have" = "ii ${package#*=}" ] || wanted="$wanted $package" ;;
    *) case $have in ii*) ;; *) wanted="$wanted $package" ;; esac ;;
  esac
done
if [ -z "$wanted" ]; then
  echo "apt-install: all of it is installed: $*"
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -o Acquire::Retries=3 -q update
# shellcheck disable=SC2086  # package names have no blanks
apt-get -o Acquire::Retries=3 -o DPkg::Use-Pty=0 -q install -y --no-install-recommends --allow-downgrades $wanted || {
  case $* in
    *=*) echo "apt-install: a version that is gone from the archive? \`envgen lock --upgrade apt\` moves on" >&2 ;;
  esac
  exit 100
}
EOF
COPY --chmod=0755 <<'EOF' /build/pip-install
#!/usr/bin/env python3
"""pip-install [--own NAME] [--never NAME]... [--complete] -- WORD...: `uv pip install` for the Python that runs this.

What UV_OVERRIDE switches off stays off; --never switches off more: the other sources of the profile, which nobody's
dependencies may replace by a release of the package index. --own NAME is the one that is meant to be installed; with
--complete all that it depends on must be there by then.
Afterwards what came in is compiled. (uv's own --compile-bytecode compiles the whole of site-packages, which in a large
base image takes longer than the installation.)
"""

import argparse
import compileall
import concurrent.futures
import importlib.metadata
import os
import re
import site
import subprocess
import sys
import tempfile

UV = "/opt/envgen/bin/uv"


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def overrides(own, never):
    """The lines for uv: what UV_OVERRIDE names and ``never``, without ``own``."""
    names = set(map(normal, never))
    for path in os.environ.get("UV_OVERRIDE", "").split():
        with open(path, encoding="utf-8") as file:
            names.update(normal(line.split(";")[0].strip()) for line in file if line.strip())
    names.discard(normal(own))
    return "".join('%s ; sys_platform == "never"\n' % name for name in sorted(names))


def distributions():
    """Each installed distribution by its folder, and when that last changed."""
    found = {}
    for distribution in importlib.metadata.distributions():
        path = str(getattr(distribution, "_path", ""))
        if os.path.isdir(path):
            found[path] = (os.stat(path).st_ctime_ns, distribution)
    return found


def missing(own, off):
    """What an installed package depends on and does not have. ``off``: what is switched off and so never there."""
    from pip._vendor.packaging.requirements import Requirement

    have = {normal(d.metadata["Name"] or ""): d.version for d in importlib.metadata.distributions()}
    found = []
    for text in importlib.metadata.requires(own) or ():
        wanted = Requirement(text)
        if normal(wanted.name) in off or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        version = have.get(normal(wanted.name))
        if version is None or not wanted.specifier.contains(version, prereleases=True):
            found.append("%s (here: %s)" % (text, version or "nothing"))
    return found


def forget_times(folder):
    """Remove uv's note of when the file of a wheel was made: the one thing that differs between equal builds."""
    note, record = os.path.join(folder, "uv_cache.json"), os.path.join(folder, "RECORD")
    if os.path.exists(note) and os.path.exists(record):
        os.unlink(note)
        with open(record, encoding="utf-8") as file:
            lines = [line for line in file if "/uv_cache.json," not in line]
        with open(record, "w", encoding="utf-8") as file:
            file.writelines(lines)


def hide_removed(before, now):
    """Lay a link over the metadata folder of each replaced version, to those of the version that is there now.

    A removed file of a lower layer leaves a mark that has the time of its removal; a link has the time that it is given,
    and hides what lies below just as well. Whoever reads it finds what is true. It stands in the package's RECORD, so
    that it goes when the package goes. (Folders of modules need none: they keep their names.)
    """
    for path in before:
        name = re.match(r"[^-]*", os.path.basename(path)).group()
        if os.path.lexists(path):
            continue
        for new in now:
            same = normal(re.match(r"[^-]*", os.path.basename(new)).group()) == normal(name)
            record = os.path.join(new, "RECORD")
            if same and os.path.dirname(new) == os.path.dirname(path) and os.path.isfile(record):
                os.symlink(os.path.basename(new), path)
                with open(record, "a", encoding="utf-8") as file:
                    file.write(os.path.basename(path) + ",,\n")
                break


def compile_one(name):
    return os.path.exists(name) and compileall.compile_file(name, quiet=2)


def main(argv):
    parser = argparse.ArgumentParser(prog="pip-install")
    parser.add_argument("--own", default="")
    parser.add_argument("--never", action="append", default=[])
    parser.add_argument("--complete", action="store_true")
    parser.add_argument("words", nargs="+")
    options = parser.parse_args(argv)
    before = distributions()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(overrides(options.own, options.never))
        file.flush()
        command = [UV, "pip", "install", "--python", sys.executable, "--break-system-packages", *options.words]
        code = subprocess.call(command, env={**os.environ, "UV_OVERRIDE": file.name})
    if code:
        return code
    site.addsitepackages(set(sys.path))  # the first package of all makes the folder, which Python found missing
    now = distributions()
    changed = [d for path, (stamp, d) in now.items() if path not in before or before[path][0] != stamp]
    if os.environ.get("SOURCE_DATE_EPOCH"):
        for distribution in changed:
            forget_times(str(getattr(distribution, "_path", "")))
        hide_removed(before, now)
    if options.own and normal(options.own) not in {normal(d.metadata["Name"] or "") for _, d in now.values()}:
        print("pip-install: what was installed is not named %s" % options.own, file=sys.stderr)
        return 1
    if options.complete:
        off = {line.split(" ;")[0] for line in overrides(options.own, options.never).splitlines()}
        lacking = missing(options.own, off)
        if lacking:
            print("pip-install: %s wants what the lock has not: %s" % (options.own, "; ".join(lacking)), file=sys.stderr)
            print("pip-install: name it in pip.deps, and run `envgen lock`", file=sys.stderr)
            return 1
    files = sorted({str(d.locate_file(f)) for d in changed for f in d.files or () if f.suffix == ".py"})
    with concurrent.futures.ProcessPoolExecutor() as pool:
        list(pool.map(compile_one, files, chunksize=64))
    print("pip-install: %d packages, %d modules compiled" % (len(changed), len(files)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
EOF
COPY --chmod=0755 <<'EOF' /build/fetch-git
#!/bin/sh
# fetch-git URL REF FOLDER submodules|plain [NAME]: exactly that commit, tag, branch or refs/... and nothing of its history.
# NAME: REF is a locked commit, and this is the full name (refs/tags/v1) under which it was found.
set -eu

url=$1 ref=$2 folder=$3 submodules=$4 name=${5:-}
export GIT_TERMINAL_PROMPT=0
git init -q "$folder"
cd "$folder"
git config advice.detachedHead false
git remote add origin "$url"

case $ref in
  refs/* | "${name:+$ref}") wanted=$ref ;;
  *)
    listed=$(git ls-remote origin "refs/tags/$ref" "refs/heads/$ref" | cut -f2)
    case $listed in
      *"refs/tags/$ref"*) wanted=refs/tags/$ref:refs/tags/$ref ;; # the tag too: versions are often made from it
      *"refs/heads/$ref"*) wanted=refs/heads/$ref ;;
      *) wanted=$ref ;;
    esac
    ;;
esac
if ! git fetch -q --depth 1 --no-tags origin "$wanted"; then
  # Some servers hand out a commit only with what leads to it.
  echo "fetch-git: no shallow fetch of $ref, fetching everything" >&2
  git fetch -q --tags origin
  if [ -n "$name" ]; then git fetch -q origin "$name" || true; fi
  git fetch -q origin "$wanted" || git rev-parse --verify -q "$ref^{commit}" >FETCH_HEAD_ONLY || {
    echo "fetch-git: $url has no $ref${name:+ (any more); was $name force-pushed? \`envgen lock --upgrade\` moves on}" >&2
    exit 1
  }
fi
if [ -s FETCH_HEAD_ONLY ]; then
  commit=$(cat FETCH_HEAD_ONLY)
else
  commit=$(git rev-parse --verify 'FETCH_HEAD^{commit}')
fi
rm -f FETCH_HEAD_ONLY
git checkout -q --detach "$commit"
case $name in
  refs/tags/*) git tag -f "${name#refs/tags/}" >/dev/null ;; # versions are often made from it
esac
if [ "$submodules" = submodules ] && [ -f .gitmodules ]; then
  git submodule --quiet update --init --recursive --depth 1 || git submodule --quiet update --init --recursive
fi
echo "fetch-git: $url $ref is $commit"
EOF
COPY --chmod=0755 <<'EOF' /build/build-wheel
#!/bin/sh
# build-wheel PYTHON SOURCE OUTPUT [PREPARE...]: one wheel, built with what is installed here.
# The number of jobs is a secret, so that changing it rebuilds nothing; without it there is one job, which never
# runs out of memory.
set -eu

python=$1 source=$2 output=$3
shift 3
jobs=1
if [ -s /run/secrets/jobs ]; then jobs=$(tr -cd '0-9' </run/secrets/jobs); fi
export MAX_JOBS="${jobs:-1}" CMAKE_BUILD_PARALLEL_LEVEL="${jobs:-1}"
if [ -d /run/envgen/cache/ccache ] && command -v ccache >/dev/null; then
  export CCACHE_DIR=/run/envgen/cache/ccache CCACHE_NOHASHDIR=1 CCACHE_BASEDIR="$source"
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
fi
cd "$source"
if [ $# -gt 0 ]; then
  echo "build-wheel: preparing: $*"
  "$@"
fi
echo "build-wheel: $source with MAX_JOBS=$MAX_JOBS"
mkdir -p "$output"
exec "$python" -m pip wheel --no-input --no-build-isolation --no-deps --wheel-dir "$output" --verbose .
EOF
COPY --chmod=0755 <<'EOF' /build/patch-installed
#!/usr/bin/env python3
"""patch-installed PACKAGE PATCH...: applies Python-only patches to an installed package, and compiles what they changed.

What came out is noted in /opt/envgen/patched/PACKAGE, as `sha256sum --check` reads it.
"""

import compileall
import hashlib
import importlib.util
import os
import subprocess
import sys

NOTES = "/opt/envgen/patched"


def main(argv):
    if len(argv) < 2:
        sys.exit("usage: patch-installed PACKAGE PATCH...")
    package, patches = argv[0], argv[1:]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        sys.exit("patch-installed: %s is not installed" % package)
    folder = os.path.dirname(os.path.dirname(spec.origin))
    touched = set()
    for patch in patches:
        name = os.path.basename(patch)
        print("patch-installed: %s in %s" % (name, folder), flush=True)
        if subprocess.call(["git", "apply", "--whitespace=nowarn", patch], cwd=folder):
            sys.exit("patch-installed: %s does not apply" % name)
        changed = subprocess.check_output(["git", "apply", "--numstat", "-z", patch], cwd=folder)
        for entry in filter(None, changed.decode("utf-8", "surrogateescape").split("\0")):
            file = os.path.join(folder, entry.split("\t")[-1])
            touched.add(file)
            if os.path.exists(file) and not compileall.compile_file(file, quiet=1, force=True):
                sys.exit("patch-installed: %s left a file that does not compile: %s" % (name, file))
    os.makedirs(NOTES, exist_ok=True)
    with open(os.path.join(NOTES, package), "w", encoding="utf-8", errors="surrogateescape") as notes:
        for file in sorted(filter(os.path.exists, touched)):
            with open(file, "rb") as content:
                notes.write("%s  %s\n" % (hashlib.sha256(content.read()).hexdigest(), file))


main(sys.argv[1:])
EOF
COPY --chmod=0755 <<'EOF' /build/fetch-file
#!/usr/bin/env python3
"""fetch-file OUTPUT SHA256 PLACE...: the first place (a file or an address) that gives exactly these bytes."""

import hashlib
import os
import sys
import time
import urllib.error
import urllib.request


def read(place):
    if "://" not in place:
        with open(place, "rb") as file:
            return file.read()
    request = urllib.request.Request(place, headers={"User-Agent": "envgen"})
    for attempt in (1, 2):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code != 429 or attempt == 2:
                raise
        except OSError:
            if attempt == 2:
                raise
        time.sleep(2)


def main(argv):
    if len(argv) < 3:
        sys.exit(__doc__)
    output, expected, places = argv[0], argv[1], argv[2:]
    for place in places:
        try:
            content = read(place)
        except (OSError, ValueError) as error:
            print("fetch-file: %s: %s" % (place, error), file=sys.stderr)
            continue
        digest = hashlib.sha256(content).hexdigest()
        if digest == expected:
            os.makedirs(os.path.dirname(output), exist_ok=True)
            with open(output, "wb") as file:
                file.write(content)
            print("fetch-file: %s from %s" % (os.path.basename(output), place))
            return
        print("fetch-file: %s has sha256 %s, expected %s" % (place, digest, expected), file=sys.stderr)
    sys.exit("fetch-file: no place gave %s; add a mirror or a local file" % os.path.basename(output))


main(sys.argv[1:])
EOF
COPY --chmod=0755 <<'EOF' /runtime/bin/entrypoint
#!/bin/sh
# What every container runs first: certificates, cache folders, mounted sources; then the command itself.
set -eu

# A company's CA, mounted at run time: into this container's own bundle, which every `docker exec` sees too.
system=/etc/ssl/certs/ca-certificates.crt
if [ -s /etc/envgen/ca.crt ] && [ ! -e /run/envgen-ca-merged ]; then
  if [ -w "${system%/*}" ] || [ -w "$system" ]; then
    { echo; cat /etc/envgen/ca.crt; } >>"$system" && : >/run/envgen-ca-merged
  else
    echo "envgen: cannot add the CA certificates to $system" >&2
  fi
fi

if [ -n "${ENVGEN_CACHE_DIRS:-}" ]; then
  (
    IFS=:
    set -f
    # shellcheck disable=SC2086  # split at colons, which no container path has
    mkdir -p -- $ENVGEN_CACHE_DIRS
  ) || echo "envgen: cannot create all cache folders ($ENVGEN_CACHE_DIRS)" >&2
fi

if [ -e /opt/envgen/sources.json ]; then
  python3 -I /opt/envgen/bin/envgen-install --start
fi

[ $# -gt 0 ] || set -- bash
exec "$@"
EOF
COPY --chmod=0755 <<'EOF' /runtime/bin/envgen-health
#!/usr/bin/env python3
"""envgen-health PORT PATH: ends with 0 when http://127.0.0.1:PORT/PATH answers 200. Uses no proxy."""

import http.client
import sys


def main(argv):
    if len(argv) != 2:
        sys.exit("usage: envgen-health PORT PATH")
    connection = http.client.HTTPConnection("127.0.0.1", int(argv[0]), timeout=30)
    try:
        connection.request("GET", argv[1])
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        sys.exit("envgen-health: port %s: %s" % (argv[0], error or type(error).__name__))
    if status != 200:
        sys.exit("envgen-health: %s answered %d" % (argv[1], status))


main(sys.argv[1:])
EOF

# Wheels of your own: docker buildx build --build-context wheelhouse=FOLDER ...
FROM scratch AS wheelhouse

FROM nvcr.io/nvidia/pytorch:25.12-py3 AS origin

# What every later stage shares: build packages, uv, and the record of what must not be replaced.
FROM origin AS base
RUN --mount=type=secret,id=ca_certificates \
    --mount=type=bind,from=scripts,source=/build/with-network,target=/run/envgen/with-network \
    --mount=type=bind,from=scripts,source=/build/apt-install,target=/run/envgen/apt-install \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=tmpfs,target=/var/lib/dpkg/updates \
    sh /run/envgen/with-network sh /run/envgen/apt-install ca-certificates ccache git ninja-build
RUN --mount=type=secret,id=ca_certificates \
    --mount=type=bind,from=scripts,source=/build/with-network,target=/run/envgen/with-network \
    --mount=type=bind,from=scripts,source=/build/with-index,target=/run/envgen/with-index \
    --mount=type=bind,from=wheelhouse,target=/run/envgen/wheelhouse \
    --mount=type=cache,target=/run/envgen/cache/uv \
    --mount=type=cache,target=/run/envgen/cache/pip \
    --mount=type=bind,from=scripts,source=/build/bootstrap,target=/run/envgen/bootstrap \
    --mount=type=bind,from=scripts,source=/build/protect,target=/run/envgen/protect \
    sh /run/envgen/with-network python3 /run/envgen/with-index sh /run/envgen/bootstrap python3 \
    && python3 /run/envgen/protect record torch torchvision torchaudio triton flash-attn --off torchaudio opencv-python-headless
ENV PATH="/opt/envgen/bin:$PATH" \
    PIP_CONSTRAINT="/opt/envgen/constraints.txt" \
    UV_CONSTRAINT="/opt/envgen/constraints.txt" \
    UV_OVERRIDE="/opt/envgen/overrides.txt"

# flashinfer: v0.5.3 of https://github.com/flashinfer-ai/flashinfer.git
FROM base AS source-flashinfer
RUN --mount=type=secret,id=ca_certificates \
    --mount=type=bind,from=scripts,source=/build/with-network,target=/run/envgen/with-network \
    --mount=type=bind,from=scripts,source=/build/fetch-git,target=/run/envgen/fetch-git \
    sh /run/envgen/with-network sh /run/envgen/fetch-git https://github.com/flashinfer-ai/flashinfer.git v0.5.3 /src/flashinfer submodules

FROM base AS wheel-flashinfer
ENV CUDA_HOME="/usr/local/cuda" \
    FLASHINFER_CUDA_ARCH_LIST="12.1a" \
    TORCH_CUDA_ARCH_LIST="12.1a" \
    FLASHINFER_NVCC_THREADS="1" \
    NVCC_THREADS="1"
RUN --mount=type=secret,id=ca_certificates \
    --mount=type=bind,from=scripts,source=/build/with-network,target=/run/envgen/with-network \
    --mount=type=bind,from=scripts,source=/build/with-index,target=/run/envgen/with-index \
    --mount=type=bind,from=wheelhouse,target=/run/envgen/wheelhouse \
    --mount=type=cache,target=/run/envgen/cache/uv \
    --mount=type=cache,target=/run/envgen/cache/pip \
    --mount=type=bind,from=scripts,source=/build/pip-install,target=/run/envgen/pip-install \
    sh /run/envgen/with-network python3 /run/envgen/with-index \
    python3 /run/envgen/pip-install -- 'setuptools>=77' 'packaging>=24' wheel 'apache-tvm-ffi>=0.1,<0.2'
RUN --mount=type=secret,id=ca_certificates \
    --mount=type=bind,from=scripts,source=/build/with-network,target=/run/envgen/with-network \
    --mount=type=secret,id=jobs \
    --mount=type=bind,from=scripts,source=/build/build-wheel,target=/run/envgen/build-wheel \
    --mount=type=bind,from=source-flashinfer,source=/src/flashinfer,target=/src/flashinfer,rw \
    --mount=type=cache,target=/run/envgen/cache/ccache \
    sh /run/envgen/with-network sh /run/envgen/build-wheel python3 /src/flashinfer /wheels

# vllm: v0.14.0 of https://github.com/vllm-project/vllm.git
FROM base AS source-vllm
RUN --mount=type=secret,id=ca_certificates \
    --mount=type=bind,from=scripts,source=/build/with-network,target=/run/envgen/with-network \
    --mount=type=bind,from=scripts,source=/build/fetch-git,target=/run/envgen/fetch-git \
    sh /run/envgen/with-network sh /run/envgen/fetch-git https://github.com/vllm-project/vllm.git v0.14.0 /src/vllm submodules

FROM base AS wheel-vllm
ENV CUDA_HOME="/usr/local/cuda" \
    FLASHINFER_CUDA_ARCH_LIST="12.1a" \
    TORCH_CUDA_ARCH_LIST="12.1a" \
    FLASHINFER_NVCC_THREADS="1" \
    NVCC_THREADS="1"
RUN --mount=type=secret,id=ca_certificates \
    --mount=type=bind,from=scripts,source=/build/with-network,target=/run/envgen/with-network \
    --mount=type=bind,from=scripts,source=/build/with-index,target=/run/envgen/with-index \
    --mount=type=bind,from=wheelhouse,target=/run/envgen/wheelhouse \
    --mount=type=cache,target=/run/envgen/cache/uv \
    --mount=type=cache,target=/run/envgen/cache/pip \
    --mount=type=bind,from=scripts,source=/build/pip-install,target=/run/envgen/pip-install \
    sh /run/envgen/with-network python3 /run/envgen/with-index \
    python3 /run/envgen/pip-install -- 'cmake>=3.26.1' ninja 'packaging>=24.2' 'setuptools>=77.0.3,<81.0.0' 'setuptools-scm>=8' wheel jinja2 'grpcio-tools>=1.76.0'
RUN --mount=type=secret,id=ca_certificates \
    --mount=type=bind,from=scripts,source=/build/with-network,target=/run/envgen/with-network \
    --mount=type=secret,id=jobs \
    --mount=type=bind,from=scripts,source=/build/build-wheel,target=/run/envgen/build-wheel \
    --mount=type=bind,from=source-vllm,source=/src/vllm,target=/src/vllm,rw \
    --mount=type=cache,target=/run/envgen/cache/ccache \
    sh /run/envgen/with-network env SETUPTOOLS_SCM_PRETEND_VERSION=0.14.0 \
    sh /run/envgen/build-wheel python3 /src/vllm /wheels python3 use_existing_torch.py

# Vocabulary files, each proven by its SHA-256. Needs nothing of the stages above.
FROM origin AS encodings
RUN --mount=type=secret,id=ca_certificates \
    --mount=type=bind,from=scripts,source=/build/with-network,target=/run/envgen/with-network \
    --mount=type=bind,from=scripts,source=/build/fetch-file,target=/run/envgen/fetch-file \
    sh /run/envgen/with-network python3 /run/envgen/fetch-file /encodings/o200k_base.tiktoken 446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken
RUN --mount=type=secret,id=ca_certificates \
    --mount=type=bind,from=scripts,source=/build/with-network,target=/run/envgen/with-network \
    --mount=type=bind,from=scripts,source=/build/fetch-file,target=/run/envgen/fetch-file \
    sh /run/envgen/with-network python3 /run/envgen/fetch-file /encodings/cl100k_base.tiktoken 223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7 https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken

FROM base AS final
RUN --mount=type=secret,id=ca_certificates \
    --mount=type=bind,from=scripts,source=/build/with-network,target=/run/envgen/with-network \
    --mount=type=bind,from=scripts,source=/build/with-index,target=/run/envgen/with-index \
    --mount=type=bind,from=wheelhouse,target=/run/envgen/wheelhouse \
    --mount=type=cache,target=/run/envgen/cache/uv \
    --mount=type=cache,target=/run/envgen/cache/pip \
    --mount=type=bind,from=scripts,source=/build/pip-install,target=/run/envgen/pip-install \
    sh /run/envgen/with-network python3 /run/envgen/with-index \
    python3 /run/envgen/pip-install --never flashinfer-python --never vllm -- fastsafetensors llama-benchy==0.3.3 'fastapi>=0.115,<0.137'
RUN --mount=type=secret,id=ca_certificates \
    --mount=type=bind,from=scripts,source=/build/with-network,target=/run/envgen/with-network \
    --mount=type=bind,from=scripts,source=/build/with-index,target=/run/envgen/with-index \
    --mount=type=bind,from=wheelhouse,target=/run/envgen/wheelhouse \
    --mount=type=cache,target=/run/envgen/cache/uv \
    --mount=type=cache,target=/run/envgen/cache/pip \
    --mount=type=bind,from=scripts,source=/build/pip-install,target=/run/envgen/pip-install \
    --mount=type=bind,from=wheel-flashinfer,source=/wheels,target=/run/envgen/wheels \
    sh /run/envgen/with-network python3 /run/envgen/with-index \
    python3 /run/envgen/pip-install --own flashinfer-python --never vllm -- /run/envgen/wheels/*.whl
RUN --mount=type=secret,id=ca_certificates \
    --mount=type=bind,from=scripts,source=/build/with-network,target=/run/envgen/with-network \
    --mount=type=bind,from=scripts,source=/build/with-index,target=/run/envgen/with-index \
    --mount=type=bind,from=wheelhouse,target=/run/envgen/wheelhouse \
    --mount=type=cache,target=/run/envgen/cache/uv \
    --mount=type=cache,target=/run/envgen/cache/pip \
    --mount=type=bind,from=scripts,source=/build/pip-install,target=/run/envgen/pip-install \
    --mount=type=bind,from=wheel-vllm,source=/wheels,target=/run/envgen/wheels \
    sh /run/envgen/with-network python3 /run/envgen/with-index \
    python3 /run/envgen/pip-install --own vllm --never flashinfer-python -- /run/envgen/wheels/*.whl
RUN --mount=type=bind,from=scripts,source=/build/patch-installed,target=/run/envgen/patch-installed \
    --mount=type=bind,source=patches/flashinfer/0001-rewrite-build-ninja.patch,target=/run/envgen/patches/flashinfer/0001-rewrite-build-ninja.patch \
    --mount=type=bind,source=patches/vllm/0001-mxfp4-sm12x-flashinfer-cutlass.patch,target=/run/envgen/patches/vllm/0001-mxfp4-sm12x-flashinfer-cutlass.patch \
    --mount=type=bind,source=patches/vllm/0002-assume-32bit-indexing-if-there.patch,target=/run/envgen/patches/vllm/0002-assume-32bit-indexing-if-there.patch \
    --mount=type=bind,source=patches/vllm/0003-fastsafetensors-own-device.patch,target=/run/envgen/patches/vllm/0003-fastsafetensors-own-device.patch \
    python3 /run/envgen/patch-installed flashinfer /run/envgen/patches/flashinfer/0001-rewrite-build-ninja.patch \
    && python3 /run/envgen/patch-installed vllm /run/envgen/patches/vllm/0001-mxfp4-sm12x-flashinfer-cutlass.patch /run/envgen/patches/vllm/0002-assume-32bit-indexing-if-there.patch /run/envgen/patches/vllm/0003-fastsafetensors-own-device.patch
RUN --mount=type=bind,from=scripts,source=/runtime,target=/run/envgen/runtime \
    --mount=type=bind,from=encodings,source=/encodings,target=/run/envgen/encodings \
    cp -R /run/envgen/runtime/. /opt/envgen/ \
    && mkdir -p /workspace/tiktoken_encodings && cp /run/envgen/encodings/* /workspace/tiktoken_encodings/ \
    && mkdir -p /workspace
# The gate: what the base image brought and pip.protect names is as it was, or there is no image.
RUN --mount=type=bind,from=scripts,source=/build/protect,target=/run/envgen/protect \
    python3 /run/envgen/protect verify
WORKDIR "/workspace"
RUN --mount=type=secret,id=ca_certificates \
    --mount=type=bind,from=scripts,source=/build/with-network,target=/run/envgen/with-network \
    --mount=type=bind,from=scripts,source=/build/apt-install,target=/run/envgen/apt-install \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=tmpfs,target=/var/lib/dpkg/updates \
    sh /run/envgen/with-network sh /run/envgen/apt-install curl
ENV CUDA_HOME="/usr/local/cuda" \
    FLASHINFER_CUDA_ARCH_LIST="12.1a" \
    TORCH_CUDA_ARCH_LIST="12.1a" \
    FLASHINFER_NVCC_THREADS="1" \
    NVCC_THREADS="1" \
    SSL_CERT_FILE="/etc/ssl/certs/ca-certificates.crt" \
    REQUESTS_CA_BUNDLE="/etc/ssl/certs/ca-certificates.crt" \
    TIKTOKEN_ENCODINGS_BASE="/workspace/tiktoken_encodings"
LABEL dev.envgen.project="mxfp4" \
      dev.envgen.profile="prod" \
      dev.envgen.lock="" \
      org.opencontainers.image.title="mxfp4 prod" \
      org.opencontainers.image.base.name="nvcr.io/nvidia/pytorch:25.12-py3" \
      dev.envgen.patches="flashinfer/0001-rewrite-build-ninja.patch vllm/0001-mxfp4-sm12x-flashinfer-cutlass.patch vllm/0002-assume-32bit-indexing-if-there.patch vllm/0003-fastsafetensors-own-device.patch" \
      org.opencontainers.image.description="FlashInfer 0.5.3 and vLLM 0.14.0, built into the image" \
      dev.envgen.render="182026285dc589499cb2d7c3abfd9d6cbc4909e2dcf399ab0e2487c050d3b3e2"

ENTRYPOINT ["/opt/envgen/bin/entrypoint"]
CMD ["bash"]
