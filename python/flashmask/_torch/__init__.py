# SPDX-License-Identifier: Apache-2.0
"""What is imported only where torch is: the operators, and what they need of autograd, pytrees and generators."""
