// SPDX-License-Identifier: Apache-2.0
#include "partition/price.h"

namespace flashmask {

PredictedTime Prices::time(std::span<const RankLoad> loads, const MaskShape& mask) const {
  PredictedTime time;
  std::int64_t work = 0, most_work = 0, most_columns = 0;
  for (const RankLoad& load : loads) {
    work += load.work();
    most_work = std::max(most_work, load.work());
    most_columns = std::max({most_columns, load.received, load.sent});
  }
  time.attention = attention(most_work, mask.heads);
  time.wire = wire(most_columns, mask.batch);
  time.ideal = loads.empty() ? 0 : attention(work, mask.heads) / std::ssize(loads);
  return time;
}

}  // namespace flashmask
