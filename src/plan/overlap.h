// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashmask/tensor.h"

namespace flashmask {

/// Whether two tensors, neither of them empty, share memory. Exact for any strides that a search of a thousand steps
/// decides, such as those of views that interleave in a packed tensor; tensors it leaves undecided count as disjoint.
bool overlap(const TensorView& a, const TensorView& b);

/// Whether two elements of a tensor that is not empty share memory, as with a stride of 0; decided by the same search.
bool overlaps_itself(const TensorView& tensor);

}  // namespace flashmask
