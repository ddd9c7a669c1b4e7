# SPDX-License-Identifier: Apache-2.0
"""FlashMask in trainers that need more than the name of an attention: one module for each, see docs/trainers.md.

A trainer is imported only when its own module is.
"""
