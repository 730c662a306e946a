"""Output of ``llama-lab generate``: texts as they come, or many of them as lines, in order."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from typing import Any

from jsonargparse import Namespace

from llama_lab.commands.turns import Asked, TokenView, say, write, write_turn
from llama_lab.generation.completions import Completion, CompletionSettings, Request, complete
from llama_lab.generation.loading import LoadedModel
from llama_lab.generation.passages import SharedPassages
from llama_lab.signals import interrupt_is_noted, stopped_by

BATCH_SIZE = 8


def write_one_by_one(
    model: LoadedModel,
    asked: Iterator[Asked],
    config: CompletionSettings,
    options: Namespace,
    shared: SharedPassages,
) -> None:
    """Write the samples of each prompt while they come."""
    for prompt in asked:
        for number in range(options.num_samples):
            seed = options.seed + number
            if options.num_samples > 1:
                say(f"--- sample {number + 1} of {options.num_samples}, --seed {seed}")
            completion = write_turn(model, prompt, config, seed=seed)
            say_shared(shared, completion)


def write_batches(
    model: LoadedModel,
    asked: Iterator[Asked],
    config: CompletionSettings,
    options: Namespace,
    shared: SharedPassages,
) -> None:
    """Write the texts of all prompts in their order, each as soon as those before it are written.

    Ctrl-C writes what there is of the texts that are not finished, and then ends the command.

    Raises:
        Stopped: Ctrl-C.
    """
    output = OrderedOutput(model, config, options, shared)
    batch_size = options.batch_size or BATCH_SIZE
    with interrupt_is_noted() as interrupted:
        requests = output.requests(asked)
        for event in complete(model, requests, config, batch_size=batch_size, stopped=interrupted):
            if event.completion is not None:
                output.add(event.number, event.completion)
        stopped = interrupted()
    output.finish()
    if stopped:
        raise stopped_by(signal.SIGINT)


class OrderedOutput:
    """Completions, written in the order of their prompts.

    Args:
        model: The model.
        config: How prompts are continued.
        options: The command's flags.
        shared: What texts are compared with.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: CompletionSettings,
        options: Namespace,
        shared: SharedPassages,
    ) -> None:
        self.model, self.config, self.options, self.shared = model, config, options, shared
        self.waiting: dict[int, Completion] = {}
        self.asked: dict[int, Asked] = {}
        self.next = 0

    def requests(self, asked: Iterator[Asked]) -> Iterator[Request]:
        """The requests: every prompt as often as there are samples."""
        number = 0
        for prompt in asked:
            for _ in range(self.options.num_samples):
                self.asked[number] = prompt
                yield Request(prompt.ids, prompt.text, (self.options.seed + number) % 2**63)
                number += 1

    def add(self, number: int, completion: Completion) -> None:
        """Write a text, and those that waited for it."""
        self.waiting[number] = completion
        while self.next in self.waiting:
            self._write(self.next)
            self.next += 1

    def finish(self) -> None:
        """Write what waits behind a text that did not come."""
        for number in sorted(self.waiting):
            self._write(number)

    def _write(self, number: int) -> None:
        completion, asked = self.waiting.pop(number), self.asked.pop(number)
        prompt, sample = divmod(number, self.options.num_samples)
        if self.options.format == "json":
            record = {**asked.fields, **self._record(completion, sample)}
            write(json.dumps(record, ensure_ascii=False) + "\n")
            return
        say(f"--- prompt {prompt + 1}, sample {sample + 1}, --seed {completion.seed}")
        if self.config.n_top:
            view = TokenView(self.model.tokenizer)
            lines = zip(completion.ids, completion.logprobs, completion.top, strict=True)
            for id, logprob, top in lines:
                view.show(id, logprob, top)
        else:
            write(f"{completion}\n")
        say_shared(self.shared, completion)

    def _record(self, completion: Completion, sample: int) -> dict[str, Any]:
        record = completion_record(completion, self.model)
        record["sample"] = sample
        if self.shared:
            record["shared"] = self.shared.longest(completion.text)
        return record


def completion_record(completion: Completion, model: LoadedModel) -> dict[str, Any]:
    """A completion as JSON: what ``--format json`` and ``predict`` write of a text."""
    n_tokens, seconds = len(completion.ids), completion.seconds
    record: dict[str, Any] = {
        "prompt": completion.prompt,
        "text": completion.text,
        "tokens": completion.ids,
        "logprobs": completion.logprobs,
        "ended": completion.ended,
        "seed": completion.seed,
        "prompt_tokens": completion.n_prompt,
        "seconds": round(seconds, 6),
        "tokens_per_second": round(n_tokens / seconds, 3) if seconds else None,
    }
    if completion.top:
        names = model.tokenizer.special_names
        pieces = model.tokenizer.pieces
        record["top_tokens"] = [
            [
                {
                    "id": id,
                    "token": names.get(id) or pieces[id].decode("utf-8", errors="backslashreplace"),
                    "logprob": logprob,
                }
                for id, logprob in step
            ]
            for step in completion.top
        ]
    return record


def say_shared(shared: SharedPassages, completion: Completion) -> None:
    """Tell the longest passage that a text shares with a corpus, where that was asked for."""
    if shared:
        sys.stdout.flush()
        passage = shared.longest(completion.text)
        say(
            f"longest passage shared with {shared.corpus}: {len(passage):,} of "
            f"{len(completion.text):,} characters: {passage!r}"
        )
