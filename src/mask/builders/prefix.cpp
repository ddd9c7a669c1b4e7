// SPDX-License-Identifier: Apache-2.0
#include "mask/builders/packing.h"

namespace flashmask::masks {
namespace {

void check_prefixes(Lengths documents, Lengths prefixes) {
  const std::string builder = "prefix_lm_document";
  if (prefixes.size() != documents.size()) {
    refuse(builder + ": " + counted(prefixes.size(), "prefix length") + " for " +
           counted(documents.size(), "document") + "; give one a document");
  }
  for (std::size_t k = 0; k < documents.size(); ++k) {
    if (prefixes[k] < 0 || prefixes[k] > documents[k]) {
      refuse(builder + ": prefixes[" + std::to_string(k) + "] is " + grouped(prefixes[k]) + " but that document has " +
             grouped(documents[k]) + " tokens; give a prefix from 0 to the document's length");
    }
  }
}

}  // namespace

Mask prefix_lm_document(Lengths documents, Lengths prefixes, std::int64_t tokens) {
  check_fit("prefix_lm_document", "documents", documents, tokens);
  check_prefixes(documents, prefixes);
  return pack("prefix_lm_document", documents, tokens, [prefixes](const Document& d, std::int64_t j) {
    const bool in_prefix = j - d.begin < prefixes[d.number];
    return Span{in_prefix ? d.begin : j, d.end};
  });
}

Mask prefix_lm_causal(std::int64_t tokens, std::int64_t prefix) {
  IntervalMask mask = all_visible("prefix_lm_causal", tokens);
  if (prefix < 0 || prefix > tokens) {
    refuse("prefix_lm_causal: prefix is " + grouped(prefix) + " but the sequence has " + grouped(tokens) +
           " tokens; give a prefix from 0 to tokens");
  }
  for (std::int64_t j = prefix; j < tokens; ++j) show_column(mask, j, {j, tokens});
  return Mask(std::move(mask), "prefix_lm_causal(" + grouped(prefix) + ")");
}

}  // namespace flashmask::masks
