// What flashmask_test_header is made of, beside the header that it precompiles.
