#!/usr/bin/env bash
# Installs slurm-hadar and runs what was asked for. Run again, it changes only what is not right yet.
#   ./install.sh demo                 the demonstration: a real Slurm with pretend GPUs on this machine
#   ./install.sh check                lint, types and the quick unit tests
#   ./install.sh test                 everything the tests need, and the tests
#   ./install.sh coverage             the tests of check once more, and the lines of the package that they run
#   ./install.sh site --prefix DIR    hbatch and hadar for a real site, with the releases of packaging/locked
#   ./install.sh uninstall [--prefix DIR]   takes it back; jobs become Slurm's own
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here"
venv=$here/.venv

say() { printf 'install: %s\n' "$*" >&2; }
die() { printf 'install: %s\n' "$*" >&2; exit 1; }

usage() {
  ((!$#)) || say "unknown argument: $1"
  sed -n '2,8s/^# \{0,1\}//p' "$here/install.sh" >&2
  exit 2
}

# What Slurm, munge and Python bring along, wherever they come from.
there() {
  local name
  for name in slurmctld slurmd sbatch munged; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$name" >/dev/null || return 1
  done
  python >/dev/null 2>&1
}

# Debian packages that are missing, installed without starting any of their services.
debian() {
  local missing=() name
  for name in "$@"; do
    [[ $(dpkg-query -W -f '${Status}' "$name" 2>/dev/null) == 'install ok installed' ]] || missing+=("$name")
  done
  ((${#missing[@]})) || return 0
  if ! command -v apt-get >/dev/null || ((EUID != 0)); then
    # Installed by hand or by another system's packages it is as good.
    ! (there) || return 0
  fi
  if ! command -v apt-get >/dev/null; then
    die "this is no Debian: install Slurm (slurmctld, slurmd, client commands), munge and Python 3.11 with venv by hand, then run this again; './install.sh site' needs none of Slurm's daemons"
  fi
  if ((EUID != 0)); then
    die "without root ${missing[*]} cannot be installed; ask an admin for them, then run this again; './install.sh site --prefix DIR' works without"
  fi
  say "installing ${missing[*]}"
  local policy=/usr/sbin/policy-rc.d
  if [[ ! -e $policy ]]; then
    # Slurm's daemons must not start by themselves here: exit 101 tells Debian so.
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  }
}

# A Python of 3.11 or later that can make virtual environments; the distribution's own first, since
# one below a private home cannot be run by other users' jobs.
python() {
  local candidate
  for candidate in /usr/bin/python3 python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  die "Python 3.11 or later with its venv module was not found; install python3-venv"
}

# The package and one of its extras in a virtual environment: environment DIR EXTRA
environment() {
  local dir=$1 extra=$2 stamp
  stamp=$(sha256sum pyproject.toml | cut -c1-16)-$extra
  if [[ -f $dir/.hadar-$stamp ]]; then
    isolate "$dir"
    return
  fi
  [[ -w $dir || (! -e $dir && -w ${dir%/*}) ]] || die "$dir cannot be written by $(id -un); clone the repository as that user, or use './install.sh site --prefix DIR', which writes to DIR only"
  [[ -x $dir/bin/python ]] || "$(python)" -m venv "$dir"
  say "installing Python packages ($extra) into $dir"
  "$dir/bin/python" -m pip install --quiet --disable-pip-version-check -e ".[$extra]" 2> >(grep -v '^WARNING: Location' >&2)
  isolate "$dir"
  touch "$dir/.hadar-$stamp"
}

# Has our programs there start Python with -I, which pip cannot: isolate DIR
isolate() { "$1/bin/python" -I -m slurm_hadar.isolated; }

demo() {
  debian slurmctld slurmd slurm-client munge python3 python3-venv
  environment "$venv" demo
  exec "$venv/bin/hadar" demo "$@"
}

# Lint, types and the unit tests but those of tests/unit/slow.txt. Starts no Slurm.
check() {
  if ((EUID == 0)) && command -v apt-get >/dev/null; then
    debian slurmctld slurmd slurm-client munge python3 python3-venv libslurm-dev gcc libc6-dev zsh fish groff-base
  fi
  environment "$venv" test
  # Two processes read all tests, and dozens of programs the package: compiled once, whatever the caller sets.
  export PYTHONDONTWRITEBYTECODE=
  "$venv/bin/ruff" check .
  "$venv/bin/ruff" format --check .
  "$venv/bin/lint-imports" --no-cache
  # Beside the tests.
  "$venv/bin/mypy" &
  local types=$! failed=0
  "$venv/bin/python" -m pytest tests/unit @tests/unit/slow.txt -n 2 -q --hypothesis-profile quick "$@" || failed=$?
  wait "$types" || failed=1
  sed 's/^--[a-z]*=/  /' tests/unit/slow.txt >&2
  say "left out: tests/live and the $(wc -l <tests/unit/slow.txt) slow tests and files named above; './install.sh test' runs everything"
  return "$failed"
}

# The tests of check without lint and types; a line for each module with lines that no test runs.
coverage() {
  environment "$venv" test
  "$venv/bin/python" -m pytest tests/unit @tests/unit/slow.txt -n 2 -q --cov --cov-report=term:skip-covered "$@"
}

tests() {
  debian slurmctld slurmd slurm-client munge python3 python3-venv libslurm-dev gcc libc6-dev zsh fish \
    groff-base prometheus slurmdbd mariadb-server-core mariadb-client-core chromium nginx-light fonts-dejavu-core
  environment "$venv" test
  # What looks for barriers in the page; without npm those checks are skipped.
  if command -v npm >/dev/null && [[ ! -d $venv/node_modules/axe-core ]]; then
    npm install --silent --no-save --no-audit --no-fund --prefix "$venv" axe-core@4 || true
  fi
  if [[ -n ${HADAR_TEST_SLURM_BUILD:-} ]]; then
    say "building a second Slurm with PySlurm in ${HADAR_TEST_SLURM:?needs a folder}"
    bash "$HADAR_TEST_SLURM_BUILD" "$HADAR_TEST_SLURM" "$venv/bin/python"
  fi
  "$venv/bin/ruff" check .
  "$venv/bin/ruff" format --check .
  "$venv/bin/lint-imports" --no-cache
  "$venv/bin/mypy" &
  local types=$!
  # Each of the processes below reads all tests: here they are compiled once, beside mypy. A few that have changed
  # since are compiled by each sooner than all are read.
  export PYTHONDONTWRITEBYTECODE=
  local compiled=tests/__pycache__/all_compiled
  if [[ ! -e $compiled ]] || (($(find slurm_hadar benchmarks tests -name '*.py' -newer "$compiled" | wc -l) > 20)); then
    "$venv/bin/python" -m pytest --collect-only -qq >/dev/null 2>&1 || true
    touch "$compiled"
  fi
  wait "$types"
  # The live tests mostly wait for Slurm. tests/sharing.py says which processes begin with them.
  exec "$venv/bin/python" -m pytest -n 8 --dist loadfile "$@"
}

# The releases of a lock file, each with one of its hashes: locked VENV FILE
locked() {
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$2" 2> >(grep -v '^WARNING: Location' >&2) ||
    die "the releases in $2 could not be installed into $1, see above; where your package index has others, './install.sh site --unlocked' takes what pyproject.toml allows, without hashes"
}

site() {
  # Users run it, and the controller's user does, whatever the admin's own files are.
  umask 022
  local prefix= exchange=/shared/slurm-hadar unlocked=
  while (($#)); do
    case $1 in
      --unlocked) unlocked=yes; shift ;;
      --prefix) prefix=${2:-}; shift $(($# > 1 ? 2 : 1)) ;;
      --prefix=*) prefix=${1#*=}; shift ;;
      --exchange) exchange=${2:-}; shift $(($# > 1 ? 2 : 1)) ;;
      --exchange=*) exchange=${1#*=}; shift ;;
      *) usage "$1" ;;
    esac
  done
  [[ -n $prefix ]] || usage
  [[ $prefix$exchange =~ ^[A-Za-z0-9_./+-]*$ ]] || die "the folders may have letters, digits and _./+- in their names, as they stand in systemd's files"
  mkdir -p "$prefix" 2>/dev/null || die "$prefix cannot be made; choose a folder that you may write to"
  prefix=$(cd "$prefix" && pwd)
  local dir=$prefix/venv wheel
  [[ -x $dir/bin/python ]] || "$(python)" -m venv "$dir"
  mkdir -p "$prefix/bin" "$prefix/share/slurm-hadar"
  local built
  built=$(mktemp -d)
  trap "rm -rf '$built'" RETURN
  local how=()
  "$(python)" -m venv "$built/tools"
  if [[ -z $unlocked ]]; then
    locked "$built/tools" packaging/locked/build.txt
    how=(--no-build-isolation)
  fi
  "$built/tools/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps ${how[@]+"${how[@]}"} -w "$built" . ./packaging/runtime 2> >(grep -v '^WARNING: Location' >&2)
  wheel=$prefix/share/slurm-hadar/$(basename "$built"/slurm_hadar-*.whl)
  local runtime
  runtime=$prefix/share/slurm-hadar/$(basename "$built"/slurm_hadar_runtime-*.whl)
  if ! cmp -s "$built"/slurm_hadar-*.whl "$wheel" || ! "$dir/bin/hadar" --help >/dev/null 2>&1; then
    say "installing the package into $prefix"
    cp "$built"/slurm_hadar-*.whl "$wheel"
    if [[ -z $unlocked ]]; then
      locked "$dir" packaging/locked/site.txt
    else
      "$dir/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel[controller,plugins,web]" 2> >(grep -v '^WARNING: Location' >&2)
    fi
    # From its old files to its new ones there is no hbatch; compiled afterwards, that is a second or two.
    "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --force-reinstall "$wheel" 2> >(grep -v '^WARNING: Location' >&2)
    "$dir/bin/python" -I -m compileall -q "$("$dir/bin/python" -Ic 'import sysconfig; print(sysconfig.get_path("purelib"))')/slurm_hadar"
  fi
  isolate "$dir"
  cmp -s "$built"/slurm_hadar_runtime-*.whl "$runtime" || cp "$built"/slurm_hadar_runtime-*.whl "$runtime"
  cp -r site_configs "$prefix/share/slurm-hadar/"
  system_files "$prefix" "$exchange"
  "$dir/bin/hadar" manual "$prefix/share/man" >/dev/null
  mkdir -p "$prefix/share/bash-completion/completions"
  local name
  for name in hbatch hadar; do
    "$dir/bin/hadar" completion bash "$name" >"$prefix/share/bash-completion/completions/$name"
  done
  ln -sf "$dir/bin/hbatch" "$dir/bin/hadar" "$prefix/bin/"
  pyslurm "$dir"
  # A clone that only its owner reads, and an earlier run under another umask.
  chmod -R a+rX "$dir" "$prefix/share/slurm-hadar"
  reachable "$prefix/bin"
  say "hbatch and hadar are in $prefix/bin; put that on PATH"
  say "researchers whose training uses the runtime: pip install $runtime"
  say "services for systemd and cron, with their user and folders: $prefix/share/slurm-hadar/system"
  if configured; then
    say "next: restart the services that run, then: hadar check"
    return
  fi
  say "next: copy an example of $prefix/share/slurm-hadar/site_configs to /etc/slurm-hadar/hadar.toml (or ~/.config/slurm-hadar/hadar.toml), then: hadar check --write"
}

# Says which folder keeps other users from what root installed: reachable FOLDER
reachable() {
  local folder=$1
  ((EUID == 0)) || return 0
  while [[ $folder != / ]]; do
    if [[ $(stat -c %A "$folder") != *[xt] ]]; then
      say "other users, the controller's among them, cannot enter $folder, so neither hbatch nor the services work for them: chmod o+x $folder, or choose another folder for --prefix"
    fi
    folder=$(dirname "$folder")
  done
}

# Units, user, folders and cron line with this site's paths: system_files PREFIX EXCHANGE
system_files() {
  local file to=$1/share/slurm-hadar/system
  mkdir -p "$to"
  for file in packaging/*.*; do
    sed -e "s|@PREFIX@|$1|g" -e "s|@EXCHANGE@|$2|g" "$file" >"$to/${file##*/}"
  done
  cp -r packaging/prometheus "$to/"
}

# Everything that this script put there, and nothing else. Jobs first: no job may wait for what is removed.
uninstall() {
  local prefix= keep_jobs= keep_running= named=
  while (($#)); do
    case $1 in
      --prefix) named=yes prefix=${2:-}; shift $(($# > 1 ? 2 : 1)) ;;
      --prefix=*) named=yes prefix=${1#*=}; shift ;;
      --keep-jobs) keep_jobs=yes; shift ;;
      --keep-running) keep_running=yes; shift ;;
      *) usage "$1" ;;
    esac
  done
  # An empty word, such as a variable that is not set, is not the same as none.
  [[ -z $named || -n $prefix ]] || usage
  if [[ -z $prefix ]]; then
    without_plugins "$venv"
    [[ -n $keep_running ]] || ended "$venv/bin/"
    [[ ! -e $venv ]] || compgen -G "$venv/.hadar-*" >/dev/null || die "$venv was not made by this script, or not to its end, so it stays; remove it by hand"
    rm -rf -- "$venv"
    say "$venv is gone; Debian's packages stay (apt-get remove slurmctld slurmd slurm-client munge)"
    return
  fi
  [[ -x $prefix/venv/bin/hadar && -d $prefix/share/slurm-hadar ]] || die "$prefix holds no slurm-hadar that './install.sh site' made"
  prefix=$(cd "$prefix" && pwd)
  local conf
  conf=$(scontrol show config 2>/dev/null | sed -n 's/^SLURM_CONF *= *//p') || true
  if [[ -n $conf ]] && grep -qsF -- "$prefix/" "$conf" "${conf%/*}"/{plugstack.conf,job_submit.lua,cli_filter.lua,hadar/{prolog,epilog,task_prolog}}; then
    die "$conf, or a plugin beside it, names programs of $prefix, so nothing was removed; first: $prefix/bin/hadar plugins remove --slurm-conf $conf --apply"
  fi
  without_plugins "$prefix/venv"
  [[ -n $keep_running ]] || ended "$prefix/venv/bin/" "$prefix/bin/"
  if [[ -z $keep_jobs ]] && configured; then
    "$prefix/venv/bin/hadar" retire || die "the jobs were not given back, so nothing was removed; stop the controller and run this as its user, or 'hadar retire' as its user and then this with --keep-jobs (without retire Slurm starts each waiting job by itself, in the partitions that it has then)"
  fi
  local name
  rm -f -- "$prefix"/share/man/man1/{hbatch,hadar}.1 "$prefix"/share/man/man5/hadar.toml.5 "$prefix"/share/bash-completion/completions/{hbatch,hadar}
  for name in hbatch hadar; do
    [[ $(readlink "$prefix/bin/$name") != "$prefix/venv/bin/$name" ]] || rm -f -- "$prefix/bin/$name"
  done
  rm -rf -- "$prefix/venv" "$prefix/share/slurm-hadar"
  # Only what is empty goes; the deepest first.
  for name in share/man/man1 share/man/man5 share/man share/bash-completion/completions share/bash-completion bin share .; do
    rmdir -- "$(realpath -m "$prefix/$name")" 2>/dev/null || true
  done
  say "slurm-hadar is gone from $prefix"
  local left=()
  # The folders of another state, and of the exchange.
  for name in $(sed -nE 's/^ *(state|exchange)_dir *= *"([^"]*)".*/\2/p' "${HADAR_CONFIG:-/etc/slurm-hadar/hadar.toml}" 2>/dev/null | grep -vx /var/lib/slurm-hadar) /etc/slurm-hadar /etc/systemd/system/slurm-hadar* /etc/cron.d/slurm-hadar /etc/logrotate.d/slurm-hadar /etc/sysusers.d/slurm-hadar* /etc/tmpfiles.d/slurm-hadar* /var/lib/slurm-hadar /var/log/slurm-hadar; do
    [[ ! -e $name ]] || left+=("$name")
  done
  ((${#left[@]} == 0)) || say "yours, and still there: ${left[*]}"
}

# Ends where a slurm.conf that 'hadar plugins install' changed still has something of it: without_plugins VENV
without_plugins() {
  local conf
  [[ -s $1/slurm-conf-with-plugins ]] || return 0
  while read -r conf; do
    [[ -e $conf ]] || continue
    [[ $("$1/bin/hadar" plugins remove --slurm-conf "$conf" 2>&1) == 'Nothing to change.' ]] ||
      die "plugins of slurm-hadar are still installed for $conf, so nothing was removed; first: $1/bin/hadar plugins remove --slurm-conf $conf --apply, then scontrol reconfigure, then the first again"
  done <"$1/slurm-conf-with-plugins"
}

# Ends where a process of this machine runs one of our programs: ended FOLDER/...
ended() {
  local folder words running=()
  for folder in /proc/[0-9]*; do
    words=$({ tr -c '[:print:]' ' ' <"$folder/cmdline"; } 2>/dev/null) || continue
    [[ $words == "$1"* || (-n ${2:-} && $words == "$2"*) ]] || continue
    running+=("${folder##*/} (${words% })")
  done
  ((${#running[@]})) || return 0
  printf 'install: process %s\n' "${running[@]}" >&2
  die "these programs still run, so nothing was removed; stop them first (services: systemctl stop 'slurm-hadar*'), or add --keep-running"
}

# Whether there is a configuration, so that there may be managed jobs.
configured() {
  [[ -e ${HADAR_CONFIG:-/etc/slurm-hadar/hadar.toml} || -e $HOME/.config/slurm-hadar/hadar.toml ]]
}

# PySlurm X.Y goes with Slurm X.Y only; without a match Slurm's own commands serve.
pyslurm() {
  local dir=$1 release major root log
  release=$(sinfo --version 2>/dev/null | sed -n 's/^slurm[^0-9]*\([0-9]*\.[0-9]*\)\..*/\1/p') || true
  if [[ -z $release ]]; then
    local why='no sinfo on PATH'
    ! command -v sinfo >/dev/null || why='sinfo found no Slurm configuration'
    say "back end: Slurm's commands ($why, so no release to match PySlurm with); once that is cured, run this again"
    return
  fi
  if "$dir/bin/python" -m pip show pyslurm 2>/dev/null | grep -q "^Version: ${release//./\\.}\."; then
    say "back end: PySlurm (its release fits Slurm $release)"
    return
  fi
  root=$(dirname "$(dirname "$(readlink -f "$(command -v sinfo)")")")
  log=$prefix/share/slurm-hadar/pyslurm.log
  major=${release%.*}
  local tag
  case $release in
    22.05) tag=v22.5.3 ;; 23.02) tag=v23.2.3 ;; 23.11) tag=v23.11.1 ;; 24.05) tag=v24.5.1 ;;
    24.11) tag=v24.11.0 ;; 25.05) tag=v25.5.0 ;; *) tag= ;;
  esac
  local sources=("pyslurm==${major}.$((10#${release#*.})).*")
  [[ -z $tag ]] || sources+=("git+https://github.com/PySlurm/pyslurm@$tag")
  local source
  for source in "${sources[@]}"; do
    if SLURM_INCLUDE_DIR=$root/include SLURM_LIB_DIR=$root/lib GIT_TERMINAL_PROMPT=0 timeout 900 \
      "$dir/bin/python" -m pip install --quiet --disable-pip-version-check "$source" >"$log" 2>&1; then
      say "back end: PySlurm from $source (fits Slurm $release)"
      return
    fi
  done
  say "back end: Slurm's commands (no PySlurm for Slurm $release could be installed; see $log)"
}

case ${1:-} in
  demo) shift; demo "$@" ;;
  check) shift; check "$@" ;;
  test) shift; tests "$@" ;;
  coverage) shift; coverage "$@" ;;
  site) shift; site "$@" ;;
  uninstall) shift; uninstall "$@" ;;
  -h | --help) (usage) || exit 0 ;;
  '') usage ;;
  *) usage "$1" ;;
esac
