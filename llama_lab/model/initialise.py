"""The weights that training starts from.

Each tensor is drawn from its own generator, whose seed follows from the run's seed and the tensor's
name. Two models that share a tensor (same name, same shape) therefore share its initial value,
whatever else differs between them, on any device and in any precision.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from llama_lab.model.decoder import Decoder
from llama_lab.model.init_schemes import WithStartValues, build_init


@torch.no_grad()
def initialise(
    decoder: Decoder, seed: int, put: Callable[[Tensor, Tensor], Any] = Tensor.copy_
) -> None:
    """Give every parameter of ``decoder`` its first value; a tied tensor once.

    A value that a module declares in ``starts`` comes first. Every other bias is 0. Matrices and
    tables are drawn by the config's scheme.

    Args:
        decoder: On any device but ``meta``, in any precision.
        seed: The run's seed.
        put: Gives a parameter its value; another one is needed where parameters are divided.

    Raises:
        LookupError: A parameter is not a bias, a matrix or a table, and has no declared value.
    """
    scheme = build_init(decoder.config.init, decoder.config.n_layers)
    for path, module in decoder.named_modules():
        starts = module.starts if isinstance(module, WithStartValues) else {}
        for leaf, parameter in module.named_parameters(recurse=False):
            name = f"{path}.{leaf}"
            if leaf in starts or leaf == "bias":
                parameter.fill_(starts.get(leaf, 0.0))
            elif parameter.dim() == 2:
                put(parameter, scheme.draw(name, parameter.shape, seeded_generator(seed, name)))
            else:
                raise LookupError(f"{name} is not a matrix, and its module declares no start value")


def seeded_generator(seed: int, name: str) -> torch.Generator:
    """A CPU generator whose state depends on ``seed`` and ``name`` alone."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator(device="cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)
