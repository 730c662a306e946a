"""Datasets by Hugging Face's library: from the Hub, or a folder that it saved or can load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llama_lab.data.corpus.built_in import one_line, shown
from llama_lab.data.corpus.readers.parquet import refuse_column
from llama_lab.data.corpus.readers.records import Piece, Records
from llama_lab.errors import UserError

SCHEME = "hf://"
FORM = re.compile(r"(?P<name>[^:@]+|[A-Za-z]:[^:@]+)(:(?P<config>[^@]+))?(@(?P<split>.+))?")


def read_dataset(address: str, records: Records) -> Iterator[Piece]:
    """The rows of ``hf://NAME[:CONFIG][@SPLIT]``; the split is ``train`` where none is named.

    NAME is a dataset of the Hub (``owner/name``) or the path of a folder.

    Raises:
        UserError: The library is not installed, there is no such dataset, configuration or split,
            or the column is not there or holds no text.
    """
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"{records.request.flag(records.request.setting)} {shown(address)} needs the package "
            "datasets: pip install 'llama-lab[datasets]'"
        ) from error
    rows = _loaded(datasets, address, records)
    refuse_column(rows.features.arrow_schema, address, records)
    number = 0
    for batch in rows.select_columns([records.field]).iter(batch_size=1024):
        for value in batch[records.field]:
            number += 1
            yield from records.take(value, f"{address}, row {number}")


def _loaded(datasets: Any, address: str, records: Records) -> Any:
    form = FORM.fullmatch(address.removeprefix(SCHEME))
    if form is None:
        raise records.request.error(
            shown(address), "is no hf://NAME[:CONFIG][@SPLIT]; write it in this form"
        )
    name, config, split = form["name"], form["config"], form["split"] or "train"
    datasets.disable_progress_bars()
    try:
        if (Path(name) / "dataset_info.json").is_file() or (Path(name) / "state.json").is_file():
            return datasets.load_from_disk(name)
        if (Path(name) / "dataset_dict.json").is_file():
            return datasets.load_from_disk(name)[split]
        return datasets.load_dataset(name, config, split=split)
    except Exception as error:  # the library, the network and the file system fail in many ways
        raise records.request.error(
            shown(address),
            f"cannot be loaded ({type(error).__name__}: {one_line(error)[:200]}); "
            "look at the name, the configuration, the split and the network",
        ) from error
