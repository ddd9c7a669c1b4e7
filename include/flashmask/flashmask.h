#pragma once

/// Everything: `#include <flashmask/flashmask.h>`.
#include "flashmask/attention.h"
#include "flashmask/builders.h"
#include "flashmask/draw.h"
#include "flashmask/error.h"
#include "flashmask/executor.h"
#include "flashmask/explain.h"
#include "flashmask/interval_mask.h"
#include "flashmask/kernels.h"
#include "flashmask/mask.h"
#include "flashmask/problem.h"
#include "flashmask/reference.h"
#include "flashmask/schedule.h"
#include "flashmask/startend_row_indices.h"
#include "flashmask/tensor.h"
#include "flashmask/version.h"
