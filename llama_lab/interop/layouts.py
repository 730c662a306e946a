"""Layouts: which of a family's tensors holds each of a decoder's, and the conversion.

H heads, E head width. Torch keeps a matrix as [out, in].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from llama_lab.errors import UserError
from llama_lab.interop.families import Family, Place
from llama_lab.model.decoder import Decoder, DecoderConfig

Shape = tuple[int, ...]

# Whose rows (or entries) are coordinates of heads that rope turns.
ROTATED = re.compile(r"\.attention\.(wq|wk|q_norm|k_norm)\.(weight|bias)$")


@dataclass(frozen=True)
class Layout:
    """A family's tensors for one decoder.

    Attributes:
        shapes: Their tensors by name, as their files must hold them.
        places: For each of ours, the name of theirs and where in it ours is.
    """

    shapes: dict[str, Shape]
    places: dict[str, tuple[str, Place]]

    def ours(self, read: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Our tensors, contiguous and float32; ``read`` gives one of theirs by name."""
        return {name: taken(read(theirs), place) for name, (theirs, place) in self.places.items()}

    def theirs(self, name: str, ours: Mapping[str, Tensor]) -> Tensor:
        """Their tensor ``name``, contiguous."""
        shares = sorted(
            (place.part[0], _turned(ours[own], place))
            for own, (theirs, place) in self.places.items()
            if theirs == name
        )
        return torch.cat([share for _, share in shares], dim=-1).contiguous()


def taken(theirs: Tensor, place: Place) -> Tensor:
    """The share of their tensor that is ours, turned our way, in float32."""
    index, shares = place.part
    return _turned(theirs.chunk(shares, dim=-1)[index], place).float().contiguous()


def _turned(tensor: Tensor, place: Place) -> Tensor:
    return tensor.T if place.transposed and tensor.dim() == 2 else tensor


def decoder_shapes(config: DecoderConfig) -> dict[str, Shape]:
    """Every tensor of the decoder with its shape, without allocating any.

    Raises:
        UserError: The sizes are beyond what a tensor can have.
    """
    try:
        with torch.device("meta"):
            decoder = Decoder(_without_tables(config))
    except RuntimeError as error:
        raise UserError(f"the sizes are impossible ({error})") from error
    return {name: tuple(tensor.shape) for name, tensor in decoder.state_dict().items()}


def _without_tables(config: DecoderConfig) -> DecoderConfig:
    """A decoder with the same tensors: tables of places are none, and are real even on `meta`."""
    if config.position.kind == "learned":
        return config
    settings = asdict(config)
    attention = {k: v for k, v in settings["attention"].items() if not k.startswith("window")}
    bare = {"position": {"kind": "none"}, "attention": attention, "context_length": 1}
    return DecoderConfig.from_dict({**settings, **bare})


def layout_of(family: Family, config: DecoderConfig) -> Layout:
    """The family's tensors for a decoder that it can express."""
    places: dict[str, tuple[str, Place]] = {}
    shares: dict[str, list[Shape]] = {}
    for name, shape in decoder_shapes(config).items():
        theirs, place = _find(family, name)
        places[name] = theirs, place
        turned = shape[::-1] if place.transposed and len(shape) == 2 else shape
        shares.setdefault(theirs, []).append(turned)
    shapes = {
        theirs: (*parts[0][:-1], sum(part[-1] for part in parts))
        for theirs, parts in shares.items()
    }
    return Layout(shapes, places)


def _find(family: Family, name: str) -> tuple[str, Place]:
    module, _, kind = name.rpartition(".")
    layer = re.search(r"\d+", module)
    place = family.modules.get(re.sub(r"\d+", "{i}", module))
    if place is None:
        raise UserError(f"{family.model_type} has no place for the tensor {name} of this decoder")
    theirs = place.name.replace("{i}", layer[0] if layer else "")
    return f"{theirs}.{kind}", place


def to_half(weights: Mapping[str, Tensor], head_dim: int) -> dict[str, Tensor]:
    """Weights of an interleaved rope (2i turns with 2i + 1) for a half one (i with i + E/2).

    The rows of each head's query and key projection, ``[H, E/2, 2, ...]``, become
    ``[H, 2, E/2, ...]``; scores, sums over a head, stay as they are. A norm over one head is one
    head's worth of entries.
    """
    return {
        name: halved(tensor, head_dim) if ROTATED.search(name) else tensor
        for name, tensor in weights.items()
    }


def halved(tensor: Tensor, head_dim: int) -> Tensor:
    """``[H · E, ...]`` with each head's coordinates 0, 2, … first, then 1, 3, …."""
    pairs = tensor.unflatten(0, (-1, head_dim // 2, 2))
    return pairs.transpose(1, 2).flatten(0, 2).contiguous()


def refuse_differences(wanted: Mapping[str, Shape], found: Mapping[str, Shape], where: str) -> None:
    """Refuse tensors that are missing, left over or of another shape, naming the first.

    Raises:
        UserError: There is one.
    """
    faults = _differences(wanted, found)
    first = next(iter(faults), None)
    if first is not None:
        n_more = sum(1 for _ in faults)
        more = f" (and {n_more} more)" if n_more else ""
        raise UserError(f"{where}: {first}{more}; every tensor must be there, and no other")


def _differences(wanted: Mapping[str, Shape], found: Mapping[str, Shape]) -> Iterable[str]:
    for name, shape in wanted.items():
        if name not in found:
            yield f"tensor {name} is missing"
        elif found[name] != shape:
            yield f"tensor {name} has shape {list(found[name])}, the config asks for {list(shape)}"
    for name in found:
        if name not in wanted:
            yield f"tensor {name} belongs to no part of the model that the config describes"
