# SPDX-License-Identifier: Apache-2.0
"""Registers when imported: for programs that can only be given the name of a module to import.

    import flashmask.transformers.auto

calls flashmask.transformers.register(). docs/trainers.md says which trainers take such a name.
"""

from flashmask.transformers import register

register()
