# SPDX-License-Identifier: Apache-2.0
"""The compiled library: its functions, structs and errors, and the values that go into them."""
