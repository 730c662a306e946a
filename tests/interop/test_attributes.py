"""Every attribute of transformers' config classes, held against what our tables read."""

from __future__ import annotations

from typing import Any

import pytest

from llama_lab.errors import UserError
from llama_lab.interop.families import FAMILIES
from llama_lab.interop.parts import differing, resolved
from llama_lab.interop.values import Values
from tests.interop.test_dialects import read

# Attributes of transformers' classes that change no logits of a model of ours, and why.
IRRELEVANT = {
    **dict.fromkeys((
        "_name_or_path", "architectures", "id2label", "label2id", "problem_type",
        "transformers_version",
    ), "says what the model is, or is for classifying texts"),
    **dict.fromkeys(("output_attentions", "output_hidden_states", "return_dict", "use_cache"),
                    "says what a call returns"),
    **dict.fromkeys(("dtype", "chunk_size_feed_forward", "pretraining_tp"),
                    "how it is computed: kept as stored here, and in one go"),
    "reorder_and_upcast_attn": "how attention is rounded; float32 is the same",
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), "tokenizer_files.py's"),
    **dict.fromkeys(("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop",
                     "initializer_range"), "matters to training alone"),
    **dict.fromkeys(("summary_type", "summary_use_proj", "summary_activation",
                     "summary_proj_to_labels", "summary_first_dropout"),
                    "a head of GPT2DoubleHeadsModel, whose tensors would be left over"),
    "_sliding_window_pattern": "written, never read: layer_types says it, written beside",
    "model_type": "chooses the table",
    "is_encoder_decoder": "false for every class of these",
}  # fmt: skip


class Watched(dict[str, Any]):
    """A config that knows which of its keys were asked for."""

    def __init__(self, content: dict[str, Any], seen: set[str]) -> None:
        super().__init__(content)
        self.seen = seen

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_attribute_of_their_config_is_read_or_known_not_to_matter(
    transformers, monkeypatch, family
) -> None:
    theirs = transformers.AutoConfig.for_model(family)
    content = theirs.to_dict()
    seen: set[str] = set()
    monkeypatch.setattr(Values, "renamed", lambda values, names: values)
    for windowed in (False, True):  # what a window alone makes matter
        changes = {"use_sliding_window": True, "sliding_window": 64, "layer_types": None}
        keys = {**content, **(changes if windowed and "use_sliding_window" in content else {})}
        FAMILIES[family].read(Values(Watched(keys, seen), ""))
    unknown = content.keys() - seen - IRRELEVANT.keys()
    assert not unknown, f"read, refuse or explain: {unknown}"
    assert FAMILIES[family].names == theirs.attribute_map


@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_config_is_the_one_that_their_class_makes_of_it(transformers, family) -> None:
    """Their class's own defaults, written out in full, give the parts of the few keys."""
    head = {"head_dim": 256} if family == "gemma3_text" else {}
    few = {"vocab_size": 61, **head}
    if family != "gpt2":
        few |= {"hidden_size": 64, "intermediate_size": 40, "num_hidden_layers": 4}
        few |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    else:
        few |= {"n_embd": 64, "n_layer": 4, "n_head": 4}
    full = transformers.AutoConfig.for_model(family, **few).to_dict()
    read_few, read_full = (resolved(FAMILIES[family].read(Values(k, ""))) for k in (few, full))
    assert not differing(read_few, read_full)


def test_a_key_of_gpt2_may_have_its_other_name(transformers) -> None:
    other = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    other |= {"max_position_embeddings": 64}
    assert transformers.GPT2Config(**other).n_positions == 64
    plain = resolved(FAMILIES["gpt2"].read(Values({"vocab_size": 61, **other}, "")))
    assert not differing(plain, read("gpt2"))
    with pytest.raises(UserError, match="hidden_size 64: contradicts n_embd 32"):
        read("gpt2", hidden_size=64)
