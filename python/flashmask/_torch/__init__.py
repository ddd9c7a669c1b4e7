# SPDX-License-Identifier: Apache-2.0
"""Modules that are imported only where torch is: the operators, with their autograd, pytrees and generators."""
