# SPDX-License-Identifier: Apache-2.0
"""FlashMask in trainers that take more than the name of an attention: one module each, see docs/trainers.md.

Nothing here imports a trainer before its own module is imported.
"""
