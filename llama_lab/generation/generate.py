"""Generation: one prompt's continuation, as ids or as text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch

from llama_lab.data.tokenizers.kinds import Tokenizer
from llama_lab.generation.completions import CompletionSettings, Request, complete
from llama_lab.generation.decoding import Batch, DecodingSettings
from llama_lab.generation.loading import LoadedModel as LoadedModel
from llama_lab.generation.loading import load_model as load_model
from llama_lab.generation.prompts import parsed_ids as parsed_ids
from llama_lab.generation.prompts import prompt_ids as prompt_ids
from llama_lab.generation.sampling import SamplingConfig
from llama_lab.model.decoder import Decoder


def generate(
    decoder: Decoder,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: SamplingConfig,
    generator: torch.Generator,
    n_ids: int,
    stop: Collection[int] | None = None,
    banned: Sequence[int] = (),
    use_cache: bool = True,
    yields_stop: bool = False,
) -> Iterator[int]:
    """Yield the ids that continue a prompt, each as soon as it is chosen.

    :class:`~llama_lab.generation.decoding.Batch` says what the model sees.

    Args:
        decoder: The model. Between two ids it is in the train or eval mode in which it came.
        prompt: One id or more.
        max_new_tokens: The most ids to yield.
        sampling: How an id is chosen.
        generator: The only source of randomness.
        n_ids: Ids that the tokenizer knows; the model's spare ids from ``n_ids`` on are never
            chosen.
        stop: Ids that end the text, each of them; ``None`` for none.
        banned: Ids below ``n_ids`` that are never chosen either.
        use_cache: False recomputes the whole window at every step.
        yields_stop: Whether the id that ends the text is yielded too.

    Raises:
        ValueError: The prompt is empty.
        RunError: The logits are not finite.
    """
    config = DecodingSettings(
        sampling=sampling, n_ids=n_ids, stop=stop or (), banned=banned, use_cache=use_cache
    )
    batch = Batch(decoder, config)
    batch.add(0, prompt, max_new_tokens, generator)
    while max_new_tokens and batch.texts:
        (drawn,) = batch.step()
        if drawn.ended != "stop_token" or yields_stop:
            yield drawn.id


def sample_text(
    decoder: Decoder,
    tokenizer: Tokenizer,
    *,
    prompt: str | None,
    max_new_tokens: int,
    sampling: SamplingConfig,
    seed: int,
) -> str:
    """The prompt and its continuation as one string; no global random state is touched.

    Raises:
        UserError: See :func:`prompt_ids`.
    """
    ids, text = prompt_ids(tokenizer, prompt)
    model = LoadedModel(decoder, tokenizer, step=0)
    config = CompletionSettings(max_new_tokens=max_new_tokens, sampling=sampling)
    pieces = [event.piece.text for event in complete(model, [Request(ids, text, seed)], config)]
    return text + "".join(pieces)
