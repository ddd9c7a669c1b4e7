# SPDX-License-Identifier: Apache-2.0
"""Lets OpenRLHF be imported on a CPU: it names functions of flash-attn and of vLLM that nothing here calls."""

import sys
import tempfile
from pathlib import Path

NAMES = {
    "flash_attn/__init__.py": (),
    "flash_attn/bert_padding.py": ("index_first_axis", "pad_input", "rearrange", "unpad_input"),
    "flash_attn/utils/__init__.py": (),
    "flash_attn/utils/distributed.py": ("all_gather",),
    "vllm/__init__.py": ("SamplingParams",),
    "vllm/inputs.py": ("TokensPrompt",),
    "vllm/utils.py": ("random_uuid",),
}
_holder = tempfile.TemporaryDirectory()
FOLDER = _holder.name

for name, held in NAMES.items():
    file = Path(FOLDER) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{each} = None\n" for each in held))
sys.path.append(FOLDER)
