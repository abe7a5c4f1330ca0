"""A language model of no weight and no sense, for real engines on machines without a GPU.

The folder holds a Llama configuration and a tokenizer of one token per byte; with `--load-format dummy` vLLM makes up the weights.
`python -m replicas.tiny_model FOLDER` writes it, with nothing but the standard library.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MAX_TOKENS = 4096
SPECIAL = ("<s>", "</s>", "<pad>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write(folder: Path) -> Path:
    """Write the model's files into a folder, made if need be. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in (("config.json", _config()), ("tokenizer.json", _tokenizer()), ("tokenizer_config.json", _tokenizer_config())):
        (folder / name).write_text(json.dumps(value, indent=1))
    return folder


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 320,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": MAX_TOKENS,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "tie_word_embeddings": False,
    }


def _tokenizer() -> dict[str, Any]:
    """In the format of the `tokenizers` library: byte-level BPE without merges."""
    added = [
        {"id": 256 + at, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for at, text in enumerate(SPECIAL)
    ]
    vocabulary = {letter: at for at, letter in enumerate(sorted(_letters()))}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary | {text: 256 + at for at, text in enumerate(SPECIAL)}, "merges": []},
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": MAX_TOKENS,
    }


def _letters() -> list[str]:
    """The characters byte-level tokenizers write the 256 bytes as: printable ones as themselves, the rest from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return [chr(byte) for byte in sorted(printable)] + [chr(0x100 + at) for at in range(256 - len(printable))]


if __name__ == "__main__":
    write(Path(sys.argv[1]))
