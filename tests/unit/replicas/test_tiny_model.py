"""The model that real engines are tried with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from replicas.tiny_model import SPECIAL, write

if TYPE_CHECKING:
    from pathlib import Path


def test_every_byte_is_one_token(tmp_path: Path) -> None:
    """256 letters and the special tokens, numbered without a gap and within the model's vocabulary."""
    folder = write(tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256 + len(SPECIAL)))
    assert len(vocabulary) <= config["vocab_size"]
    assert [(t["id"], t["content"]) for t in tokenizer["added_tokens"]] == [(vocabulary[text], text) for text in SPECIAL]
    assert (vocabulary["<s>"], vocabulary["</s>"]) == (config["bos_token_id"], config["eos_token_id"])
