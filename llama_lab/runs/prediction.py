"""Continuations of a file's prompts: on any number of devices, in the file's order, resumable.

Each process writes the texts that it has finished into a part of its own; at the end the parts
become one file. What is in a part is not made again, whatever ended the process that wrote it.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, IterableDataset

from llama_lab.errors import UserError
from llama_lab.files import write_atomically
from llama_lab.generation.completions import Completion, CompletionSettings, Request, complete
from llama_lab.generation.loading import LoadedModel
from llama_lab.runs.command_line import quiet
from llama_lab.runs.trainers import build_trainer

SETTINGS_FILE = "settings.json"
PROMPTS_PER_STEP = 32
"""Prompts of a step, for each text that is generated side by side."""


class Parts:
    """Finished texts of an output that is being made: ``OUTPUT.parts/``.

    Args:
        output: The file that they become.
        settings: What decides about the texts. Parts of other settings are refused.

    Raises:
        UserError: The output exists, or its parts were made with other settings.
    """

    def __init__(self, output: Path, settings: dict[str, Any]) -> None:
        self.output, self.settings = output, json.loads(json.dumps(settings))
        self.folder = output.with_name(f"{output.name}.parts")
        if output.exists():
            raise UserError(f"--output {output}: exists; remove it, or name another file")
        if not output.absolute().parent.is_dir():
            raise UserError(f"--output {output}: its folder is not there; make it first")
        if (self.folder / SETTINGS_FILE).is_file():
            self._refuse_other_settings()

    def _refuse_other_settings(self) -> None:
        before = json.loads((self.folder / SETTINGS_FILE).read_text(encoding="utf-8"))
        for name, value in self.settings.items():
            if before.get(name) != value:
                raise UserError(
                    f"--output {self.output}: {self.folder} holds texts with {name} "
                    f"{before.get(name)}, and this call has {value}; use the same settings, "
                    "remove that folder, or name another file"
                )

    def begin(self) -> None:
        """Make the folder."""
        self.folder.mkdir(exist_ok=True)
        text = json.dumps(self.settings, ensure_ascii=False, indent=2)
        if not (self.folder / SETTINGS_FILE).is_file():
            write_atomically(
                self.folder / SETTINGS_FILE, lambda file: file.write(text.encode() + b"\n")
            )

    def done(self) -> bytearray:
        """A byte for each prompt, 1 where its text is there."""
        done = bytearray()
        for part in self._files():
            for number, _ in _lines(part):
                if number >= len(done):
                    done.extend(bytes(number + 1 - len(done)))
                done[number] = 1
        return done

    def new_part(self, rank: int) -> Path:
        """A file that no process has written to before."""
        numbers = (self.folder / f"{n}-{rank}.jsonl" for n in itertools.count())
        return next(path for path in numbers if not path.exists())

    def join(self) -> None:
        """Write the output, in the order of the prompts, and remove the parts."""
        lines = heapq.merge(*map(_lines, self._files()), key=lambda line: line[0])
        one_each = (next(same) for _, same in itertools.groupby(lines, key=lambda line: line[0]))

        def write(file: Any) -> None:
            for _, line in one_each:
                file.write(line)

        write_atomically(self.output, write)
        shutil.rmtree(self.folder)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))


def _lines(part: Path) -> Iterator[tuple[int, bytes]]:
    """Numbers of prompts and their lines; one that was not written whole is left out."""
    with part.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                number, _, text = line.partition(b"\t")
                yield int(number), text


class PromptChunks(IterableDataset[list[tuple[int, Any]]]):
    """The prompts of one process that have no text yet, some at a time.

    Args:
        prompts: Reads the file from its beginning.
        done: A byte for each prompt, 1 where its text is there.
        rank: The process.
        n_ranks: Of so many.
        size: Prompts of a chunk.
    """

    def __init__(
        self,
        prompts: Callable[[], Iterable[Any]],
        done: bytearray,
        rank: int,
        n_ranks: int,
        size: int,
    ) -> None:
        self.prompts, self.done = prompts, done
        self.rank, self.n_ranks, self.size = rank, n_ranks, size

    def __iter__(self) -> Iterator[list[tuple[int, Any]]]:
        left = (
            (number, prompt)
            for number, prompt in enumerate(self.prompts())
            if not (number < len(self.done) and self.done[number])
        )
        own = itertools.islice(left, self.rank, None, self.n_ranks)
        while chunk := list(itertools.islice(own, self.size)):
            yield chunk


class Predictor(LightningModule):
    """A model that continues prompts, for ``Trainer.predict``.

    Args:
        model: The model.
        config: How prompts are continued.
        parts: Where the texts go.
        ask: Makes ids of a prompt, and what is shown in front of its continuation.
        record: A prompt's JSON line.
        seed: Of the draws; prompt i takes ``seed + i``.
        batch_size: Texts side by side.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: CompletionSettings,
        parts: Parts,
        *,
        ask: Callable[[Any], tuple[list[int], str]],
        record: Callable[[Any, Completion], dict[str, Any]],
        seed: int,
        batch_size: int,
    ) -> None:
        super().__init__()
        self.decoder = model.decoder
        self.model, self.completion, self.parts = model, config, parts
        self.ask, self.record, self.seed, self.batch_size = ask, record, seed, batch_size
        self.path: Path | None = None

    def predict_step(self, batch: list[tuple[int, Any]], batch_idx: int) -> None:
        """Continue some prompts, and write each text as soon as those before it are written."""
        if self.path is None:
            self.path = self.parts.new_part(self.global_rank)
        requests = (
            Request(*self.ask(prompt), (self.seed + number) % 2**63) for number, prompt in batch
        )
        finished: dict[int, Completion] = {}
        following = 0
        with self.path.open("ab") as file:
            for event in complete(
                self.model, requests, self.completion, batch_size=self.batch_size
            ):
                if event.completion is None:
                    continue
                finished[event.number] = event.completion
                while following in finished:
                    number, prompt = batch[following]
                    record = self.record(prompt, finished.pop(following))
                    text = json.dumps(record, ensure_ascii=False)
                    file.write(f"{number}\t{text}\n".encode())
                    file.flush()
                    following += 1
            os.fsync(file.fileno())

    def on_predict_end(self) -> None:
        """Join the parts, once every process has written its own."""
        self.trainer.strategy.barrier()
        if self.trainer.is_global_zero:
            self.parts.join()


def predicting_trainer(accelerator: str, devices: int | str, n_nodes: int) -> Trainer:
    """The trainer that runs a :class:`Predictor` on some devices."""
    quiet()
    return build_trainer(
        Trainer,
        precision="32-true",
        callbacks=[],
        accelerator=accelerator,
        devices=devices,
        num_nodes=n_nodes,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def predict_all(
    trainer: Trainer,
    predictor: Predictor,
    prompts: Callable[[], Iterable[Any]],
    done: bytearray,
) -> None:
    """Continue all prompts that have no text yet.

    Args:
        trainer: Its processes share the prompts.
        predictor: Continues them.
        prompts: Reads the file from its beginning.
        done: A byte for each prompt, 1 where its text is there.
    """
    size = PROMPTS_PER_STEP * predictor.batch_size
    chunks = PromptChunks(prompts, done, trainer.global_rank, trainer.world_size, size)
    loader = DataLoader(chunks, batch_size=None, num_workers=0)
    trainer.predict(predictor, dataloaders=loader, return_predictions=False)
