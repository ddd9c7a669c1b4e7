// SPDX-License-Identifier: Apache-2.0
/* loaded LIBRARY: makes a plan with a library that is loaded as Python loads one, and is refused a wrong one. */
#include <dlfcn.h>
#include <flashmask/c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void* library;

/* Stores a function of the library, which C has no cast for. */
static void find(const char* name, void* function) {
  void* const found = dlsym(library, name);
  if (found == NULL) exit(EXIT_FAILURE);
  memcpy(function, &found, sizeof found);
}

int main(int count, char** arguments) {
  library = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) {
    fprintf(stderr, "%s\n", count == 2 ? dlerror() : "give the path of a library");
    return EXIT_FAILURE;
  }
  flashmask_status (*causal_document)(const int64_t*, int64_t, int64_t, flashmask_mask**);
  flashmask_status (*plan_create)(const flashmask_mask*, const flashmask_problem*, const flashmask_plan_options*,
                                  flashmask_plan**);
  find("flashmask_mask_causal_document", &causal_document);
  find("flashmask_plan_create", &plan_create);

  const int64_t documents[] = {30, 18};
  flashmask_problem problem = {.struct_size = sizeof(problem),
                               .batch = 1,
                               .query_length = 48,
                               .key_length = 48,
                               .query_heads = 2,
                               .kv_heads = 2,
                               .head_dim = 8,
                               .value_dim = 8,
                               .dtype = FLASHMASK_F32};
  flashmask_mask* mask = NULL;
  flashmask_plan* plan = NULL;
  if (causal_document(documents, 2, 48, &mask) != FLASHMASK_OK) return EXIT_FAILURE;
  if (plan_create(mask, &problem, NULL, &plan) != FLASHMASK_OK) return EXIT_FAILURE;
  problem.query_length = 47;
  return plan_create(mask, &problem, NULL, &plan) == FLASHMASK_INVALID_ARGUMENT ? EXIT_SUCCESS : EXIT_FAILURE;
}
