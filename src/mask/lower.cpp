// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/checks.h"
#include "flashmask/block_map.h"
#include "flashmask/error.h"
#include "flashmask/mask.h"
#include "mask/recognise.h"
#include "mask/to_bits.h"

namespace flashmask {
namespace {

constexpr const char* kFits = "every column has at most two masked row ranges";

std::string misfit_text(const Misfit& misfit) {
  return "column " + grouped(misfit.column) + " (batch " + grouped(misfit.batch) + ", head " + grouped(misfit.head) +
         ") has " + grouped(misfit.ranges) + " masked row ranges and two is what intervals hold";
}

LoweredMask recognised(BitMask bits, std::optional<Misfit>& misfit) {
  Recognised found = recognise(bits);
  misfit = found.misfit;
  if (found.intervals) return {std::move(found.intervals), kFits};
  return {std::make_shared<const BitMask>(std::move(bits)), misfit_text(*misfit)};
}

}  // namespace

LoweredMask::LoweredMask(std::shared_ptr<const IntervalMask> intervals, std::string why,
                         std::shared_ptr<const BlockMap> blocks)
    : shape_(intervals->shape()), intervals_(std::move(intervals)), blocks_(std::move(blocks)), why_(std::move(why)) {}

LoweredMask::LoweredMask(std::shared_ptr<const BitMask> bits, std::string why)
    : shape_(bits->shape()), bits_(std::move(bits)), why_(std::move(why)) {}

const IntervalMask& LoweredMask::intervals() const {
  if (!intervals_) refuse("LoweredMask::intervals: the form is not intervals; ask form() first, or take bits()");
  return *intervals_;
}

const BitMask& LoweredMask::bits() const {
  if (!bits_) refuse("LoweredMask::bits: the form is not bits; ask form() first, or take lower(mask, MaskForm::bits)");
  return *bits_;
}

bool LoweredMask::visible(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const {
  if (bits_) return bits_->visible(batch, head, row, column);
  const bool kept = !blocks_ || blocks_->keeps(batch, head, row / blocks_->block(), column / blocks_->block());
  return kept && intervals_->visible(batch, head, row, column);
}

std::size_t LoweredMask::memory_bytes() const {
  if (bits_) return bits_->memory_bytes();
  return intervals_->memory_bytes() + (blocks_ ? blocks_->memory_bytes() : 0);
}

Mask::Mask(IntervalMask intervals, std::string description)
    : lowered_(std::make_shared<const IntervalMask>(std::move(intervals)), kFits),
      description_(std::move(description)) {}

Mask::Mask(BitMask bits, std::string description)
    : lowered_(recognised(std::move(bits), misfit_)), description_(std::move(description)) {}

Mask::Mask(LoweredMask lowered, std::string description, std::optional<Misfit> misfit)
    : misfit_(misfit), lowered_(std::move(lowered)), description_(std::move(description)) {}

std::optional<Misfit> find_misfit(const Mask& mask) { return mask.misfit(); }

LoweredMask lower(const Mask& mask) { return mask.lowered(); }

LoweredMask lower(const Mask& mask, MaskForm form, Executor& executor) {
  const LoweredMask& lowered = mask.lowered();
  if (lowered.form() == form) return lowered;
  if (form == MaskForm::bits) return {to_bits(lowered, executor), "bits were asked for; " + lowered.why()};
  throw Error(Status::unsupported, "lower: intervals were asked for, but in " + mask.description() + " " +
                                       lowered.why() +
                                       "; give a mask with at most two in every key column, or take bits");
}

}  // namespace flashmask
