"""A body that comes in pieces and packed, unpacked without ever holding more than is allowed."""

from __future__ import annotations

import zlib

#: zlib's word for "gzip or zlib, see for yourself".
_EITHER = 32 + zlib.MAX_WBITS


class PackedBadly(Exception):
    """The pieces are not what the encoding says."""


class Unpacker:
    """Takes the pieces of a body of the given content encoding; ``identity`` and ``gzip`` are known.

    A small piece can unpack to a thousand times its size: of the result at most ``limit`` bytes and one are
    ever made. Raises ``PackedBadly``.
    """

    def __init__(self, encoding: str, *, limit: int) -> None:
        if encoding not in {"", "identity", "gzip", "x-gzip"}:
            raise PackedBadly("its encoding was not asked for")
        self._gzip = zlib.decompressobj(_EITHER) if encoding.endswith("gzip") else None
        self._limit = limit
        self._fed = False
        self._body = bytearray()

    @property
    def overflowed(self) -> bool:
        """True once there is more than the limit."""
        return len(self._body) > self._limit

    def feed(self, piece: bytes) -> None:
        """Take the next piece; what goes beyond the limit is dropped."""
        if self._gzip is None:
            self._body += piece[: self._room]
            return
        self._fed = self._fed or bool(piece)
        try:
            while piece and self._room:
                if self._gzip.eof:  # a body may be several gzip files, one behind the other (RFC 1952)
                    self._gzip = zlib.decompressobj(_EITHER)
                self._body += self._gzip.decompress(piece, self._room)
                piece = self._gzip.unconsumed_tail or self._gzip.unused_data
        except zlib.error as error:
            raise PackedBadly("it is damaged") from error

    def finish(self) -> bytes:
        """The whole body."""
        if self._gzip is not None and self._fed and not self._gzip.eof:
            raise PackedBadly("it ends in the middle")
        return bytes(self._body)

    @property
    def _room(self) -> int:
        return self._limit + 1 - len(self._body)
