"""Bytes of a file, unpacked, and text of bytes, decoded strictly."""

from __future__ import annotations

import codecs
import gzip
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

from llama_lab.data.corpus.built_in import one_line, shown
from llama_lab.data.corpus.readers.records import SourceRequest
from llama_lab.errors import UserError

CHUNK_BYTES = 1 << 20

# UTF-32-LE begins with the two bytes of UTF-16-LE, so the longer marks are tried first.
WIDE_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# These codecs take the mark away themselves; a second U+FEFF after it belongs to the text.
CODECS_THAT_DROP_THE_MARK = frozenset({"utf-8-sig", "utf-16", "utf-32"})
UTF_8 = frozenset({"utf-8", "utf-8-sig"})


class Counted:
    """A binary file that says how many of its own bytes have been read."""

    def __init__(self, file: IO[bytes], count: Callable[[int], None]) -> None:
        self.file, self.count = file, count

    def read(self, size: int = -1) -> bytes:
        """As a file's."""
        data = self.file.read(size)
        self.count(len(data))
        return data

    def readable(self) -> bool:
        """For the decompressors."""
        return True


def _zstd() -> Any:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(
            "files that end in .zst need the package backports.zstd: "
            "pip install 'llama-lab[corpora]'"
        ) from error


def _unpacked_zstd(file: Any) -> Any:
    """With the largest window that the library has: its default refuses what ``--long=28`` packs.

    It takes as much memory as the window that the file asks for.
    """
    largest = _zstd().DecompressionParameter.window_log_max
    return _zstd().ZstdFile(file, options={largest: largest.bounds()[1]})


UNPACKERS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file, mode="rb"),
    ".zst": _unpacked_zstd,
}
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def packing_of(path: Path) -> str | None:
    """The ending that says how a file is packed, if it is."""
    ending = path.suffix.lower()
    return ending if ending in UNPACKERS else None


@contextmanager
def opened(path: Path, request: SourceRequest, count: Callable[[int], None]) -> Iterator[IO[bytes]]:
    """The unpacked bytes of a file.

    Raises:
        UserError: It cannot be read, or what it is packed in is broken.
    """
    packing = packing_of(path)
    try:
        with open(path, "rb") as file:
            counted = cast(IO[bytes], Counted(file, count))
            yield counted if packing is None else UNPACKERS[packing](counted)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _broken(request, path, packing, error) from error
    except OSError as error:
        raise request.error(
            shown(path),
            f"cannot be read ({error.strerror or one_line(error)}); make it readable or name "
            "another file",
        ) from error
    except Exception as error:
        if packing == ".zst" and type(error).__name__ == "ZstdError":
            if "memory" in str(error):  # both of a window that is refused and of one too large
                raise _too_wide(request, path, error) from error
            raise _broken(request, path, packing, error) from error
        raise


def _too_wide(request: SourceRequest, path: Path, error: Exception) -> UserError:
    bounds = _zstd().DecompressionParameter.window_log_max.bounds()
    window = zstd_window(path)
    words = "a window that is not known" if window is None else f"a window of {window:,} bytes"
    return request.error(
        shown(path),
        f"needs {words} of memory to be unpacked, but the zstd here takes windows up to "
        f"2^{bounds[1]} bytes, where there is room ({one_line(error)}); unpack it elsewhere with "
        "`zstd -d --long=31`, or pack it anew without --long",
    )


def zstd_window(path: Path) -> int | None:
    """Bytes of the window that the first frame asks for (RFC 8878, section 3.1.1.1).

    ``None`` where the file is a pipe or does not begin with such a frame.
    """
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        head = file.read(18)
    if head[:4] != ZSTD_MAGIC or len(head) < 6:
        return None
    single_segment = head[4] & 0x20
    if not single_segment:
        exponent, mantissa = head[5] >> 3, head[5] & 7
        base = 1 << (10 + exponent)
        return base + base // 8 * mantissa
    # The window is the content, whose size stands behind the dictionary's number.
    at = 5 + (0, 1, 2, 4)[head[4] & 3]
    n_bytes = (1, 2, 4, 8)[head[4] >> 6]
    return int.from_bytes(head[at : at + n_bytes], "little") + (256 if n_bytes == 2 else 0)


def _broken(
    request: SourceRequest, path: Path, packing: str | None, error: BaseException
) -> UserError:
    return request.error(
        shown(path),
        f"what the {packing} file holds is cut off or broken ({one_line(error)}); "
        "get it anew, or unpack what is whole of it",
    )


class Decoding:
    """Bytes in parts to text, strictly; a leading byte-order mark is dropped.

    Args:
        name: Of the file, for errors.
        request: Names the encoding.
    """

    def __init__(self, name: str, request: SourceRequest) -> None:
        self.name, self.request = name, request
        self.codec = codec_name(request)
        self.decoder = codecs.getincrementaldecoder(self.codec)()
        self.fed = 0
        self.given = 0
        self.at_start = True

    def feed(self, data: bytes, *, final: bool = False) -> str:
        """The text that is whole so far and was not given yet.

        Raises:
            UserError: A byte is not valid under the encoding.
        """
        if self.fed == 0:
            refuse_wide_mark(data, self.codec, self.name, self.request)
        waiting = self.decoder.getstate()[0]
        try:
            text = self.decoder.decode(data, final)
        except UnicodeDecodeError as error:
            offset = self.fed - len(waiting) + error.start
            raise invalid_byte(self.request, self.name, self.codec, error, offset) from error
        except UnicodeError as error:
            raise self.request.error(
                self.name,
                f"cannot be read as {self.codec} ({one_line(error)}); "
                f"name the file's own encoding with {self.request.flag('encoding')}",
            ) from error
        self.fed += len(data)
        if self.at_start and text:
            self.at_start = False
            if self.codec not in CODECS_THAT_DROP_THE_MARK:
                text = text.removeprefix("\ufeff")
        self._refuse_surrogates(text)
        self.given += len(text)
        return text

    def _refuse_surrogates(self, text: str) -> None:
        # utf-7 and unicode_escape can yield halves of surrogate pairs, which UTF-8 cannot hold.
        if self.codec in UTF_8 or text.isascii():
            return
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise self.request.error(
                self.name,
                f"character {self.given + error.start} is "
                f"U+{ord(text[error.start]):04X}, half of a surrogate pair, under "
                f"{self.request.flag('encoding')} {self.codec}; mend the file or name its true "
                "encoding",
            ) from error


def decoded(file: IO[bytes], decoding: Decoding) -> Iterator[str]:
    """The text of ``file``, a chunk at a time; chunks may be empty."""
    while data := file.read(CHUNK_BYTES):
        yield decoding.feed(data)
    yield decoding.feed(b"", final=True)


def codec_name(request: SourceRequest) -> str:
    """The codec of the encoding that is asked for.

    Raises:
        UserError: Python knows none that decodes text.
    """
    encoding = request.encoding
    try:
        codec = codecs.lookup("utf-8" if encoding is None else encoding).name
        # `hex`, `rot13` and the like are codecs but decode no text, which shows only at work.
        b" ".decode(codec, errors="replace")
        codecs.getincrementaldecoder(codec)
    except (LookupError, ValueError) as error:
        raise UserError(
            f"{request.flag('encoding')} {shown(encoding)} is not a text encoding that Python "
            "knows; name one, such as utf-8, utf-16, latin-1, cp1252 or gbk"
        ) from error
    return codec


def invalid_byte(
    request: SourceRequest, name: str, codec: str, error: UnicodeDecodeError, offset: int
) -> UserError:
    """The refusal of a byte at ``offset`` of the (unpacked) file."""
    byte = error.object[error.start]
    example = " (cp1252, gbk, …)" if request.encoding is None else ""
    return request.error(
        name,
        f"byte 0x{byte:02X} at offset {offset} is not valid {codec.upper()} ({error.reason}); "
        f"mend the file or name its true encoding with {request.flag('encoding')}{example}",
    )


def refuse_wide_mark(data: bytes, codec: str, name: str, request: SourceRequest) -> None:
    """Refuse as UTF-8 what begins with the byte-order mark of UTF-16 or UTF-32."""
    for mark, encoding in WIDE_BYTE_ORDER_MARKS if codec in UTF_8 else ():
        if data.startswith(mark):
            raise request.error(
                name,
                f"byte 0x{data[0]:02X} at offset 0 begins a byte-order mark of "
                f"{encoding.upper()}, not valid UTF-8; set {request.flag('encoding')} {encoding}",
            )
