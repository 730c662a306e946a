"""Memory of two processes under FSDP2 beside that of one, for a decoder of 20M parameters.

    python benchmarks/sharded_memory.py [--processes 2] [--toy]

Each process takes three steps of AdamW and counts the bytes of the tensors that it holds then:
weights, gradients and the optimiser's states. Prints JSON; the bar is 0.55 of one process's.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise
from llama_lab.parallel.sharding import DATA, TENSOR, sharded_decoder
from llama_lab.parallel.tensors import local, put
from llama_lab.training.optimizers import OptimizerConfig, build_optimizer

BAR = 0.55
SHAPE = {"dim": 384, "n_layers": 10, "vocab_size": 8192, "context_length": 128}
TOY = {"dim": 32, "n_layers": 2, "vocab_size": 64, "context_length": 16}


def held(decoder: Decoder) -> dict[str, int]:
    """Bytes that this process holds after three steps."""
    config = decoder.config
    optimizer = build_optimizer(decoder, OptimizerConfig())
    tokens = torch.randint(config.vocab_size or 1, (2, config.context_length))
    for _ in range(3):
        optimizer.zero_grad()
        decoder.score(tokens, tokens, reduction="mean").backward()
        optimizer.step()
    states = [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    gradients = [p.grad for p in decoder.parameters() if p.grad is not None]
    kinds = {"weights": list(decoder.parameters()), "gradients": gradients, "states": states}
    return {kind: stored(tensors) for kind, tensors in kinds.items()}


def stored(tensors: list[torch.Tensor]) -> int:
    """Bytes of the storages of tensors, each once; shapes would hide what is kept beside them."""
    storages = [local(tensor.detach()).untyped_storage() for tensor in tensors]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def worker(config: DecoderConfig) -> None:
    """One of several processes."""
    dist.init_process_group("gloo")
    shape = (dist.get_world_size(), 1)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=(DATA, TENSOR))
    decoder = sharded_decoder(config, mesh, torch.device("cpu"), "32-true")
    initialise(decoder, 0, put)
    found = held(decoder)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    if dist.get_rank() == 0:
        print(json.dumps(every))
    dist.destroy_process_group()


def main() -> int:
    """Measure one process, start the others, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--toy", action="store_true", help="a tiny decoder")
    options = parser.parse_args()
    config = DecoderConfig.from_dict(TOY if options.toy else SHAPE)
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        worker(config)
        return 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**os.environ, **shared, "RANK": str(i), "WORLD_SIZE": str(options.processes)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(options.processes)
    ]
    outputs = [process.communicate()[0] for process in processes]
    decoder = Decoder(config)
    initialise(decoder, 0)
    alone, shares = held(decoder), json.loads(outputs[0])
    most = max(sum(share.values()) for share in shares) / sum(alone.values())
    print(
        json.dumps(
            {
                "parameters": sum(p.numel() for p in decoder.parameters()),
                "one_process": alone,
                "each_of_several": shares,
                "largest_share": round(most, 4),
                "bar": BAR,
                "holds": most <= BAR,
            },
            indent=2,
        )
    )
    return 0 if most <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
