"""Generation: prefill the prompt, then one id a step through the cache.

Shapes: B batch, T time, D model width, V vocabulary.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from llama_lab.checkpoints import check_weights, read_record
from llama_lab.data.config import SpecialTokens
from llama_lab.data.tokenizers.base import refuse_surrogates
from llama_lab.data.tokenizers.kinds import Tokenizer, tokenizer_from_state
from llama_lab.errors import UserError
from llama_lab.generation.sampling import SamplingConfig, choose
from llama_lab.inspect.faults import FaultKind, plant_fault
from llama_lab.model.cache import DecoderCache
from llama_lab.model.decoder import Decoder, DecoderConfig


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

    What the model sees is a window of at most C = ``context_length`` ids, and its first id stands
    at position 0. The window begins as the newest C ids of the prompt and grows by each new id.
    When it would outgrow C, its oldest C - C // 2 ids are dropped and the rest is read anew; so a
    new id costs O(1) forwards of one id, amortised, and every id after the first C is chosen from
    C // 2 + 1 to C predecessors. The rule does not know about the cache: with and without one the
    model sees the same.

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
    if not prompt:
        raise ValueError("the prompt is empty: give it one id or more (see prompt_ids)")
    context_length = decoder.config.context_length
    device = decoder.head_weight.device
    window = list(prompt[-context_length:])
    length = min(context_length, len(window) + max_new_tokens)
    cache = _new_cache(decoder, length, device) if use_cache else None
    unread = window
    for _ in range(max_new_tokens):
        if len(window) > context_length:
            del window[: context_length - context_length // 2]
            unread = window
            if cache is not None:
                cache.reset()
        tokens = torch.tensor([unread if use_cache else window], device=device)
        logits = _next_logits(decoder, tokens, cache)
        logits = logits[:, :n_ids]
        if banned:
            logits = logits.index_fill(1, torch.tensor(banned, device=device), -math.inf)
        chosen = int(choose(logits, sampling, generator))
        if stop is not None and chosen in stop:
            if yields_stop:
                yield chosen
            return
        yield chosen
        window.append(chosen)
        unread = [chosen]


def _next_logits(decoder: Decoder, tokens: Tensor, cache: DecoderCache | None) -> Tensor:
    """Logits ``[B, V]`` after the last of ``tokens`` ``[B, T]``."""
    # Inference mode is thread-wide: around a `yield` it would leak into the caller's code.
    # `.forward` and not a call: a compiled decoder would be compiled anew for every length.
    with torch.inference_mode(), _evaluating(decoder):
        return decoder.logits(decoder.forward(tokens, cache)[:, -1])


def _new_cache(decoder: Decoder, length: int, device: torch.device) -> DecoderCache:
    dtype = decoder.head_weight.dtype
    with torch.inference_mode():
        return DecoderCache(decoder.config, 1, length=length, device=device, dtype=dtype)


@contextmanager
def _evaluating(decoder: Decoder) -> Iterator[None]:
    was_training = decoder.training
    if was_training:
        decoder.eval()
    try:
        yield
    finally:
        if was_training:
            decoder.train()


def prompt_ids(
    tokenizer: Tokenizer,
    prompt: str | None,
    special: SpecialTokens = "text",
    *,
    named: str = "--prompt",
) -> tuple[list[int], str]:
    """The ids to condition on, and the text to print before the continuation.

    A tokenizer's start of a text comes first and is not printed. With no prompt, or an empty one,
    the text begins after that, else after the end of a text where the tokenizer has such an id,
    else after a line break, else after id 0.

    Args:
        tokenizer: The model's.
        prompt: The text.
        special: What the spelling of a special token is: ``text``, or the token (``parse``).
        named: What messages call the prompt.

    Raises:
        UserError: The prompt has characters that the tokenizer does not know, or the tokenizer no
            special tokens to parse.
    """
    refuse_idle_parsing(tokenizer, special)
    if not prompt:
        return [_start_id(tokenizer)], ""
    start = [] if tokenizer.start_of_text is None else [tokenizer.start_of_text]
    try:
        if special == "parse":
            return [*start, *parsed_ids(tokenizer, prompt)], prompt
        return [*start, *(int(i) for i in tokenizer.encode(prompt))], prompt
    except UserError as error:  # UnknownCharacters, or half of a surrogate pair
        raise UserError(f"{named}: {error}") from error


def refuse_idle_parsing(tokenizer: Tokenizer, special: SpecialTokens) -> None:
    """Refuse to parse special tokens where a text can spell none."""
    if special == "parse" and not tokenizer.parses_special:
        raise UserError(
            f"--special_tokens parse would do nothing: the tokenizer {tokenizer.kind} has no "
            "special tokens that a text can spell; set --special_tokens text"
        )


def parsed_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text in which the spelling of a special token is that token.

    Raises:
        UserError: A character is lost, or a token has no row in the model.
    """
    refuse_surrogates(text)
    (ids,) = tokenizer.encode_batch([text], special="parse")
    lost = [c for c in tokenizer.lost(text, ids) if not c.isspace()]  # tokens may take blanks along
    if lost:
        raise UserError(f"the tokenizer does not keep {lost[0]!r}; leave it out")
    if any(i >= tokenizer.vocab_size for i in ids):
        raise UserError(f"it spells the special token of id {max(ids)}, which the model has not")
    return [int(i) for i in ids]


def _start_id(tokenizer: Tokenizer) -> int:
    for special in (tokenizer.start_of_text, tokenizer.end_of_text):
        if special is not None:
            return special
    return tokenizer.pieces.index(b"\n") if b"\n" in tokenizer.pieces else 0


class TextStream:
    """Ids to text while they come: a character split over ids appears once it is complete.

    From the start of a text, the pushed and the finishing texts together equal
    ``tokenizer.decode`` of all ids.

    Args:
        tokenizer: Whose ids come.
        at_start: Whether they begin a text: behind a prompt, a blank in front is a blank.
        shows_special: Whether a special id appears as its name, else as nothing.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, at_start: bool = True, shows_special: bool = False
    ) -> None:
        self._pieces = tokenizer.pieces
        self._names = tokenizer.special_names if shows_special else {}
        self._drop_space = at_start and tokenizer.leads_with_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        """The characters that ``id`` completes, maybe none."""
        if id in self._names:
            return self.finish() + self._names[id]
        piece = self._pieces[id]
        if self._drop_space and piece:
            piece, self._drop_space = piece.removeprefix(b" "), False
        return self._utf8.decode(piece)

    def finish(self) -> str:
        """U+FFFD for the bytes of a character that never became whole, else nothing."""
        return self._utf8.decode(b"", final=True)


class Piece(NamedTuple):
    """What one id adds to a text.

    Attributes:
        text: The characters that it completes, maybe none.
        id: The id; None for what is left at the end of the text.
    """

    text: str
    id: int | None


def stream_ids(
    decoder: Decoder,
    tokenizer: Tokenizer,
    ids: Sequence[int],
    *,
    at_start: bool,
    max_new_tokens: int,
    sampling: SamplingConfig,
    seed: int,
    shows_special: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Piece]:
    """Yield a piece of text for each id behind ``ids``, then what is left.

    The end of a text ends it, where the tokenizer has such ids. Draws come from a CPU generator of
    its own, seeded with ``seed``; no global random state is touched.

    Args:
        decoder: The model.
        tokenizer: Its tokenizer.
        ids: What the model continues.
        at_start: Whether the continuation begins a text of its own.
        max_new_tokens: The most ids to draw.
        sampling: How an id is chosen.
        seed: Of the draws.
        shows_special: Whether special tokens appear by their names, the last one too.
        stopped: Asked behind each id: whether the text ends here.
    """
    stream = TextStream(tokenizer, at_start=at_start, shows_special=shows_special)
    for chosen in generate(
        decoder,
        ids,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        generator=torch.Generator().manual_seed(seed),
        n_ids=tokenizer.vocab_size,
        stop=tokenizer.ends,
        banned=tokenizer.never_sampled,
        yields_stop=shows_special,
    ):
        yield Piece(stream.push(chosen), chosen)
        if stopped():
            break
    yield Piece(stream.finish(), None)


def sample_text(
    decoder: Decoder,
    tokenizer: Tokenizer,
    *,
    prompt: str | None,
    max_new_tokens: int,
    sampling: SamplingConfig,
    seed: int,
) -> str:
    """The prompt and its continuation as one string; see :func:`stream_ids`.

    Raises:
        UserError: See :func:`prompt_ids`.
    """
    ids, text = prompt_ids(tokenizer, prompt)
    continuation = stream_ids(
        decoder,
        tokenizer,
        ids,
        at_start=not text,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        seed=seed,
    )
    return text + "".join(piece.text for piece in continuation)


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint, ready to generate.

    Attributes:
        decoder: In eval mode, float32, on the device that was asked for.
        tokenizer: The one it was trained with.
        step: Optimiser steps taken.
        fault: The mistake that was planted in the decoder, if any.
        folder: What came with an imported model: its special ids and files.
    """

    decoder: Decoder
    tokenizer: Tokenizer
    step: int
    fault: str | None = None
    folder: dict[str, Any] | None = None


def load_model(path: str | Path, device: str | torch.device = "cpu") -> LoadedModel:
    """Rebuild a model from its checkpoint alone.

    Raises:
        UserError: The file is no checkpoint, or its tensors are not the ones that its architecture
            asks for.
        SettingError: Its architecture or its fault is refused.
    """
    record = read_record(path)
    config = DecoderConfig.from_dict(record.decoder)
    tokenizer = tokenizer_from_state(record.tokenizer)
    if config.vocab_size is not None and config.vocab_size < tokenizer.vocab_size:
        raise UserError(
            f"--ckpt_path {path}: its tokenizer has {tokenizer.vocab_size} ids, its decoder only "
            f"{config.vocab_size} (vocab_size); the file was put together from two models"
        )
    with torch.device("meta"):  # no weights are drawn that the file's would only replace
        decoder = Decoder(config)
    check_weights(decoder.state_dict(), record)
    decoder.to_empty(device=device)
    decoder.load_state_dict(record.weights, strict=True)
    plant_fault(decoder, cast("FaultKind | None", record.fault))
    return LoadedModel(decoder.eval(), tokenizer, record.step, record.fault, record.folder)
