# SPDX-License-Identifier: Apache-2.0
"""What bench/train_long.py stands on: contestants, the clock, accounts of work and memory, results."""
