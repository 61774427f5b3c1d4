"""Decompress a body in pieces, with a limit on its size."""

from __future__ import annotations

import zlib

#: zlib detects gzip or zlib.
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class InvalidCompression(Exception):
    """The pieces are not valid in this encoding."""


class Unpacker:
    """Collects the pieces of a body with the content encoding ``identity`` or ``gzip``.

    A small piece can unpack to a thousand times its size: at most ``limit`` + 1 bytes are produced. Raises
    ``InvalidCompression``.
    """

    def __init__(self, encoding: str, *, limit: int) -> None:
        if encoding not in {"", "identity", "gzip", "x-gzip"}:
            raise InvalidCompression("its encoding was not requested")
        self._gzip = zlib.decompressobj(_GZIP_OR_ZLIB) if encoding.endswith("gzip") else None
        self._limit = limit
        self._fed = False
        self._body = bytearray()

    @property
    def has_overflowed(self) -> bool:
        """Return whether the body exceeds the limit."""
        return len(self._body) > self._limit

    def feed(self, piece: bytes) -> None:
        """Add the next piece. Bytes beyond the limit are dropped."""
        if self._gzip is None:
            self._body += piece[: self._room]
            return
        self._fed = self._fed or bool(piece)
        try:
            while piece and self._room:
                if self._gzip.eof:  # a body may be several concatenated gzip files (RFC 1952)
                    self._gzip = zlib.decompressobj(_GZIP_OR_ZLIB)
                self._body += self._gzip.decompress(piece, self._room)
                piece = self._gzip.unconsumed_tail or self._gzip.unused_data
        except zlib.error as error:
            raise InvalidCompression("it is damaged") from error

    def finish(self) -> bytes:
        """Return the complete body."""
        if self._gzip is not None and self._fed and not self._gzip.eof:
            raise InvalidCompression("it is incomplete")
        return bytes(self._body)

    @property
    def _room(self) -> int:
        return self._limit + 1 - len(self._body)
