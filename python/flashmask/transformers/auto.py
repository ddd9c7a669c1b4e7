# SPDX-License-Identifier: Apache-2.0
"""Registers by being imported: for programs that take the name of a module to import, and nothing else.

    import flashmask.transformers.auto

is flashmask.transformers.register(). docs/trainers.md says which trainers take such a name.
"""

from flashmask.transformers import register

register()
