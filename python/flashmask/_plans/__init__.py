# SPDX-License-Identifier: Apache-2.0
"""Plans: made, kept and found again, on the CPU and on GPUs."""
