# shellcheck shell=bash
# Test files over streams that run side by side, each with an engine of its own. Sourced after common.sh, never run.
#
# A group is a line of tests/groups: files of one tier that one pytest runs, because they share what is expensive to set
# up. The streams take group after group until none is left, so that all are busy to the end.

# Which of their tests: daily (all but those marked `nightly`), nightly (those alone), all.
selection=daily

# selected FILE...: those with tests of the selection. A file that is nightly as a whole says so in its pytestmark.
selected() {
  local file
  local -a kept=()
  for file; do
    case $selection in
      daily) ! grep -q '^pytestmark.*[.]nightly' "tests/$file" || continue ;;
      nightly) grep -q 'mark[.]nightly' "tests/$file" || continue ;;
    esac
    kept+=("$file")
  done
  echo "${kept[*]}"
}

# make_queue FOLDER TIER...: FOLDER/queue, the groups of these tiers; files that tests/groups doesn't name come last, the
# process tests as one group.
make_queue() {
  local folder=$1 tier line file
  local -a small=()
  local -A named=()
  shift
  : >"$folder/queue"
  while read -r line; do
    [ -n "$line" ] && [[ $line != \#* ]] || continue
    for file in $line; do
      [ -e "tests/$file" ] || die "tests/groups names tests/$file, which is not there"
      named[$file]=1
    done
    # shellcheck disable=SC2086  # paths without blanks
    line=$(selected $line)
    for tier; do
      [[ $line != "$tier"/* ]] || printf '%s\n' "$line" >>"$folder/queue"
    done
  done <tests/groups
  for tier; do
    for file in tests/"$tier"/test_*.py; do
      [ -z "${named[${file#tests/}]:-}" ] && [ -n "$(selected "${file#tests/}")" ] || continue
      if [ "$tier" = process ]; then small+=("${file#tests/}"); else printf '%s\n' "${file#tests/}" >>"$folder/queue"; fi
    done
  done
  [ ${#small[@]} = 0 ] || echo "${small[*]}" >>"$folder/queue"
}

# take_group FOLDER TIERS: print the next group of these tiers (separated by |) and remove it; fails when there is none.
take_group() {
  local lock group
  exec {lock}>"$1/lock"
  flock "$lock"
  [ ! -e "$1/stop" ] || return 1
  group=$(grep -m1 -E "^($2)/" "$1/queue") || return 1
  awk -v group="$group" '$0 != group' "$1/queue" >"$1/queue.new"
  mv "$1/queue.new" "$1/queue"
  printf '%s\n' "$group"
}

# stream FOLDER NUMBER TIERS PYTHON [ENGINE]: run group after group; ENGINE is a file of export lines for engine tests.
stream() {
  local folder=$1 number=$2 tiers=$3 python=$4 engine=${5:-} group log began code words failed=0
  local -a which=()
  case $selection in
    daily) which=(-m 'not nightly') ;;
    nightly) which=(-m nightly) ;;
  esac
  while group=$(take_group "$folder" "$tiers"); do
    log=$folder/$(tr ' /' '+-' <<<"$group" | cut -c1-100).log
    read -ra words <<<"${group// / tests\/}"
    began=$SECONDS code=0
    # Job control gives pytest a process group of its own: Ctrl-C ends this script, which then ends pytest once.
    set -m
    (
      # shellcheck disable=SC1090  # written by scripts/engine
      [[ $group != engine/* ]] || . "$engine"
      exec "$python" -m pytest -q "${which[@]}" "tests/${words[0]}" "${words[@]:1}"
    ) >"$log" 2>&1 </dev/null &
    set +m
    echo $! >"$folder/$number.pid"
    wait $! || code=$?
    rm -f "$folder/$number.pid"
    printf 'stream %s, second %s to %s: %s: %s\n' "$number" "$began" "$SECONDS" "$group" \
      "$(tail -n 1 "$log" | tr -d '=')" >&2
    grep '^CANARY: ' "$log" >>"$folder/canary" || true
    printf '%5s s  %5s to %5s, stream %s  %s\n' $((SECONDS - began)) "$began" "$SECONDS" "$number" "$group" >>"$folder/seconds"
    if [ "$code" != 0 ]; then
      failed=1
      mv "$log" "${log%.log}.failed"
    fi
  done
  return $failed
}

# run_streams FOLDER: wait for all streams in ${streams[@]}; then print how long each group took, the longest first (the
# order that tests/groups should have), when it began and ended, counted from the start of the script, and the output of
# those that failed.
run_streams() {
  local pid code=0 log
  for pid in "${streams[@]}"; do
    wait "$pid" || code=1
  done
  streams=()
  step "seconds of each group"
  sort -rn "$1/seconds" >&2
  if [ -s "$1/canary" ]; then
    step "a new release can't be asked"
    cat "$1/canary" >&2
  fi
  for log in "$1"/*.failed; do
    [ ! -e "$log" ] || { step "failed: $(basename "${log%.failed}")"; cat "$log"; }
  done
  [ ! -s "$1/queue" ] || { cat "$1/queue"; die "these were not run"; }
  return $code
}

# end_streams FOLDER: Ctrl-C for each pytest, so that it ends what it has started; SIGTERM where that does not help.
end_streams() {
  local file pid
  touch "$1/stop"
  for file in "$1"/*.pid; do
    [ -e "$file" ] || continue
    pid=$(cat "$file")
    kill -INT "$pid" 2>/dev/null || continue
    for _ in {1..60}; do
      kill -0 "$pid" 2>/dev/null || continue 2
      sleep 0.5
    done
    say "the tests in process $pid did not end on SIGINT (waited 30 s)"
    kill "$pid" 2>/dev/null || true
  done
  [ ${#streams[@]} = 0 ] || wait "${streams[@]}" || true
}
