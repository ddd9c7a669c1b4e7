#include <utility>

#include "flashmask/error.h"
#include "mask/check.h"
#include "mask/fit.h"

namespace flashmask {

LoweredMask::LoweredMask(std::shared_ptr<const IntervalMask> intervals, std::string why)
    : intervals_(std::move(intervals)), why_(std::move(why)) {}

std::optional<Misfit> find_misfit(const Mask& mask) { return fit(mask.shape(), mask.source()).misfit; }

LoweredMask lower(const Mask& mask) {
  Fit result = fit(mask.shape(), mask.source());
  if (result.misfit) {
    const Misfit& misfit = *result.misfit;
    throw Error(Status::unsupported,
                "lower: column " + grouped(misfit.column) + " (batch " + grouped(misfit.batch) + ", head " +
                    grouped(misfit.head) + ") of " + mask.description() + " has " + grouped(misfit.ranges) +
                    " masked row ranges but the interval form holds 2 a column, and this version has no bit form yet;"
                    " give a mask with at most two masked row ranges in every key column");
  }
  return {std::move(result.intervals), "every column has at most two masked row ranges"};
}

}  // namespace flashmask
