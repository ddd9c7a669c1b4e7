// SPDX-License-Identifier: Apache-2.0
// What flashmask_test_header is made of, beside the header that it precompiles.
