# ThreadSanitizer would spend most of the tests' time on the two dense computations that kernels are held against.
# They share nothing between threads, so their accesses need not be watched.
if(FLASHMASK_SANITIZE STREQUAL "thread" AND TARGET flashmask_corpus)
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/reference/reference.cpp TARGET_DIRECTORY flashmask_objects
               APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=thread)
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/tests/check/naive_attention.cpp TARGET_DIRECTORY flashmask_corpus
               APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=thread)
endif()
