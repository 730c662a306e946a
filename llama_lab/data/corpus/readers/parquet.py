"""Parquet files, a batch of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llama_lab.data.corpus.built_in import one_line, shown
from llama_lab.data.corpus.readers.records import Piece, Records
from llama_lab.errors import UserError

ROWS_AT_ONCE = 1024


def read_parquet(
    path: Path, name: str, records: Records, count: Callable[[int], None]
) -> Iterator[Piece]:
    """The text column's rows.

    Raises:
        UserError: pyarrow is not installed, the file is broken, or the column is not there or holds
            no text.
    """
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UserError(
            "files that end in .parquet need the package pyarrow: pip install 'llama-lab[corpora]'"
        ) from error
    request, row = records.request, 0
    try:
        with parquet.ParquetFile(path) as file:
            refuse_column(file.schema_arrow, name, records)
            rows = max(1, file.metadata.num_rows)
            size, said = path.stat().st_size, 0
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=[records.field]):
                for value in batch.column(0).to_pylist():
                    row += 1
                    yield from records.take(value, f"{name}, row {row}")
                count(size * row // rows - said)
                said = size * row // rows
    except pyarrow.ArrowException as error:
        raise request.error(
            name, f"cannot be read as Parquet ({one_line(error)}); get it anew"
        ) from error
    except OSError as error:
        raise request.error(
            name, f"cannot be read ({error.strerror or one_line(error)}); get it anew"
        ) from error


def refuse_column(schema: Any, name: str, records: Records) -> None:
    """Refuse an Arrow schema whose text column is missing or of another type."""
    from pyarrow import types

    if records.field not in schema.names:
        raise records.request.error(name, records.missing([shown(n) for n in schema.names]))
    kind = schema.field(records.field).type
    inner = kind.value_type if types.is_dictionary(kind) else kind
    is_text = types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner)
    if not is_text and not types.is_null(inner):
        raise records.request.error(
            name,
            f"the column {records.field!r} is not text ({kind}); name another with "
            f"{records.request.flag('text_field')} (there is: {', '.join(schema.names)})",
        )
