"""Completions: prompts continued as text, one by one or side by side."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from llama_lab.errors import UserError
from llama_lab.generation.decoding import Batch, DecodingSettings, Drawn, Ending
from llama_lab.generation.loading import LoadedModel
from llama_lab.generation.sampling import SamplingConfig
from llama_lab.generation.text_stream import Piece, StopStrings, TextStream


@dataclass(frozen=True, kw_only=True)
class CompletionSettings:
    """How prompts are continued.

    Attributes:
        max_new_tokens: The most ids to draw for a text, 1 or more.
        sampling: How an id is chosen.
        stop: A text ends before the first of these strings, none of them empty.
        stop_ids: Ids that end a text, beside those of the tokenizer.
        shows_special: Whether special tokens appear by their names, the last one too.
        logprobs: Whether each id's log-probability is kept.
        n_top: How many of the likeliest ids are kept of each step.
    """

    max_new_tokens: int = 300
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    shows_special: bool = False
    logprobs: bool = False
    n_top: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UserError(f"--max_new_tokens {self.max_new_tokens}: must be 1 or more")
        if "" in self.stop:
            raise UserError("--stop: an empty string would end every text at once; leave it out")
        if self.n_top < 0:
            raise UserError(f"--top_tokens {self.n_top}: must be 0 or more")


class Request(NamedTuple):
    """A prompt to continue.

    Attributes:
        ids: The ids that the model continues.
        text: What is shown in front of the continuation; empty where a text begins.
        seed: Of the draws.
    """

    ids: list[int]
    text: str
    seed: int


@dataclass(frozen=True)
class Completion:
    """A prompt's continuation.

    Attributes:
        prompt: What is shown in front of it.
        text: The continuation, without the stop string that ended it.
        ids: Ids that were drawn. An id that ends a text is no part of it, unless special tokens are
            shown.
        logprobs: Of each id, natural, under the model itself; empty where they were not asked for.
        top: For each id the likeliest ones and their log-probabilities.
        ended: Why it ends.
        seed: Of the draws.
        n_prompt: Ids of the prompt.
        seconds: From the first id's begin to the last one's end.
    """

    prompt: str
    text: str
    ids: list[int]
    logprobs: list[float]
    top: list[tuple[tuple[int, float], ...]]
    ended: Ending
    seed: int
    n_prompt: int
    seconds: float

    def __str__(self) -> str:
        return self.prompt + self.text


class Event(NamedTuple):
    """What a step adds to one of several texts.

    Attributes:
        number: Which request it belongs to, from 0.
        piece: The text that may now be shown, maybe none, and the id.
        drawn: What is known of the id; None with a text's last piece, which has none.
        completion: The whole, with a text's last piece.
    """

    number: int
    piece: Piece
    drawn: Drawn | None = None
    completion: Completion | None = None


class Continuation:
    """One text while it is written; it shows no part of a character or of a stop string."""

    def __init__(self, model: LoadedModel, request: Request, config: CompletionSettings) -> None:
        self.request, self.config = request, config
        self.stream = TextStream(
            model.tokenizer, at_start=not request.text, shows_special=config.shows_special
        )
        self.stops = StopStrings(config.stop)
        self.started = time.perf_counter()
        self.drawn: list[Drawn] = []
        self.text = ""

    def push(self, drawn: Drawn) -> str:
        """The text that can be shown now."""
        self.drawn.append(drawn)
        if drawn.ended == "stop_token" and not self.config.shows_special:
            return ""
        return self._show(self.stops.push(self.stream.push(drawn.id)))

    def finish(self) -> str:
        """What was held back, once no id follows."""
        return "" if self.stops.found else self._show(self.stops.finish())

    def _show(self, text: str) -> str:
        self.text += text
        return text

    def completion(self) -> Completion:
        """The whole, as it is now."""
        ended = (self.drawn[-1].ended if self.drawn else None) or "interrupted"
        kept = self.drawn
        if ended == "stop_token" and not self.config.shows_special:
            kept = kept[:-1]
        return Completion(
            prompt=self.request.text,
            text=self.text,
            ids=[drawn.id for drawn in kept],
            logprobs=[d.logprob for d in kept if d.logprob is not None],
            top=[drawn.top for drawn in kept if drawn.top],
            ended="stop_string" if self.stops.found else ended,
            seed=self.request.seed,
            n_prompt=len(self.request.ids),
            seconds=time.perf_counter() - self.started,
        )


def complete(
    model: LoadedModel,
    requests: Iterable[Request],
    config: CompletionSettings,
    *,
    batch_size: int = 1,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Continue prompts, ``batch_size`` at a time; a text that ends makes room for the next prompt.

    Each text is the one that its seed gives alone (in float32, but for rounding), and draws from a
    generator of its own: no global random state is touched.

    Args:
        model: The model.
        requests: The prompts, read as they are needed.
        config: How they are continued.
        batch_size: The most texts side by side.
        stopped: Asked behind each step: whether all texts end here.

    Raises:
        UserError: A prompt is refused; the texts before it are completed first.
        RunError: The logits are not finite.
    """
    batch = Batch(model.decoder, decoding(model, config), shares_cache=model.fault is None)
    waiting = enumerate(requests)
    refusal: UserError | None = None
    writing: dict[int, Continuation] = {}
    while True:
        try:
            for number, request in itertools.islice(waiting, batch_size - len(writing)):
                writing[number] = Continuation(model, request, config)
                generator = torch.Generator().manual_seed(request.seed)
                batch.add(number, request.ids, config.max_new_tokens, generator)
        except UserError as error:
            refusal, waiting = error, enumerate(())
        if not writing:
            if refusal is not None:
                raise refusal
            return
        for drawn in batch.step():
            text = writing[drawn.text]
            shown = text.push(drawn)
            if text.stops.found and drawn.ended is None:
                batch.remove(drawn.text)
            yield Event(drawn.text, Piece(shown, drawn.id), drawn)
            if text.stops.found or drawn.ended is not None:
                del writing[drawn.text]
                last = Piece(text.finish(), None)
                yield Event(drawn.text, last, completion=text.completion())
        if stopped():
            for number, text in writing.items():
                last = Piece(text.finish(), None)
                yield Event(number, last, completion=text.completion())
            return


def decoding(model: LoadedModel, config: CompletionSettings) -> DecodingSettings:
    """How ids are chosen for texts of this model's tokenizer."""
    return DecodingSettings(
        sampling=config.sampling,
        n_ids=model.tokenizer.vocab_size,
        stop={*(model.tokenizer.ends or ()), *config.stop_ids},
        banned=model.tokenizer.never_sampled,
        logprobs=config.logprobs,
        n_top=config.n_top,
    )
