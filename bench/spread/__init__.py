# SPDX-License-Identifier: Apache-2.0
"""Parts of bench/several_gpus.py: masks, ways to spread attention over ranks, times and reports."""
