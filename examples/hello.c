// SPDX-License-Identifier: Apache-2.0
/* Two packed documents: attention forward and backward through the C ABI. */
#include <flashmask/c_api.h>
#include <stdio.h>
#include <stdlib.h>

enum {
  TOKENS = 48,
  HEADS = 2,
  DIM = 8,
  ROW = HEADS * DIM,
  SIZE = TOKENS * ROW,
  LSE_SIZE = HEADS * TOKENS,
  SECOND_DOCUMENT = 30 * ROW
};

static float q[SIZE], k[SIZE], v[SIZE], o[SIZE], lse[LSE_SIZE];
static float grad_o[SIZE], grad_q[SIZE], grad_k[SIZE], grad_v[SIZE];

static void check(flashmask_status status) {
  if (status == FLASHMASK_OK) return;
  fprintf(stderr, "flashmask: %s\n", flashmask_last_error());
  exit(EXIT_FAILURE);
}

/* (batch, tokens, heads, dim), row-major. */
static flashmask_tensor tensor(void* data) {
  const flashmask_tensor result = {.data = data,
                                   .dtype = FLASHMASK_F32,
                                   .rank = 4,
                                   .shape = {1, TOKENS, HEADS, DIM},
                                   .strides = {SIZE, ROW, DIM, 1}};
  return result;
}

/* (batch, heads, tokens), row-major. */
static flashmask_tensor row_tensor(void* data) {
  const flashmask_tensor result = {
      .data = data, .dtype = FLASHMASK_F32, .rank = 3, .shape = {1, HEADS, TOKENS}, .strides = {LSE_SIZE, TOKENS, 1}};
  return result;
}

static void fill(float* data, float start) {
  for (int i = 0; i < SIZE; ++i) data[i] = start + (float)(i * 37 % 101) / 101.0F;
}

static flashmask_mask* build_mask(void) {
  const int64_t documents[] = {30, 18};
  flashmask_mask* mask = NULL;
  check(flashmask_mask_causal_document(documents, 2, TOKENS, &mask));
  return mask;
}

static flashmask_plan* build_plan(const flashmask_mask* mask) {
  const flashmask_problem problem = {.struct_size = sizeof(problem),
                                     .batch = 1,
                                     .query_length = TOKENS,
                                     .key_length = TOKENS,
                                     .query_heads = HEADS,
                                     .kv_heads = HEADS,
                                     .head_dim = DIM,
                                     .value_dim = DIM,
                                     .dtype = FLASHMASK_F32};
  flashmask_plan* plan = NULL;
  check(flashmask_plan_create(mask, &problem, NULL, &plan));
  return plan;
}

static void attend(const flashmask_plan* plan) {
  const flashmask_forward_tensors forward = {.struct_size = sizeof(forward),
                                             .q = tensor(q),
                                             .k = tensor(k),
                                             .v = tensor(v),
                                             .o = tensor(o),
                                             .lse = row_tensor(lse)};
  check(flashmask_forward(plan, &forward, NULL));
  const flashmask_backward_tensors backward = {.struct_size = sizeof(backward),
                                               .q = tensor(q),
                                               .k = tensor(k),
                                               .v = tensor(v),
                                               .o = tensor(o),
                                               .lse = row_tensor(lse),
                                               .grad_o = tensor(grad_o),
                                               .grad_q = tensor(grad_q),
                                               .grad_k = tensor(grad_k),
                                               .grad_v = tensor(grad_v)};
  check(flashmask_backward(plan, &backward, NULL));
}

int main(void) {
  fill(q, -0.5F);
  fill(k, -0.4F);
  fill(v, -0.3F);
  fill(grad_o, -0.2F);

  flashmask_mask* mask = build_mask();
  flashmask_plan* plan = build_plan(mask);
  attend(plan);

  flashmask_explanation explanation = FLASHMASK_INIT(flashmask_explanation);
  check(flashmask_mask_explain(mask, 16, 16, &explanation));
  const char* kernel = NULL;
  check(flashmask_plan_kernel(plan, FLASHMASK_FORWARD, &kernel));
  printf("flashmask %s, %s\n", flashmask_version(), kernel);
  printf("visible pairs %lld, tiles: %lld skipped, %lld partial, %lld full\n", (long long)explanation.visible_pairs,
         (long long)explanation.skipped_tiles, (long long)explanation.partial_tiles, (long long)explanation.full_tiles);
  printf("first token of each document sees itself alone: o = %g and %g, v = %g and %g\n", o[0], o[SECOND_DOCUMENT],
         v[0], v[SECOND_DOCUMENT]);

  flashmask_plan_destroy(plan);
  flashmask_mask_destroy(mask);
  return EXIT_SUCCESS;
}
