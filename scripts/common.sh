# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: progress lines, packages, tests in several processes. The working directory becomes the
# repository's root.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A line of progress, with the minutes since the script began.
say() { printf '\n== %d:%02d %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

die() {
  printf '%s\n' "$*" >&2
  exit 1
}

# usage <file>: prints the comment at the head of a script, which is its help.
usage() { sed -n '2,/^[^#]/{/^# SPDX/d;s/^# \{0,1\}//p}' "$1"; }

# How this user may run apt-get: as root, through sudo without a password, or not at all.
as_root() {
  if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi
}
may_install() { command -v apt-get >/dev/null && as_root true 2>/dev/null; }

refresh_package_lists() {
  [[ -n ${package_lists_are_fresh:-} ]] && return
  package_lists_are_fresh=yes
  if may_install; then
    say "Refreshing the package lists"
    as_root apt-get update -q </dev/null || printf 'apt-get update reported an error; going on with the lists there are\n'
  fi
}

is_installed() { [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# need <package> [command]: remembers what is missing. Where a command is named, having it is enough.
missing=()
need() {
  if [[ -n ${2:-} ]]; then
    command -v "$2" >/dev/null && return
  elif is_installed "$1"; then
    return
  fi
  missing+=("$1")
}

# Installs what need() remembered, or says how to and stops.
install_missing() {
  ((${#missing[@]} == 0)) && return
  if ! may_install; then
    die "Some packages are missing and may not be installed from here. Run this line, then this script again:
  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
  fi
  refresh_package_lists
  say "Installing ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" </dev/null
}

need_build_packages() {
  need g++ g++
  need cmake cmake
  need ninja-build ninja
  need libcli11-dev
  need libpng-dev
  need nlohmann-json3-dev
}

# torch.compile compiles C++ against Python's headers.
need_python_packages() {
  need python3 python3
  python3 -m ensurepip --version &>/dev/null || need python3-venv
  [[ -e $(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null)/Python.h ]] || need python3-dev
}

# With ccache the second build of a file is free, in another clone too; CMake reads the launchers. The sloppiness keeps what
# uses a precompiled header. Paths count from where the compiler runs, so builds that are to share lie equally deep.
use_ccache() {
  if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
    export CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=$PWD
  fi
}

# test_in_shards <folder> <GoogleTest program…>: one process per core, each with a share of the tests; their output is
# kept in the folder.
test_in_shards() {
  local logs=$1 shard shards failed=no
  local -A processes
  shift
  shards=$(nproc)
  mkdir -p "$logs"
  for ((shard = 0; shard < shards; ++shard)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard "$@" --gtest_brief=1 >"$logs/$shard.log" 2>&1 &
    processes[$shard]=$!
  done
  for ((shard = 0; shard < shards; ++shard)); do
    wait "${processes[$shard]}" || failed=yes
    cat "$logs/$shard.log"
  done
  [[ $failed == no ]] || die "tests failed; see above, or $logs"
}
