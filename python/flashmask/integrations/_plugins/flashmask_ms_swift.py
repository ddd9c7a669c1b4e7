# SPDX-License-Identifier: Apache-2.0
"""What ms-swift's --external_plugins takes for flashmask.integrations.ms_swift.

ms-swift puts the folder of a plugin first on sys.path: here nothing has the name of another package.
"""

import flashmask.integrations.ms_swift  # noqa: F401
