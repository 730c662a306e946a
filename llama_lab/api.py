"""The Python API: ``from llama_lab import load, generate``.

>>> model = load("logs/llama/run_0")                    # doctest: +SKIP
>>> for piece in generate(model, "The ", seed=1):       # doctest: +SKIP
...     print(piece, end="", flush=True)
>>> a, b = generate(model, ["The ", "A longer prompt"])  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import torch

from llama_lab.configs import find_checkpoint, logs_folder
from llama_lab.data.config import SpecialTokens
from llama_lab.generation.completions import Completion, CompletionSettings, Request, complete
from llama_lab.generation.loading import LoadedModel, build_model, load_model
from llama_lab.generation.prompts import prompt_ids, token_ids
from llama_lab.generation.sampling import SamplingConfig
from llama_lab.interop.huggingface import CONFIG_FILE, import_folder
from llama_lab.model.devices import best_device


def load(source: str | Path, device: str | torch.device = "auto") -> LoadedModel:
    """Load a model that generates.

    Args:
        source: A checkpoint, a run folder (its last checkpoint), ``best`` or ``last`` (of the
            newest run under ./logs), or a Hugging Face folder.
        device: Where to compute; ``auto`` takes the accelerator where there is one.

    Raises:
        UserError: There is no such model, or its files are broken.
    """
    device = best_device() if device == "auto" else device
    folder = Path(source)
    if (folder / CONFIG_FILE).is_file():
        model = import_folder(folder)
        return build_model(
            model.config, model.weights, model.tokenizer, device, folder=model.folder
        )
    path = find_checkpoint(str(source), logs_folder(None), flag="load:")
    return load_model(path, device)


@overload
def generate(
    model: LoadedModel,
    prompt: str | None = None,
    *,
    max_new_tokens: int = ...,
    temperature: float = ...,
    top_k: int | None = ...,
    top_p: float | None = ...,
    min_p: float | None = ...,
    repetition_penalty: float | None = ...,
    stop: str | Sequence[str] = ...,
    stop_tokens: Sequence[int | str] = ...,
    special_tokens: SpecialTokens = ...,
    seed: int = ...,
    batch_size: int = ...,
    logprobs: bool = ...,
) -> Iterator[str]: ...


@overload
def generate(
    model: LoadedModel,
    prompt: list[str],
    *,
    max_new_tokens: int = ...,
    temperature: float = ...,
    top_k: int | None = ...,
    top_p: float | None = ...,
    min_p: float | None = ...,
    repetition_penalty: float | None = ...,
    stop: str | Sequence[str] = ...,
    stop_tokens: Sequence[int | str] = ...,
    special_tokens: SpecialTokens = ...,
    seed: int = ...,
    batch_size: int = ...,
    logprobs: bool = ...,
) -> list[Completion]: ...


def generate(
    model: LoadedModel,
    prompt: str | list[str] | None = None,
    *,
    max_new_tokens: int = 300,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    stop: str | Sequence[str] = (),
    stop_tokens: Sequence[int | str] = (),
    special_tokens: SpecialTokens = "text",
    seed: int = 0,
    batch_size: int = 8,
    logprobs: bool = False,
) -> Iterator[str] | list[Completion]:
    """Continue a prompt piece by piece, or several prompts side by side.

    Args:
        model: What :func:`load` gave.
        prompt: One text, whose continuation comes as an iterator of pieces of text; or a list of
            texts, whose completions come as a list. None or an empty text begins a text.
        max_new_tokens: The most tokens to add.
        temperature: Divides the logits; 0 takes the likeliest token.
        top_k: Draw from the k likeliest tokens only.
        top_p: Draw from the smallest set of tokens with this probability.
        min_p: Draw from tokens with at least this share of the likeliest one's probability.
        repetition_penalty: Above 1, tokens that the text already has become less likely.
        stop: The text ends before this string, or before the first of several.
        stop_tokens: Ids, or names of special tokens, that end the text too.
        special_tokens: Whether a special token's spelling in a prompt is text or that token
            (``parse``).
        seed: Of the draws; prompt i of a list takes ``seed + i``.
        batch_size: The most prompts side by side; it does not change the texts.
        logprobs: Whether completions have the log-probability of each token.

    Raises:
        UserError: A setting or a prompt is refused.
    """
    config = CompletionSettings(
        max_new_tokens=max_new_tokens,
        sampling=SamplingConfig(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
        ),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_ids=token_ids(model.tokenizer, stop_tokens, "stop_tokens"),
        logprobs=logprobs,
    )
    prompts = prompt if isinstance(prompt, list) else [prompt]
    requests = [
        Request(*prompt_ids(model.tokenizer, text, special_tokens, named="prompt"), seed + i)
        for i, text in enumerate(prompts)
    ]
    events = complete(model, requests, config, batch_size=batch_size)
    if not isinstance(prompt, list):
        return (event.piece.text for event in events if event.piece.text)
    completions = {e.number: e.completion for e in events if e.completion is not None}
    return [completions[number] for number in range(len(requests))]
