#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# libflashmask: what cmake --install puts into the environment.
set -euo pipefail
# shellcheck disable=SC2086  # CMAKE_ARGS is a list that conda's compilers set
cmake -S . -B build -G Ninja ${CMAKE_ARGS:-} -D CMAKE_BUILD_TYPE=Release -D CMAKE_INSTALL_PREFIX="$PREFIX" \
  -D CMAKE_INSTALL_LIBDIR=lib -D FLASHMASK_CUDA=OFF -D FLASHMASK_BENCH=OFF -D FLASHMASK_CLI=OFF -D FLASHMASK_TESTS=OFF
cmake --build build
cmake --install build
