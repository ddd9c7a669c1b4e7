# SPDX-License-Identifier: Apache-2.0
"""What takes FlexAttention's functions: mask_mod, score_mod and BlockMask, read by running them once on symbols."""
