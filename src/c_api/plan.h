// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "c_api/convert.h"
#include "flashmask/attention.h"

struct flashmask_plan {
  flashmask::Plan plan;
};

namespace flashmask::c_api {

/// All zero where `options` is NULL.
PlanOptions to_plan_options(const flashmask_plan_options* options);

}  // namespace flashmask::c_api
