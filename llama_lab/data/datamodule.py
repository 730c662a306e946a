"""The LightningDataModule: from a corpus on disk to the batches of each optimiser step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import DataLoader

from llama_lab.data.batches import TrainingWindows, ValidationWindows
from llama_lab.data.config import DEFAULT_VAL_FRACTION, DataConfig
from llama_lab.data.corpus.built_in import shown
from llama_lab.data.corpus.finding import has_input, names_pipe
from llama_lab.data.corpus.items import MissingSource
from llama_lab.data.loading import (
    Batch,
    DeviceBatches,
    Endless,
    MappedBatches,
    Share,
    ValidationBatches,
    keep,
)
from llama_lab.data.store.preparation import prepare_store
from llama_lab.data.store.requests import StoreRequest
from llama_lab.data.store.token_store import PARTS, TokenStore, find_store, open_store
from llama_lab.data.tokenizers.base import Tokenizer
from llama_lab.errors import UserError
from llama_lab.model.devices import pins_memory

# A corpus up to this many tokens is held on the training device as int32: 256 MiB.
DEVICE_TOKENS = 1 << 26

MOVED = (
    "where a run's text has moved, name its new place with {flag} NEWPLACE "
    "(its tokens are compared with the run's)"
)


class TextDataModule(LightningDataModule):
    """A corpus, its tokenizer, and which sequences each optimiser step consumes."""

    def __init__(self, config: DataConfig | None = None, *, seed: int = 0) -> None:
        """
        Args:
            config: The settings; ``None`` means the defaults.
            seed: Draws the order of the windows.
        """
        super().__init__()
        self.config, self.seed = config or DataConfig(), seed
        self.tokenizer_state: Mapping[str, Any] | None = None
        self.store: TokenStore | None = None
        self.consumed = 0
        self._expected_digest: str | None = None
        self._own_digest: str | None = None
        self._reads_new_input = False
        self._prepared: tuple[StoreRequest, Path] | None = None

    # ---- set by whoever drives the run --------------------------------------------------------

    def use_tokenizer(self, state: Mapping[str, Any]) -> None:
        """Encode with a checkpoint's tokenizer instead of training one."""
        self.tokenizer_state = state

    def expect_store(self, digest: str) -> None:
        """Refuse, once the store is open, tokens other than those with this digest."""
        self._expected_digest = digest

    def reuse_store(self, digest: str, *, unless_input: bool) -> None:
        """Take a run's store, of this digest, in place of a corpus that came through a pipe.

        Args:
            digest: Of the store.
            unless_input: Read the pipe instead where something comes through it again.
        """
        self._own_digest, self._reads_new_input = digest, unless_input

    # ---- Lightning's order: prepare_data (one process a machine), then setup ------------------

    @property
    def request(self) -> StoreRequest:
        """What the token store is made of."""
        return StoreRequest.of(self.config, self.tokenizer_state)

    def prepare_data(self) -> None:
        """Read the corpus, train or take the tokenizer, write the store; a second run finds it."""
        self._prepared = None
        self.store_folder()

    def setup(self, stage: str) -> None:
        """Map the store and check that its parts are long enough, before anything is trained."""
        self.store = open_store(self.store_folder(), self.request.name)
        if self._expected_digest not in (None, self.store.digest):
            raise UserError(
                f"--data.corpus {self.request.name}: its tokens differ from those of the "
                f"checkpoint (store {self.store.digest[:12]}, checkpoint "
                f"{str(self._expected_digest)[:12]}): the text changed; resume on the old text, or "
                "begin a new run from the weights with --model.init_from"
            )
        _check(
            not self.config.document_mask or self.store.validation_documents is not None,
            f"--data.document_mask true would do nothing: --data.corpus {self.request.name} is one "
            "running text; set it to false, or name several files or a file of records",
        )
        tokens = {part: len(getattr(self.store, part)) for part in PARTS}
        self._check_lengths(tokens, trains=stage == "fit")
        if stage == "fit":
            self._check_division()

    def store_folder(self) -> Path:
        """What :meth:`prepare_data` wrote; a process that did not run it reads the corpus to know
        the folder's name.

        Raises:
            UserError: The corpus cannot be read, or comes through a pipe and is gone.
        """
        request = self.request
        if self._prepared is None or self._prepared[0] != request:
            self._prepared = request, self._known_store() or self._made_store(request)
        return self._prepared[1]

    @property
    def piped(self) -> list[str]:
        """The sources that can be read but once."""
        return [source for source in self._sources() if names_pipe(source)]

    def _sources(self) -> list[str]:
        request = self.request
        return [name for setting in request.settings for name in request.source(setting).sources]

    def _known_store(self) -> Path | None:
        """The run's own store where its text came through a pipe, which is gone."""
        if self._own_digest is None:
            return None
        piped = self.piped
        if self._reads_new_input and any(has_input(source) for source in piped):
            return None
        if piped:
            return find_store(self.request.cache_folder, self._own_digest)
        # A named pipe may have been deleted; its store says that it was one.
        gone = any(not os.path.lexists(source) for source in self._sources())
        return find_store(self.request.cache_folder, self._own_digest, piped=True) if gone else None

    def _made_store(self, request: StoreRequest) -> Path:
        piped, trainer = self.piped, self.trainer
        _check(
            not piped or trainer is None or trainer.world_size == 1,
            f"--data.corpus {', '.join(piped)}: a pipe is read by one process, and several are to "
            "train; save it to a file and name that",
        )
        try:
            return prepare_store(request, self._require)
        except MissingSource as error:
            if self._expected_digest is None:
                raise
            raise UserError(f"{error}; {MOVED.format(flag=error.flag)}") from error
        except UserError as error:
            if not piped or self.tokenizer_state is None:
                raise
            why = (
                "these settings make another token store than the run's: leave them out, or pipe "
                "the text in again"
                if self._own_digest is None
                else f"its own token store is not in --data.cache_dir "
                f"{shown(self.config.cache_dir)}: pipe the same text in again"
            )
            raise UserError(f"{error}; the run read a pipe, and {why}") from error

    def _require(self, tokens: Mapping[str, int]) -> None:
        """What a store must hold before it is written."""
        trainer = self.trainer
        trains = trainer is not None and trainer.state.fn == TrainerFn.FITTING
        self._check_lengths(tokens, trains=trains)

    def _check_lengths(self, tokens: Mapping[str, int], *, trains: bool) -> None:
        """Refuse parts that hold no sequence; the training part only where one trains."""
        for part in PARTS if trains else PARTS[1:]:
            self._check_length(part, tokens[part])

    def _check_length(self, part: str, tokens: int) -> None:
        needed = self.context + 1
        if tokens >= needed:
            return
        share = (
            DEFAULT_VAL_FRACTION if self.config.val_fraction is None else self.config.val_fraction
        )
        grow = "raise" if part == "validation" else "lower"
        ways = (
            f"{grow} --data.val_fraction {share} or take a longer text"
            if self.config.val_corpus is None
            else "take a longer text"
        )
        merged = (
            "; bpe may have merged it into few tokens: lower --data.vocab_size"
            if (self.tokenizer_state or {"kind": self.config.tokenizer})["kind"] == "bpe"
            else ""
        )
        raise UserError(
            f"--data.corpus {self.request.name}: the {part} part has {tokens:,} tokens, but one "
            f"sequence needs {needed:,} (--model.decoder.context_length {self.context} and the "
            f"token after it); lower the context length, or {ways}{merged}"
        )

    def _check_division(self) -> None:
        share = self.share
        parts = share.world_size * share.accumulation
        _check(
            self.config.batch_size % parts == 0,
            f"--data.batch_size {self.config.batch_size} cannot be divided over {share.world_size} "
            f"device(s) x --trainer.accumulate_grad_batches {share.accumulation}; "
            f"take a multiple of {parts}",
        )

    # ---- what others ask ---------------------------------------------------------------------

    @property
    def tokens(self) -> TokenStore:
        """The open store."""
        if self.store is None:
            raise RuntimeError("TextDataModule.setup has not run")
        return self.store

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer whose ids the store holds."""
        return self.tokens.tokenizer

    @property
    def context(self) -> int:
        """Tokens per sequence."""
        if self.config.context_length is not None:
            return self.config.context_length
        model = getattr(self.trainer, "lightning_module", None)
        if model is None:
            raise UserError("--data.context_length null: no model to take it from; give a number")
        return int(model.decoder_config.context_length)

    @property
    def training_windows(self) -> TrainingWindows:
        """The windows of the training part."""
        return TrainingWindows(len(self.tokens.train), self.context, self.seed)

    def passes(self, sequences: int) -> float:
        """How often the training part has been read after ``sequences`` sequences."""
        return self.training_windows.passes(sequences)

    @property
    def share(self) -> Share:
        """What this process reads of each step's sequences."""
        trainer = self.trainer
        assert trainer is not None
        alone = {"num_replicas": 1, "rank": 0}
        place = getattr(trainer.strategy, "distributed_sampler_kwargs", alone)
        return Share(
            batch_size=self.config.batch_size,
            accumulation=trainer.accumulate_grad_batches,
            # Processes that divide the heads of a layer between them read the same sequences.
            rank=place["rank"],
            world_size=place["num_replicas"],
        )

    # ---- batches -----------------------------------------------------------------------------

    def train_dataloader(self) -> DeviceBatches | DataLoader[Batch]:
        """Endless microbatches, from the first sequence that is not consumed yet."""
        share, windows = self.share, self.training_windows
        start = self.consumed // self.config.batch_size * share.accumulation
        train = self.tokens.train
        documents = self.tokens.train_documents if self.config.document_mask else None
        assert self.trainer is not None
        if self.config.num_workers is None and len(train) <= DEVICE_TOKENS:
            resident = torch.from_numpy(train.astype(np.int32))
            return DeviceBatches(
                resident.to(self.trainer.strategy.root_device), windows, share, start, documents
            )
        return DataLoader(
            MappedBatches(train, windows, share, documents),
            batch_size=None,
            sampler=Endless(start),
            num_workers=self.config.num_workers or 0,
            collate_fn=keep,
            pin_memory=pins_memory(self.trainer.strategy.root_device),
            persistent_workers=bool(self.config.num_workers),
            # A generator of its own: a loader that drew its base seed from the global one would
            # change what dropout draws.
            generator=torch.Generator().manual_seed(self.seed),
        )

    def val_dataloader(self) -> ValidationBatches:
        """The held-out part, every target once."""
        share = self.share
        return ValidationBatches(
            self.tokens.validation,
            ValidationWindows(
                len(self.tokens.validation), self.context, self.tokens.info.start_of_text
            ),
            max(1, share.rows),
            share.rank,
            share.world_size,
            self.tokens.validation_documents if self.config.document_mask else None,
        )

    def test_dataloader(self) -> ValidationBatches:
        """The same held-out part: there is no third split."""
        return self.val_dataloader()

    # ---- resuming ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Sequences consumed: devices, accumulation and workers may change on resume."""
        assert self.trainer is not None
        return {"sequences": self.trainer.global_step * self.config.batch_size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue behind the sequences that the checkpoint has consumed."""
        self.consumed = int(state_dict["sequences"])


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)
