"""Masks: which keys a query may see; and the positions of the tokens of one forward.

B batch, T time, P positions attended to, D model width, H query heads, K key/value heads,
E head width, W window.
"""

import itertools
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

from llama_lab.model.devices import holds_float64
from llama_lab.model.flex import serves_text, sliding_tiles


class DotProductAttention(Protocol):
    """Scaled dot-product attention.

    Queries ``[B, H, T, E]``, keys and values ``[B, K, P, E]``; the result has the queries' shape.
    """

    def dot_product(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        """Under a mask or none; where ``is_causal`` token t sees keys 0 to t."""

    def dot_product_in_tiles(self, q: Tensor, k: Tensor, v: Tensor, tiles: BlockMask) -> Tensor:
        """Where ``tiles`` show it, P = T."""


@dataclass(frozen=True)
class AttentionMask:
    """Which of P keys each of T queries may see; the last query is at the last key."""

    tensor: Tensor | None
    """``[T, P]``, true where a token may look, or what a subclass says; ``None`` where
    ``is_causal`` says it all."""

    is_causal: bool
    """Whether token t sees tokens 0 to t of this same forward, and no others exist."""

    def attend(self, attention: DotProductAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What ``attention`` makes of the visible part: ``[B, H, T, E]``."""
        return attention.dot_product(q, k, v, self.tensor, self.is_causal)


@dataclass(frozen=True)
class BiasMask(AttentionMask):
    """The mask is added to the scores: ``[1, H, T, P]``, float32, -inf where nothing is seen."""

    def attend(self, attention: DotProductAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = None if self.tensor is None else self.tensor.to(q.dtype)
        return attention.dot_product(q, k, v, mask, self.is_causal)


@dataclass(frozen=True)
class BandedMask:
    """A window over many tokens, block by block: a block of W queries sees 2 W keys at most.

    Time and scores grow with T · W, not with T². The blocks are laid along the batch, so that one
    call serves them all; a text's first, which no keys stand before, is of another call.
    Source: Beltagy et al. 2020 (Longformer), arXiv:2004.05150, appendix A.
    """

    window: int
    first: AttentionMask
    """W tokens that none precede."""
    rest: AttentionMask
    """W tokens that W others precede."""

    def attend(self, attention: DotProductAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As :meth:`AttentionMask.attend`."""
        n_queries, width = q.size(2), self.window
        # Queries before the first and after the last are added, and cut off again, to fill blocks.
        before, after = k.size(2) - n_queries, -k.size(2) % width
        q, k, v = pad(q, before, after), pad(k, 0, after), pad(v, 0, after)
        first = self.first.attend(attention, q[:, :, :width], k[:, :, :width], v[:, :, :width])
        rest = self.rest.attend(
            attention,
            lined_up(q, width)[1:],
            lined_up(k, 2 * width, width),
            lined_up(v, 2 * width, width),
        )
        mixed = self.assemble(first.transpose(1, 2), rest.transpose(1, 2))
        return mixed[:, before : before + n_queries].transpose(1, 2)

    @staticmethod
    def assemble(first: Tensor, rest: Tensor) -> Tensor:
        """The texts' first blocks ``[B, W, H, E]`` and all others ``[B n - 1, W, H, E]``, with
        those that began a text and saw the end of another left out: ``[B, n W, H, E]``.
        """
        n_texts = first.size(0)
        n_others = (rest.size(0) + 1) // n_texts - 1
        others = rest.split([n_others, *[1, n_others] * (n_texts - 1)])[::2]
        blocks = itertools.chain.from_iterable(zip(first.split(1), others, strict=True))
        return torch.cat(list(blocks)).unflatten(0, (n_texts, -1)).flatten(1, 2)


@dataclass(frozen=True)
class TiledMask:
    """A window over many tokens, in one kernel that skips the tiles that nothing is seen of."""

    tiles: BlockMask

    def attend(self, attention: DotProductAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As :meth:`AttentionMask.attend`."""
        return attention.dot_product_in_tiles(q, k, v, self.tiles)


AnyMask = AttentionMask | BandedMask | TiledMask


def pad(x: Tensor, before: int, after: int) -> Tensor:
    """``x`` with zeros around it in time, and not copied where there are none."""
    return F.pad(x, (0, 0, before, after)) if before or after else x


def lined_up(x: Tensor, size: int, step: int | None = None) -> Tensor:
    """All texts of ``[B, H, T, E]`` one after another, and at every ``step`` positions ``size`` of
    them: ``[blocks, H, size, E]``, where blocks that overlap share their memory.
    """
    return x.transpose(1, 2).flatten(0, 1).unfold(0, size, step or size).transpose(-2, -1)


@dataclass(frozen=True)
class Documents:
    """Texts that are each several documents in a row, which know nothing of each other.

    Attributes:
        offsets: How many tokens of its own document stand before each of T tokens ``[B, T]``.
        same: Whether such a token and each of those held and these are of one document
            ``[B, T, held + T]``.
        held: Tokens that stand before these in a cache.
    """

    offsets: Tensor
    same: Tensor
    held: int = 0

    @classmethod
    def of(cls, numbers: Tensor) -> "Documents":
        """From a number for each token ``[B, T]``, which changes where a document begins."""
        positions = torch.arange(numbers.size(1), device=numbers.device)
        begins = numbers != numbers.roll(1, dims=1)
        starts = torch.where(begins, positions, 0).cummax(dim=1).values
        return cls(positions - starts, numbers[:, :, None] == numbers[:, None, :])

    @classmethod
    def behind(cls, lengths: Tensor, held: int) -> "Documents":
        """One new token a row, behind the last ``lengths`` ``[B]`` of ``held`` columns."""
        columns = torch.arange(held + 1, device=lengths.device)
        return cls(lengths[:, None], (columns >= held - lengths[:, None])[:, None], held)

    @property
    def end(self) -> int:
        """The most tokens that a document may have."""
        return self.held + self.offsets.size(1)

    def seen_within(self, window: int | None) -> tuple[Tensor, Tensor]:
        """How far each key lies behind each query ``[T, P]``, and ``same`` for these P keys, as
        many as a window's cache gives."""
        held = self.held if window is None else min(self.held, window - 1)
        distance = distances(held, self.offsets.size(1), self.offsets.device)
        return distance, self.same[..., -distance.size(1) :]


def distances(held: int, length: int, device: torch.device) -> Tensor:
    """How far each key lies behind each query, ``[T, P]``: negative in a query's future."""
    positions = torch.arange(held + length, device=device)
    return positions[held:, None] - positions


@dataclass(frozen=True)
class TokenPositions:
    """Positions of the T tokens of one forward; every layer of one kind shares them."""

    mask: AnyMask

    def rotate(self, heads: Tensor) -> Tensor:
        """Queries or keys ``[B, T, H, E]``, turned to their positions."""
        return heads

    def attend(self, attention: DotProductAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention over the keys and values that each query sees: ``[B, H, T, E]``."""
        return self.mask.attend(attention, q, k, v)


class Position(nn.Module):
    """No position: order is known from the causal mask alone.

    Source: Haviv et al. 2022, arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466. A window
    hides what lies further back (Child et al. 2019, arXiv:1904.10509; Mistral, arXiv:2310.06825).

    Args:
        window: Tokens that a token sees, itself included; ``None`` means all up to itself.
        flex: Whether flex attention may serve a window, where it can.
    """

    def __init__(self, window: int | None = None, flex: bool = False) -> None:
        super().__init__()
        self.window = window
        self.flex = flex

    def embed(self, x: Tensor, past: int) -> Tensor:
        """Embeddings ``[B, T, D]`` of the tokens behind ``past`` others, with their positions."""
        return x

    def embed_within(self, x: Tensor, documents: Documents) -> Tensor:
        """As :meth:`embed`, each document from position 0."""
        return x

    def at(self, past: int, length: int, device: torch.device) -> TokenPositions:
        """What attention needs to know of ``length`` tokens that follow ``past`` others."""
        return TokenPositions(self.mask_for(past, length, device))

    def within(self, documents: Documents) -> TokenPositions:
        """As :meth:`at`, each document from position 0, seeing itself alone."""
        return TokenPositions(self.mask_within(documents))

    def mask_within(self, documents: Documents) -> AttentionMask:
        """What tokens see of their documents. The mask is held: ``[B, 1, T, P]``."""
        return AttentionMask(self.visible_within(documents), is_causal=False)

    def visible_within(self, documents: Documents) -> Tensor:
        """True where a query sees a key of its own document, ``[B, 1, T, P]``."""
        distance, same = documents.seen_within(self.window)
        return (same & self.visible(distance))[:, None]

    def stays_valid(self, past: int, length: int) -> bool:
        """Whether what was computed for ``past`` tokens stays right when ``length`` follow."""
        return True

    def mask_for(self, past: int, length: int, device: torch.device) -> AnyMask:
        """What ``length`` tokens see of ``past`` others, as far as the window reaches, and of
        themselves: all of it at once, or in tiles or blocks where that is less work.
        """
        if self.window is None:
            return self.dense_mask(past, length, device)
        if length < 2 * self.window:
            return self.dense_mask(min(past, self.window - 1), length, device)
        if self.flex and serves_text(past, length, device):
            return TiledMask(sliding_tiles(self.window, length, device))
        return BandedMask(
            self.window,
            first=self.dense_mask(0, self.window, device),
            rest=self.dense_mask(self.window, self.window, device),
        )

    def dense_mask(self, held: int, length: int, device: torch.device) -> AttentionMask:
        """What ``length`` tokens see of ``held`` keys before them and of themselves.

        ``is_causal`` aligns the triangle with the upper left corner, so tokens that follow others
        need their mask spelt out; a single token sees all there is.
        """
        is_unbounded = self.window is None or held + length <= self.window
        if is_unbounded and (held == 0 or length == 1):
            return AttentionMask(None, is_causal=length > 1)
        return AttentionMask(self.visible(distances(held, length, device)), is_causal=False)

    def visible(self, distance: Tensor) -> Tensor:
        """True where a query sees a key that lies ``distance`` ``[T, P]`` behind it."""
        if self.window is None:
            return distance >= 0
        return (distance >= 0) & (distance < self.window)


# A table of so many positions is made at once; it takes 4 MB for heads of width 128. Tables of
# longer contexts grow as texts do: a context of millions would take gigabytes, seldom used.
FIRST_POSITIONS = 4096


class TabledPosition(Position):
    """A kind that reads a fixed table of the positions, which grows with the longest text seen: to
    twice its size, or to the whole context, if that is enough.

    The table is no buffer: a buffer would follow the model into bfloat16, come out of ``meta``
    uninitialised, and be broadcast by DDP in every step. It is a constant, made again on demand.
    """

    table: Tensor
    made_for: torch.device | None = None
    made_on: torch.device
    """Where the table for that device is computed, in float64."""

    def __init__(self, context_length: int, window: int | None = None, flex: bool = False) -> None:
        super().__init__(window, flex)
        self.context_length = context_length

    @abstractmethod
    def make(self, positions: Tensor) -> Tensor:
        """The table's rows at ``positions``, float64 ``[P]``, along the result's axis -2."""

    def rows(self, past: int, length: int, device: torch.device) -> Tensor:
        """The float32 rows of ``length`` positions that follow ``past`` others."""
        end, held = past + length, self.table.size(-2)
        if held < end:
            held = max(end, min(2 * held, self.context_length))
        if self.table.device != device or self.table.size(-2) < held:
            self.tabulate(held, device)
        return self.table[..., past:end, :]

    def rows_within(self, documents: Documents) -> Tensor:
        """The float32 rows of tokens that are counted from their documents' beginnings: ``[B, T]``
        in place of the positions.
        """
        offsets = documents.offsets
        return self.rows(0, documents.end, offsets.device)[..., offsets, :]

    def begin_table(self) -> None:
        """Make the first table, on the device that is the default now."""
        self.tabulate(min(self.context_length, FIRST_POSITIONS), torch.empty(0).device)

    def tabulate(self, n_positions: int, device: torch.device) -> None:
        """Make the table of the first ``n_positions`` positions on ``device``."""
        # `meta` is told by name: there only a table's shape is of use, and arange there imports
        # sympy, which takes seconds. A table born in inference mode could not be trained with
        # afterwards.
        is_meta = device.type == "meta"
        if device != self.made_for:  # and not in compiled code, which cannot try a device
            holds = not is_meta and holds_float64(device)
            self.made_for, self.made_on = device, device if holds else torch.device("cpu")
        made = 1 if is_meta else n_positions
        with torch.inference_mode(False), torch.no_grad():
            positions = torch.arange(made, dtype=torch.float64, device=self.made_on)
            table = self.make(positions).float().to(device)
            self.table = (
                table.expand(*table.shape[:-2], n_positions, -1) if made < n_positions else table
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TabledPosition":
        # Made where the model goes, before its first forward there, so that a compiled forward
        # always finds the table and is compiled once.
        super()._apply(fn, recurse)
        target = fn(torch.empty(0, device=self.table.device)).device
        if target != self.table.device:
            self.tabulate(self.table.size(-2), target)
        return self
