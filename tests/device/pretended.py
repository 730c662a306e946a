"""A pretended accelerator: its tensors say that they lie elsewhere, and the CPU computes them.

A machine without an accelerator can so find out what one would refuse:

- tensors of two devices in one operation, but for single numbers, and for indices;
- draws from another device's generator;
- tensors of types that the device lacks (:data:`RULES`): Metal has no float64.

``install`` changes torch for the whole process, for good: call it in a process of its own. It rests
on an experimental function of torch (in 2.13), and does not make streams, several devices or
compiled code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

NAME = "pretended"
RULES: dict[str, tuple[torch.dtype, ...]] = {
    "cuda": (),
    "metal": (torch.float64, torch.complex128),
    "older_metal": (torch.float64, torch.complex128, torch.bfloat16),
}

ATEN = torch.ops.aten
COPIES = {ATEN._to_copy.default, ATEN.copy_.default, ATEN._copy_from.default}
INDEXINGS = {"index", "index_put", "index_put_", "_index_put_impl_"}
# What autocast does on CUDA, as far as a decoder uses it.
LOWERED = (
    *("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention"),
    "_scaled_dot_product_attention_math",
)
RAISED = ("layer_norm", "softmax.int", "log_softmax.int", "cross_entropy_loss", "logsumexp")


class DeviceTensor(torch.Tensor):
    """A tensor of the device; ``host`` is the CPU's tensor that has its numbers."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> DeviceTensor:
        refuse_type(host.dtype)
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=torch.device(NAME, 0),
            requires_grad=host.requires_grad,
        )
        made.host = host
        return made

    def __init__(self, host: Tensor) -> None:
        """All is done in ``__new__``, as torch wants it."""

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({self.host!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.host.detach().__reduce_ex__(protocol)  # files hold plain tensors

    def tolist(self) -> Any:
        return self.host.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


MISSING: tuple[torch.dtype, ...] = ()
DRAWS: dict[str, Tensor] = {}


def refuse_type(dtype: torch.dtype) -> None:
    """As Metal does."""
    if dtype in MISSING:
        raise TypeError(f"Cannot convert a {NAME} tensor to {dtype}: the device does not have it")


def refuse_mixture(func: Any, name: str, tensors: list[Tensor], generator: Any) -> None:
    """As CUDA does: all tensors are on one device, and so is the generator."""
    others = [t for t in tensors if not isinstance(t, DeviceTensor) and t.dim() > 0]
    if others and len(others) < len(tensors):
        are_indices = all(t.dtype in (torch.int64, torch.bool) for t in others)
        if name not in INDEXINGS or not are_indices:
            raise RuntimeError(f"Expected tensors of one device, found {NAME}:0 and cpu: {func}")
    if generator is not None and generator._cdata not in OWN_GENERATORS:
        raise RuntimeError(f"Expected a generator of {NAME}, found one of {generator.device}")


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Let the CPU do what an operation asks of the device."""
    tensors = list(tensors_in((args, *kwargs.values())))
    target, generator = kwargs.get("device"), kwargs.get("generator")
    stays = target is None or torch.device(target).type == NAME
    if func not in COPIES:
        refuse_mixture(func, func._schema.name.partition("::")[2], tensors, generator)
    elif not stays and kwargs.get("dtype") is not None:
        refuse_type(kwargs["dtype"])  # some versions of torch convert on the device, then copy
    host_kwargs = {key: changed(value, host_of) for key, value in kwargs.items()}
    if target is not None:
        host_kwargs["device"] = torch.device("cpu")
    if isinstance(kwargs.get("pin_memory"), bool):
        host_kwargs["pin_memory"] = False
    draws = torch.Tag.nondeterministic_seeded in func.tags and generator is None
    with Drawing() if draws else nullcontext():
        result = func(*changed(args, host_of), **host_kwargs)
    if not stays:  # on the CPU a copy may be the very tensor, where nothing else changes
        return changed(result, torch.clone)
    written = {}
    if func._schema.is_mutable:
        written = {id(t.host): t for t in tensors if isinstance(t, DeviceTensor)}
    return changed(result, lambda t: written[id(t)] if id(t) in written else DeviceTensor(t))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Those in nested lists, as operations take them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(changed(each, change) for each in value)
    return value


def host_of(tensor: Tensor) -> Tensor:
    """The CPU's own."""
    return tensor.host if isinstance(tensor, DeviceTensor) else tensor


class Drawing:
    """Within, the CPU draws what the device would: the device has a state of its own."""

    def __enter__(self) -> None:
        self.before = torch.default_generator.get_state()
        if "state" in DRAWS:
            torch.default_generator.set_state(DRAWS["state"])

    def __exit__(self, *_: Any) -> None:
        DRAWS["state"] = torch.default_generator.get_state()
        torch.default_generator.set_state(self.before)


HostGenerator = torch.Generator


OWN_GENERATORS: dict[int, torch.Generator] = {}  # kept, so that no other takes their address


class DeviceGenerator(HostGenerator):
    """A generator of the device, which draws what the CPU's of that seed would."""

    def __new__(cls) -> DeviceGenerator:
        made = super().__new__(cls, "cpu")
        OWN_GENERATORS[made._cdata] = made
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where it says that it is."""
        return torch.device(NAME, 0)


class EitherGenerator(type):
    """Makes ``torch.Generator`` a name for both kinds."""

    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        there = torch.device(device).type == NAME
        return DeviceGenerator() if there else HostGenerator(device)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, HostGenerator)


class Generator(metaclass=EitherGenerator):
    """Stands in torch for its own."""


class Event:
    """A moment of the device, which never lags."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        """Now."""
        self.at = time.perf_counter()

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds to a later one."""
        return 1e3 * (later.at - self.at)


def backend() -> Any:
    """What is found as ``torch.pretended``."""
    from torch.utils.backend_registration import _DummyBackendModule

    class Backend(_DummyBackendModule):
        def manual_seed(self, seed: int) -> None:
            DRAWS["state"] = HostGenerator().manual_seed(seed).get_state()

        manual_seed_all = manual_seed

        def synchronize(self, device: Any = None) -> None:
            """Nothing is under way."""

        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [t for t in (torch.bfloat16, torch.float16) if t not in MISSING]

        def get_rng_state(self, device: Any = None) -> Tensor:
            return DRAWS.get("state", torch.default_generator.get_state())

    Backend.Event = Event
    return Backend()


def can_be_installed() -> bool:
    """Whether this torch lets Python be a device."""
    from torch.utils import backend_registration

    return hasattr(backend_registration, "_setup_privateuseone_for_python_backend")


LIBRARIES: list[Any] = []  # what is registered lasts as long as these


def install(rules: str) -> None:
    """Make the device, in torch and in Lightning."""
    global MISSING
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    MISSING = RULES[rules]
    _setup_privateuseone_for_python_backend(NAME, backend_module=backend())
    register_kernels()
    register_autocast()
    torch.Generator = Generator
    # A wrapped tensor has no version to be without: without gradients the same is computed.
    torch.inference_mode = lambda mode=True: torch.no_grad() if mode else nullcontext()
    torch.accelerator.synchronize = lambda device=None, /: None
    register_in_lightning()


def register_kernels() -> None:
    """What makes the first tensor: none is given, so nothing is dispatched to the class."""

    def empty(size: Any, *, dtype: Any = None, **_: Any) -> Tensor:
        return DeviceTensor(torch.empty(size, dtype=dtype, device="cpu"))

    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
        return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))

    def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
        host_of(target).copy_(host_of(source))
        return target

    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", empty_strided, "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")
    LIBRARIES.append(library)


def register_autocast() -> None:
    """Products in the lower type, sums of many terms in float32, all else as it comes."""
    key = "AutocastPrivateUse1"
    apart = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def cast(name: str, dtype_of: Any) -> Any:
        packet, _, overload = name.partition(".")
        operation = getattr(getattr(ATEN, packet), overload or "default")

        def call(*args: Any, **kwargs: Any) -> Any:
            dtype = dtype_of()
            with torch._C._ExcludeDispatchKeyGuard(apart):
                return operation(
                    *(as_type(a, dtype) for a in args),
                    **{k: as_type(v, dtype) for k, v in kwargs.items()},
                )

        return call

    library = torch.library.Library("aten", "IMPL")
    for name in LOWERED:
        library.impl(name, cast(name, lambda: torch.get_autocast_dtype(NAME)), key)
    for name in RAISED:
        library.impl(name, cast(name, lambda: torch.float32), key)
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, key)
    LIBRARIES.extend((library, everything))


def as_type(value: Any, dtype: torch.dtype) -> Any:
    """A tensor of floats in ``dtype``; all else unchanged."""
    floats = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(dtype) if floats else value


def register_in_lightning() -> None:
    """``--trainer.accelerator pretended --trainer.strategy pretended``."""
    from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
    from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry

    class Pretended(Accelerator):
        def setup_device(self, device: torch.device) -> None:
            pass

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return {}

        def teardown(self) -> None:
            pass

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            return [0]

        @staticmethod
        def get_parallel_devices(devices: Any) -> list[torch.device]:
            return [torch.device(NAME, 0)]

        @staticmethod
        def auto_device_count() -> int:
            return 1

        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def name() -> str:
            return NAME

    AcceleratorRegistry.register(NAME, Pretended, description=NAME)
    place = torch.device(NAME, 0)
    StrategyRegistry.register(NAME, SingleDeviceStrategy, description=NAME, device=place)
