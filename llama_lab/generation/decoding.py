"""Decoding: texts that are continued side by side, one id of each at a step.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from llama_lab.generation.sampling import SamplingConfig, choose
from llama_lab.model.cache import DecoderCache, RaggedCache
from llama_lab.model.decoder import Decoder

Ending = Literal["stop_token", "stop_string", "length", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class DecodingSettings:
    """How ids are chosen, and what is told of them.

    Attributes:
        sampling: How an id is chosen.
        n_ids: Ids that the tokenizer knows; the model's spare ids from ``n_ids`` on are never
            chosen.
        stop: Ids that end a text, each of them.
        banned: Ids below ``n_ids`` that are never chosen either.
        use_cache: False recomputes the whole window at every step.
        logprobs: Whether each id's log-probability is told.
        n_top: How many of the likeliest ids are told of at each step.
    """

    sampling: SamplingConfig
    n_ids: int
    stop: Collection[int] = ()
    banned: Sequence[int] = ()
    use_cache: bool = True
    logprobs: bool = False
    n_top: int = 0


class Drawn(NamedTuple):
    """One id of one text.

    Log-probabilities are natural, and those of the model itself: before the settings of sampling.

    Attributes:
        text: Which text it continues.
        id: The id.
        logprob: Its log-probability, where that is told.
        top: The likeliest ids and their log-probabilities, likeliest first.
        ended: Why the text ends with this id, if it does. An id that stops a text is no part of it.
    """

    text: int
    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    ended: Ending | None = None


@dataclass
class GrowingText:
    """A text while it is continued.

    Attributes:
        number: The caller's name for it.
        window: What the model sees.
        left: Ids that may still come.
        generator: Of its draws.
        seen: Ids that the prompt or the text has, bool ``[V]``, where that matters.
        n_read: Ids of the window that the cache holds.
        cache: Its own cache, where the texts do not share one.
    """

    number: int
    window: list[int]
    left: int
    generator: torch.Generator
    seen: Tensor | None = None
    n_read: int = 0
    cache: DecoderCache | None = field(default=None, repr=False)


class Batch:
    """Texts of any length, continued side by side; each as it would be continued alone.

    What the model sees of a text is a window of at most C = ``context_length`` ids, and its first
    id stands at position 0. The window begins as the newest C ids of the prompt and grows by each
    new id. When it would outgrow C, its oldest C - C // 2 ids are dropped and the rest is read
    anew; so a new id costs O(1) forwards of one id, amortised, and every id after the first C is
    chosen from C // 2 + 1 to C predecessors. The rule does not know about the cache, nor about the
    other texts: with and without them the model sees the same.

    Args:
        decoder: The model. Between two steps it is in the train or eval mode in which it came.
        config: How ids are chosen.
        shares_cache: Whether the texts are read together. False reads them one after another,
            which a model needs that was changed in a way that masks cannot follow.
    """

    def __init__(
        self, decoder: Decoder, config: DecodingSettings, *, shares_cache: bool = True
    ) -> None:
        context = decoder.config.context_length
        self.decoder, self.config, self.context = decoder, config, context
        self.texts: list[GrowingText] = []
        # Where positions depend on a text's length, texts of unequal length share no table of them.
        follows = decoder.layer_positions.stays_valid(1, max(context - 1, 1))
        self.shares_cache = shares_cache and config.use_cache and follows
        self.cache: RaggedCache | None = None
        self.device = decoder.head_weight.device

    def add(
        self, number: int, prompt: Sequence[int], max_new_tokens: int, generator: torch.Generator
    ) -> None:
        """Take a text in.

        Args:
            number: What :class:`Drawn` calls it.
            prompt: One id or more.
            max_new_tokens: The most ids to draw, one or more.
            generator: The only source of randomness of this text.

        Raises:
            ValueError: The prompt is empty.
        """
        if not prompt:
            raise ValueError("the prompt is empty: give it one id or more (see prompt_ids)")
        text = GrowingText(number, list(prompt[-self.context :]), max_new_tokens, generator)
        if self.config.sampling.repetition_penalty is not None:
            text.seen = torch.zeros(self.config.n_ids, dtype=torch.bool, device=generator.device)
            text.seen[[i for i in prompt if i < self.config.n_ids]] = True
        self.texts.append(text)

    def remove(self, number: int) -> None:
        """Let a text go."""
        self._keep([text for text in self.texts if text.number != number])

    def step(self) -> list[Drawn]:
        """Draw an id for each text, in the order in which they came; texts that end are let go.

        Raises:
            RunError: The logits are not finite.
        """
        if not self.texts:
            return []
        for text in self.texts:
            if len(text.window) > self.context:
                del text.window[: self.context - self.context // 2]
                text.n_read = 0
        # Inference mode is thread-wide: around a `yield` it would leak into the caller's code.
        with torch.inference_mode(), _evaluating(self.decoder):
            drawn = self._draw(self._logits())
        self._keep([t for t, d in zip(self.texts, drawn, strict=True) if d.ended is None])
        return drawn

    def _keep(self, texts: list[GrowingText]) -> None:
        if self.cache is not None and len(texts) < len(self.texts):
            kept = {text.number for text in texts}
            rows = [row for row, text in enumerate(self.texts) if text.number in kept]
            rows = [row for row in rows if row < self.cache.batch_size]
            with torch.inference_mode():
                self.cache.keep(rows)
        self.texts = texts
        if not texts:
            self.cache = None

    def _logits(self) -> Tensor:
        """Logits ``[B, V]`` behind the windows."""
        if self.shares_cache and (len(self.texts) > 1 or self.cache is not None):
            return self._read_together()
        return torch.cat([self._read_alone(text) for text in self.texts])

    def _read_alone(self, text: GrowingText) -> Tensor:
        if self.config.use_cache and text.cache is None:
            length = min(self.context, len(text.window) + text.left)
            text.cache = self._new_cache(1, length)
        if text.cache is not None and text.n_read == 0:
            text.cache.reset()
        unread = text.window if text.cache is None else text.window[text.n_read :]
        text.n_read = len(text.window)
        return self._forward([unread], text.cache)

    def _read_together(self) -> Tensor:
        n_texts, needed = len(self.texts), min(self.context, max(map(_longest, self.texts)))
        if self.cache is None or needed > self.cache.capacity:
            length = needed if self.cache is None else self.context
            dtype = self.decoder.head_weight.dtype
            self.cache = RaggedCache(
                self.decoder.config, n_texts, length=length, device=self.device, dtype=dtype
            )
            for text in self.texts:
                text.n_read, text.cache = 0, None
        self.cache.add(n_texts - self.cache.batch_size)
        unread: dict[int, list[int]] = {}
        for row, text in enumerate(self.texts):
            if text.n_read < len(text.window) - 1 or text.n_read == 0:
                unread.setdefault(len(text.window) - 1, []).append(row)
        for length, rows in unread.items():
            read = self._new_cache(len(rows), max(length, 1))
            if length:
                self._forward([self.texts[row].window[:-1] for row in rows], read)
            self.cache.put(rows, read)
        for text in self.texts:
            text.n_read = len(text.window)
        return self._forward([text.window[-1:] for text in self.texts], self.cache)

    def _new_cache(self, n_texts: int, length: int) -> DecoderCache:
        dtype = self.decoder.head_weight.dtype
        config = self.decoder.config
        return DecoderCache(config, n_texts, length=length, device=self.device, dtype=dtype)

    def _forward(self, ids: list[list[int]], cache: DecoderCache | None) -> Tensor:
        # `.forward` and not a call: a compiled decoder would be compiled anew for every length.
        tokens = torch.tensor(ids, device=self.device)
        return self.decoder.logits(self.decoder.forward(tokens, cache)[:, -1])

    def _draw(self, logits: Tensor) -> list[Drawn]:
        config = self.config
        generators = [text.generator for text in self.texts]
        logits = logits[:, : config.n_ids].to(generators[0].device, torch.float32)
        own = logits.log_softmax(dim=-1) if config.logprobs or config.n_top else None
        if config.banned:
            banned = torch.tensor(config.banned, device=logits.device)
            logits = logits.index_fill(1, banned, -math.inf)
        seen = None
        if config.sampling.repetition_penalty is not None:
            seen = torch.stack([t.seen for t in self.texts if t.seen is not None])
        ids = choose(logits, config.sampling, generators, seen).tolist()
        return [self._grow(row, id, own) for row, id in enumerate(ids)]

    def _grow(self, row: int, id: int, logprobs: Tensor | None) -> Drawn:
        text = self.texts[row]
        text.left -= 1
        text.window.append(id)
        if text.seen is not None:
            text.seen[id] = True
        ended: Ending | None = None
        if id in self.config.stop:
            ended = "stop_token"
        elif text.left == 0:
            ended = "length"
        top: tuple[tuple[int, float], ...] = ()
        logprob = None
        if logprobs is not None:
            logprob = float(logprobs[row, id])
            likeliest = logprobs[row].topk(min(self.config.n_top, self.config.n_ids))
            top = tuple(zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True))
        return Drawn(text.number, id, logprob, top, ended)


def _longest(text: GrowingText) -> int:
    """The most ids that the window may ever hold, if the context allows it."""
    return len(text.window) + text.left


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
