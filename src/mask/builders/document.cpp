#include "mask/builders/visible_rows.h"
#include "mask/check.h"

namespace flashmask::masks {

Mask causal_document(Lengths documents, std::int64_t tokens) {
  IntervalMask mask = all_visible("causal_document", tokens, tokens);
  const std::int64_t used = packed("causal_document", documents, tokens);
  std::int64_t j = 0;
  for (const std::int64_t length : documents) {
    for (const std::int64_t end = j + length; j < end; ++j) show_rows(mask, mask.index(0, 0, j), j, end);
  }
  hide_columns_from(mask, used);
  return make_mask(std::move(mask), "causal_document(" + counted(documents.size(), "document") + ")");
}

Mask document(Lengths documents, std::int64_t tokens) {
  IntervalMask mask = all_visible("document", tokens, tokens);
  const std::int64_t used = packed("document", documents, tokens);
  std::int64_t j = 0;
  for (const std::int64_t length : documents) {
    const std::int64_t begin = j;
    for (const std::int64_t end = j + length; j < end; ++j) show_rows(mask, mask.index(0, 0, j), begin, end);
  }
  hide_columns_from(mask, used);
  return make_mask(std::move(mask), "document(" + counted(documents.size(), "document") + ")");
}

}  // namespace flashmask::masks
