# SPDX-License-Identifier: Apache-2.0
"""What ms-swift's --external_plugins takes for flashmask.integrations.ms_swift_prompts."""

import flashmask.integrations.ms_swift_prompts  # noqa: F401
