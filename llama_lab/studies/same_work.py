"""Comparison of receipts: did two runs do the same work?

Losses are compared only where these agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_lab.data.batches import OrderDigest, TrainingWindows
from llama_lab.errors import RunError
from llama_lab.inspect.accounting import on_meta, part_of
from llama_lab.model.decoder import Decoder
from llama_lab.studies.planned_arms import PlannedArm

Receipt = Mapping[str, Any]
BLOCK = 1 << 16


def refuse_other_work(
    planned: PlannedArm, base: PlannedArm, seed: int, receipts: Mapping[str, Receipt]
) -> None:
    """Hold a run against the plan, and against the base's run of the same seed.

    Args:
        planned: The run's arm.
        base: The study's base.
        seed: The run's seed.
        receipts: Of this seed's runs, by arm.

    Raises:
        RunError: It names what differs, with both values.
    """
    receipt = receipts[planned.arm.name]
    where = f"study stopped: arm {planned.arm.name}, seed {seed}"
    _same(where, "token store", receipt["store"]["sha256"], planned.store.digest)
    _same(where, "sequences consumed", receipt["sequences"], planned.steps * planned.batch_size)
    _same(
        where,
        "order of the data",
        receipt["order"],
        expected_order(planned, seed + planned.arm.seed_offset),
    )
    reference = receipts.get(base.arm.name)
    if reference is None or planned is base:
        return
    _same(where, "threads", receipt["device"]["threads"], reference["device"]["threads"])
    for part in comparable_parts(planned, base):
        _same(
            f"{where}: against the base",
            f"initial weights of {part}",
            receipt["initial_weights"].get(part),
            reference["initial_weights"].get(part),
        )


def _same(where: str, what: str, here: Any, there: Any) -> None:
    if here != there:
        raise RunError(
            f"{where}: {what} {here} where {there} was due; the runs did not do the same work: "
            "delete this run's folder and start the study again"
        )


def expected_order(planned: PlannedArm, seed: int) -> str:
    """The digest of the order that the arm's sequences must have been read in."""
    import numpy as np

    windows = TrainingWindows(len(planned.store.train), planned.context, seed)
    digest, total = OrderDigest(), planned.steps * planned.batch_size
    for first in range(0, total, BLOCK):
        sequences = np.arange(first, min(total, first + BLOCK), dtype=np.int64)
        digest.update(sequences, windows.starts(sequences))
    return f"{digest.value:032x}"


def comparable_parts(planned: PlannedArm, base: PlannedArm) -> list[str]:
    """Parts whose tensors have the same names and shapes in both, and are drawn alike.

    A tensor is drawn from (seed, its name), its shape and the scheme; some schemes scale by the
    number of layers.
    """
    here, there = planned.decoder, base.decoder
    alike = here.init == there.init and here.n_layers == there.n_layers
    alike = alike and planned.arm.seed_offset == base.arm.seed_offset
    imported = any(arm.settings.get("model.init_from") for arm in (planned, base))
    if not alike or imported:
        return []
    shapes = [_shapes(on_meta(decoder)) for decoder in (here, there)]
    return [part for part in shapes[0] if shapes[0][part] == shapes[1].get(part)]


def _shapes(decoder: Decoder) -> dict[str, dict[str, tuple[int, ...]]]:
    parts: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, parameter in decoder.named_parameters():
        parts.setdefault(part_of(name), {})[name] = tuple(parameter.shape)
    return parts
