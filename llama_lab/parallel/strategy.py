"""The strategy under which every process holds a part of each tensor."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from llama_lab.checkpoints import SHARDED_KEY, load_file
from llama_lab.errors import UserError
from llama_lab.model.config import DecoderConfig
from llama_lab.model.decoder import Decoder
from llama_lab.parallel.sharded_checkpoints import (
    STATES,
    WEIGHTS,
    new_tag,
    put_together,
    read_tensors,
    save_sharded,
)
from llama_lab.parallel.sharding import (
    DATA,
    POLICIES,
    TENSOR,
    free_gathered,
    sharded_decoder,
    sum_gradients,
)
from llama_lab.parallel.tensor_plan import FLAG, check_tensor_parallel
from llama_lab.parallel.tensors import divided_like, put


class ShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy for FSDP2 and tensor parallelism, with this project's checkpoints.

    Processes that follow each other form a group that computes the same sequences together
    (tensor parallelism); the weights are divided over the groups as well.

    Args:
        tensor_parallel: Processes in a group.
    """

    def __init__(self, tensor_parallel: int = 1) -> None:
        super().__init__(data_parallel_size=1, tensor_parallel_size=tensor_parallel)
        self.tensor_parallel = tensor_parallel

    # ---- construction ------------------------------------------------------------------------

    def setup_environment(self) -> None:
        """Form the groups, once the number of processes is known."""
        self._data_parallel_size = self.num_nodes * self.num_processes // self.tensor_parallel
        super().setup_environment()

    def check(self, config: DecoderConfig, precision: str) -> None:
        """Refuse what cannot be divided.

        Raises:
            UserError: It names the setting.
        """
        n_processes = self.num_nodes * self.num_processes
        if n_processes % self.tensor_parallel:
            raise UserError(
                f"{FLAG} {self.tensor_parallel} does not divide the {n_processes} process"
                f"{'es' * (n_processes != 1)} that --trainer.devices and --trainer.num_nodes make"
            )
        if precision not in POLICIES:
            raise UserError(
                f"--trainer.precision {precision}: --trainer.strategy fsdp computes in "
                f"{', '.join(POLICIES)}; set one of them"
            )
        check_tensor_parallel(config, self.tensor_parallel)

    def decoder(self, config: DecoderConfig, precision: str) -> Decoder:
        """A decoder that is divided over the processes, without values."""
        return sharded_decoder(config, self.device_mesh, self.root_device, precision)

    @property
    def data_group(self) -> ProcessGroup:
        """The processes that together read every sequence once, this one among them."""
        return self.device_mesh[DATA].get_group()

    @property
    def reads_first(self) -> bool:
        """Whether no other process reads this one's sequences before it counts them."""
        return bool(self.device_mesh[TENSOR].get_local_rank() == 0)

    # ---- training ----------------------------------------------------------------------------

    @contextmanager
    def block_backward_sync(self) -> Generator[None, None, None]:
        """Within, gradients add up in each process, and are exchanged by the next backward outside.

        (Lightning's own knows DDP's way to do so alone.)
        """
        decoder = self._decoder
        sum_gradients(decoder, False)
        try:
            yield
        finally:
            sum_gradients(decoder, True)

    @property
    def _decoder(self) -> Decoder:
        decoder = getattr(self.lightning_module, "decoder", None)
        assert isinstance(decoder, Decoder)
        return decoder

    # ---- checkpoints -------------------------------------------------------------------------

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Lightning hands the optimiser's state to :meth:`load_optimizer_state_dict`."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Every process's shards."""
        assert self.model is not None
        free_gathered(self._decoder)
        return self.model.state_dict()

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Every process's shards, under the numbers that a single process gives."""
        inner = optimizer._optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        return inner.state_dict()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Write a sharded checkpoint; every process takes part."""
        tag = self.broadcast(new_tag(int(checkpoint["global_step"])))
        path = Path(self.broadcast(filepath))
        save_sharded(checkpoint, path, tag, self.is_global_zero)

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """A checkpoint with this process's shards of its tensors, or with all of them in the file.

        A single file's tensors stay on the disk until each process takes its shards.
        """
        path = Path(self.broadcast(checkpoint_path))
        contents = load_file(path, mmap=True, sharded=True)
        if SHARDED_KEY not in contents:
            return contents
        return put_together(contents, read_tensors(path, contents, self._room()))

    def _room(self) -> dict[str, Tensor]:
        """A tensor of the right division for each flat name that a checkpoint may have."""
        room = {f"{WEIGHTS}.{n}": t for n, t in self.lightning_module_state_dict().items()}
        for i, optimizer in enumerate(self.optimizers):
            for number, parameter in enumerate(parameters_of(optimizer)):
                for key in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
                    room[f"{STATES}.{i}.{number}.{key}"] = parameter
        return room

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Take the checkpoint's weights; each process takes its shards."""
        assert self.model is not None
        for name, tensor in self.model.state_dict().items():
            put_or_copy(tensor, checkpoint[WEIGHTS][name])

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take up the optimisers' states, divided as their parameters are."""
        for optimizer, state in zip(self.optimizers, checkpoint[STATES], strict=True):
            parameters = parameters_of(optimizer)
            divided = {
                number: {
                    key: divided_state(value, parameters[number]) for key, value in values.items()
                }
                for number, values in state["state"].items()
            }
            optimizer.load_state_dict({**state, "state": divided})


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The optimiser's parameters by the numbers that its state has."""
    return [p for group in optimizer.param_groups for p in group["params"]]


@torch.no_grad()
def put_or_copy(tensor: Tensor, value: Tensor) -> None:
    """Give a tensor a value that is divided alike, or whole in every process."""
    if isinstance(value, DTensor):
        tensor.copy_(value)
    else:
        put(tensor, value)


def divided_state(value: Any, parameter: Tensor) -> Any:
    """A state of a parameter's own shape is divided as the parameter is; others stay whole."""
    is_alike = isinstance(value, Tensor) and value.shape == parameter.shape
    if not is_alike or isinstance(value, DTensor):
        return value
    return divided_like(value, parameter)


def sharded(strategy: Strategy) -> ShardedStrategy | None:
    """The strategy, where it divides tensors."""
    return strategy if isinstance(strategy, ShardedStrategy) else None


def sharding_of(trainer: Trainer | None) -> ShardedStrategy | None:
    """The trainer's strategy, where there is one that divides tensors."""
    return None if trainer is None else sharded(trainer.strategy)
