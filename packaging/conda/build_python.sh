#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# flashmask: the Python package, with a library of its own.
set -euo pipefail
SKBUILD_CMAKE_DEFINE="FLASHMASK_CUDA=OFF" "$PYTHON" -m pip install . -vv --no-deps --no-build-isolation
