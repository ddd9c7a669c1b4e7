# SPDX-License-Identifier: Apache-2.0
"""Parts of bench/train_long.py: contestants, the clock, accounts of work and memory, results."""
