// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/checks.h"
#include "flashmask/builders.h"
#include "mask/from_visible_columns.h"

/// Helpers of builders that describe a row by the columns it sees, for masks that need not fit intervals.
namespace flashmask::masks {

/// Returns the shape of one batch entry; throws unless rows and columns are legal sizes.
MaskShape shape_of(const std::string& builder, std::int64_t heads, std::int64_t rows, std::int64_t columns);

/// Returns the shape of one batch entry and one mask head, with as many columns as rows.
MaskShape shape_of(const std::string& builder, std::int64_t tokens);

/// Throws unless value >= least; `meaning` says what the argument is.
void check_at_least(const std::string& builder, const std::string& argument, std::int64_t value, std::int64_t least,
                    const std::string& meaning);

/// Throws unless `value`, a number of columns on one side of self, is >= 0.
void check_neighbours(const std::string& builder, const std::string& argument, std::int64_t value);

/// Throws unless each of the positions is in [0, size), naming the first that is not.
void check_positions(const std::string& builder, const std::string& argument, std::span<const std::int64_t> positions,
                     const std::string& axis, std::int64_t size);

}  // namespace flashmask::masks
