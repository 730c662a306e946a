"""The causality probe: does a later token change earlier logits?

T time, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from llama_lab.model.decoder import Decoder
from llama_lab.model.settings import require

# Of the largest logit, or of 1 where all are smaller: sums of float32 in another order.
TOLERANCE = 1e-6
LONGEST = 64


class Causality(NamedTuple):
    """What :func:`probe_causality` found."""

    causal: bool
    """Whether no later token changed an earlier logit."""

    max_difference: float
    """The most that one did; not a number where logits are not finite."""


@torch.no_grad()
def probe_causality(decoder: Decoder, *, seed: int = 0) -> Causality:
    """Compare the logits before place t of two texts that differ from t on, for several t.

    The texts are random, of at most 64 tokens; each is read by itself, so that both take the same
    arithmetic. Run it in eval mode and float32.

    Raises:
        SettingError: The context or the vocabulary has no room for a later token that differs.
    """
    config = decoder.config
    n_tokens, vocab_size = min(config.context_length, LONGEST), config.vocab_size or 0
    require(
        n_tokens > 1 and vocab_size > 1,
        f"--model.decoder.context_length {config.context_length} and --model.decoder.vocab_size "
        f"{vocab_size} leave no later token to change: both must be 2 or more",
    )
    device = decoder.head_weight.device
    draws = torch.Generator().manual_seed(seed)
    text = torch.randint(vocab_size, (n_tokens,), generator=draws).to(device)
    shift = torch.randint(1, vocab_size, (n_tokens,), generator=draws).to(device)
    logits = read(decoder, text)
    differences = []
    for t in sorted({1, n_tokens // 4, n_tokens // 2, 3 * n_tokens // 4, n_tokens - 1} - {0}):
        other = torch.cat((text[:t], (text[t:] + shift[t:]) % vocab_size))
        differences.append((read(decoder, other)[:t] - logits[:t]).abs().max())
    most = torch.stack(differences).max().item()
    return Causality(most <= TOLERANCE * max(1.0, logits.abs().max().item()), most)


def read(decoder: Decoder, text: Tensor) -> Tensor:
    """The logits ``[T, V]`` of one text ``[T]``."""
    return decoder.logits(decoder(text[None]))[0]
