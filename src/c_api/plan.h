// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "c_api/convert.h"
#include "flashmask/attention.h"

struct flashmask_plan {
  flashmask::Plan plan;
};

namespace flashmask::c_api {

/// Converts options; NULL means all zero.
PlanOptions to_plan_options(const flashmask_plan_options* options);

}  // namespace flashmask::c_api
