// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/checks.h"
#include "flashmask/builders.h"
#include "mask/from_visible_columns.h"

/// What the builders share that describe a row by the columns it sees, because its mask fits no intervals.
namespace flashmask::masks {

/// One batch entry; throws unless the sizes are legal.
MaskShape shape_of(const std::string& builder, std::int64_t heads, std::int64_t rows, std::int64_t columns);

/// One mask head for all, and as many columns as rows.
MaskShape shape_of(const std::string& builder, std::int64_t tokens);

/// Throws unless value >= least; `meaning` says what the argument is.
void check_at_least(const std::string& builder, const std::string& argument, std::int64_t value, std::int64_t least,
                    const std::string& meaning);

/// Throws unless value >= 0: a number of columns beside self.
void check_neighbours(const std::string& builder, const std::string& argument, std::int64_t value);

/// Throws unless each of the positions is in [0, size), naming the first that is not.
void check_positions(const std::string& builder, const std::string& argument, std::span<const std::int64_t> positions,
                     const std::string& axis, std::int64_t size);

}  // namespace flashmask::masks
