"""Memory of training as it is counted on ``meta``, against steps that really run on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from llama_lab.inspect.memory import (
    PRECISIONS,
    activation_bytes,
    enough_layers,
    held_before,
    training_memory,
)
from llama_lab.model import loss as loss_module
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.layers import LayerKind
from llama_lab.training.optimizers import OPTIMIZERS, OptimizerConfig, build_optimizer

SIZES = {"dim": 32, "n_layers": 3, "context_length": 48, "vocab_size": 50}


def step(decoder: Decoder, precision: str, batch_size: int, context: int) -> torch.Tensor:
    tokens = torch.zeros((batch_size, context), dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
        return decoder.loss(decoder(tokens), tokens, reduction="mean")


def really_saved(config: DecoderConfig, precision: str, batch_size: int, context: int) -> int:
    """Bytes of all storages that a real step keeps, without what was there before."""
    decoder = Decoder(config).to(PRECISIONS[precision].weights)
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = step(decoder, precision, batch_size, context)
    before = {tensor.untyped_storage().data_ptr() for tensor in held_before(decoder)}
    del loss
    return sum(s.nbytes() for place, s in storages.items() if place not in before)


FORMS: dict[str, dict[str, Any]] = {
    "llama": {},
    "grouped, tied": {"attention": {"n_kv_heads": 2}, "tie_embeddings": True},
    "many layers": {"n_layers": 6},
    "windows": {"n_layers": 7, "attention": {"window": 8, "window_pattern": "LLG"}},
    "a window that covers half": {"attention": {"window": 32}},
    "biases of distance": {"position": {"kind": "alibi"}},
    "scores": {"attention": {"sinks": True, "softcap": 30.0}, "logit_softcap": 30.0},
    "2017": {
        "norm": {"kind": "layernorm", "placement": "post"},
        "position": {"kind": "sinusoidal"},
        "feed_forward": {"kind": "relu", "bias": True},
        "attention": {"qkv_bias": True, "output_bias": True},
    },
    "parallel, dyt": {"norm": {"kind": "dyt", "placement": "parallel"}},
    "gemma": {
        "norm": {"kind": "rmsnorm_offset", "placement": "sandwich"},
        "attention": {"qk_norm": "head", "gate": True, "head_dim": 12},
        "feed_forward": {"kind": "geglu_tanh"},
        "position": {"nope_every": 2},
    },
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", FORMS)
def test_activations_are_what_a_real_step_keeps(name: str, precision: Any) -> None:
    config = DecoderConfig.from_dict({**SIZES, **FORMS[name]})
    counted = activation_bytes(config, precision, 2, 40)
    # On the CPU a layernorm in bfloat16 keeps its means in bfloat16, elsewhere in float32.
    tolerance = 0.01 if precision == "bf16-true" and name == "2017" else 0
    assert counted == pytest.approx(really_saved(config, precision, 2, 40), rel=tolerance)


def test_logits_that_are_never_held_whole_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DecoderConfig.from_dict(SIZES)
    whole = activation_bytes(config, "32-true", 2, 40)
    monkeypatch.setattr(loss_module, "LOGITS_BUDGET", 1000)
    chunked = activation_bytes(config, "32-true", 2, 40)
    assert chunked == really_saved(config, "32-true", 2, 40)
    assert chunked < whole


def test_fused_attention_grows_with_the_context_and_held_scores_with_its_square() -> None:
    fused = DecoderConfig.from_dict(SIZES)
    held = DecoderConfig.from_dict({**SIZES, "attention": {"softcap": 30.0}})
    short, long = (activation_bytes(fused, "32-true", 1, t) for t in (1024, 2048))
    assert long == pytest.approx(2 * short, rel=0.01)
    short, long = (activation_bytes(held, "32-true", 1, t) for t in (1024, 2048))
    assert long > 3.5 * short


def test_as_many_layers_are_run_as_show_each_kind_twice() -> None:
    local, full = LayerKind(8, True), LayerKind(None, True)
    assert enough_layers([full] * 9) == 2
    assert enough_layers([full]) == 1
    assert enough_layers([local, local, local, full] * 5) == 8
    assert enough_layers([local, local, local, full]) == 4
    assert enough_layers([local] * 6 + [full]) == 7


def test_sizes_beyond_a_tensor_are_an_error() -> None:
    with pytest.raises(RuntimeError):
        activation_bytes(DecoderConfig.from_dict(SIZES), "32-true", 1 << 40, 1 << 24)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_training_memory_is_what_a_step_leaves(precision: Any, kind: Any) -> None:
    config = DecoderConfig.from_dict(SIZES)
    decoder = Decoder(config).to(PRECISIONS[precision].weights)
    optimizer = build_optimizer(decoder, OptimizerConfig(kind=kind))
    step(decoder, precision, 2, 8).backward()
    optimizer.step()
    parameters = list(decoder.parameters())
    memory = training_memory(config, precision, OPTIMIZERS[kind].states, batch_size=2, context=8)
    assert memory.weights == sum(p.nbytes for p in parameters)
    assert memory.gradients == sum(p.grad.nbytes for p in parameters if p.grad is not None)
    # The count of steps is one number a tensor.
    states = [s for p in parameters for s in optimizer.state[p].values() if s.dim() > 0]
    assert memory.optimizer_states == sum(s.nbytes for s in states)
    assert memory.activations == activation_bytes(config, precision, 2, 8)
    assert memory.total == (
        memory.weights + memory.gradients + memory.optimizer_states + memory.activations
    )
