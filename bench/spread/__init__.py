# SPDX-License-Identifier: Apache-2.0
"""What bench/several_gpus.py measures: masks, ways to spread attention over ranks, times, and what is said of them."""
