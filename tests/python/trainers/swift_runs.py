# SPDX-License-Identifier: Apache-2.0
"""What runs of ms-swift with a plugin take: its path as users get it, a tiny model, data, and arguments for a CPU."""

import json
import subprocess
import sys

import tiny_llama


def plugin_of(module):
    """The path that `python -m module` prints, for --external_plugins."""
    told = subprocess.run([sys.executable, "-m", module], check=True, capture_output=True)
    return told.stdout.decode().strip()


def words(tmp_path, conversations, **given):
    """Saves a model and conversations, each a list of (role, content); returns the words of a command line."""
    with (tmp_path / "data.jsonl").open("w") as file:
        for said in conversations:
            messages = [{"role": role, "content": content} for role, content in said]
            file.write(json.dumps({"messages": messages}) + "\n")
    common = {
        "model": tiny_llama.save(tmp_path / "model"),
        "model_type": "llama",
        "dataset": str(tmp_path / "data.jsonl"),
        "tuner_type": "full",
        "torch_dtype": "float32",
        "attn_impl": "flashmask",
        "learning_rate": "1e-2",
        "gradient_accumulation_steps": "1",
        "logging_steps": "1",
        "save_strategy": "no",
        "split_dataset_ratio": "0",
        "report_to": "none",
        "use_cpu": "true",
        "gradient_checkpointing": "false",
        "dataset_num_proc": "1",
        "output_dir": str(tmp_path / "out"),
    }
    return [word for name, value in (common | given).items() for word in (f"--{name}", value)]
