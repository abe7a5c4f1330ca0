"""Compressed request bodies: decoded exactly, in bounded slices, or refused."""

import gzip
import random
import zlib

import pytest
import zstandard

from gateway.openai.decoding import Decoder, DecodingError, decode

TEXT = b'{"model":"m","messages":[{"role":"user","content":"' + b"hello world, " * 40_000 + b'"}]}'
NOISE = random.Random(7).randbytes(700_000)
LIMIT = 8 * 1024 * 1024


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def zstd_stream(data: bytes) -> bytes:
    """A frame of unknown size with a checksum, flushed after each piece as streaming clients do."""
    packer = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    pieces = [packer.compress(data[at : at + 9000]) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for at in range(0, len(data), 9000)]
    return b"".join(pieces) + packer.flush()


PACKERS = {
    b"gzip": gzip.compress,
    b"X-Gzip": gzip.compress,
    b"deflate": zlib.compress,
    b" Deflate\t": raw_deflate,
    b"zstd": zstandard.ZstdCompressor().compress,
    b"ZSTD": zstd_stream,
    b"identity": bytes,
}
CODED = [pytest.param(coding, pack, id=repr(coding)) for coding, pack in PACKERS.items()]
PACKED = CODED[:-1]


def code_of(encoding: bytes, body: bytes, limit: int = LIMIT) -> str:
    with pytest.raises(DecodingError) as caught:
        decode(encoding, body, limit)
    return caught.value.code


@pytest.mark.parametrize(("encoding", "pack"), CODED)
@pytest.mark.parametrize("data", [b"", b"{}", TEXT, NOISE], ids=["empty", "tiny", "text", "noise"])
def test_bodies_decode_to_what_was_packed(encoding: bytes, pack, data: bytes) -> None:
    """Each coding, in any letter case, gives the original bytes."""
    assert decode(encoding, pack(data), LIMIT) == data


@pytest.mark.parametrize(("encoding", "pack"), PACKED)
def test_slices_are_small(encoding: bytes, pack) -> None:
    """A caller gets control back after every quarter megabyte."""
    sizes = [len(piece) for piece in Decoder(encoding, LIMIT).slices(pack(TEXT * 4))]
    assert max(sizes) <= 256 * 1024
    assert sum(sizes) == 4 * len(TEXT)


@pytest.mark.parametrize(("encoding", "pack"), CODED)
def test_the_limit_is_exact(encoding: bytes, pack) -> None:
    """A body of exactly the limit passes, one byte more is 413."""
    packed = pack(TEXT)
    assert decode(encoding, packed, len(TEXT)) == TEXT
    assert code_of(encoding, packed, len(TEXT) - 1) == "body_too_large"


@pytest.mark.parametrize(("encoding", "pack"), PACKED)
def test_bombs_stop_at_the_limit(encoding: bytes, pack) -> None:
    """A small body of gigabytes is refused after the limit, not after unpacking it."""
    taken: list[int] = []
    slices = Decoder(encoding, 1_000_000).slices(pack(bytes(16 * 1024 * 1024)))
    with pytest.raises(DecodingError, match="larger than the limit"):
        taken.extend(map(len, slices))
    assert sum(taken) <= 1_000_000


@pytest.mark.parametrize(("encoding", "pack"), PACKED)
def test_a_cut_body_is_refused_at_every_length(encoding: bytes, pack) -> None:
    """No prefix of a packed body passes for the whole."""
    packed = pack(b'{"model":"m","prompt":"some text, some text"}')
    assert {code_of(encoding, packed[:n]) for n in range(len(packed))} == {"invalid_request"}


@pytest.mark.parametrize(("encoding", "pack"), PACKED)
@pytest.mark.parametrize("tail", [b"\0", b"x", b"junk" * 50_000])
def test_trailing_bytes_are_refused(encoding: bytes, pack, tail: bytes) -> None:
    """Nothing may follow the packed body, be it garbage or a second body."""
    packed = pack(TEXT)
    assert code_of(encoding, packed + tail) == "invalid_request"
    assert code_of(encoding, packed + packed) == "invalid_request"


def test_trailing_bytes_are_refused_behind_a_full_input_step() -> None:
    """Where the packed body ends makes no difference."""
    packed = gzip.compress(b"{}")
    named = packed[:3] + b"\x08" + packed[4:10] + b"n" * (64 * 1024 - len(packed) - 1) + b"\0" + packed[10:]
    assert decode(b"gzip", named, LIMIT) == b"{}"
    assert code_of(b"gzip", named + b"x") == "invalid_request"


@pytest.mark.parametrize(("encoding", "pack"), [p for p in PACKED if p.values[1] in (gzip.compress, zlib.compress, zstd_stream)])
def test_checksums_are_checked(encoding: bytes, pack) -> None:
    """A flipped bit in a checksummed body is found."""
    packed = bytearray(pack(NOISE))
    packed[-2] ^= 1
    assert code_of(encoding, bytes(packed)) == "invalid_request"


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"zstd"])
@pytest.mark.parametrize("body", [b"{}", b"\xff" * 100, TEXT, b"\x28\xb5\x2f\xfd" + b"\xff" * 64, b"\x28\xb5\x2f\xfd\0"])
def test_plain_or_mangled_bodies_are_refused(encoding: bytes, body: bytes) -> None:
    """A body that is not what its header says is 400."""
    assert code_of(encoding, body) == "invalid_request"


@pytest.mark.parametrize("encoding", [b"br", b"gzip, gzip", b"gzip,", b"", b"gzip;q=1", b"zstd, identity", b"compress", b"\xff"])
def test_other_codings_and_layers_are_unsupported(encoding: bytes) -> None:
    """Exactly one known coding; anything else is 415."""
    assert code_of(encoding, b"x") == "unsupported_encoding"


def test_zstd_windows_are_capped() -> None:
    """A frame that wants a window beyond 8 MB is refused before memory is taken for it."""
    parameters = zstandard.ZstdCompressionParameters(window_log=24)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = packer.compress(NOISE) + packer.flush()
    assert code_of(b"zstd", packed) == "invalid_request"


def test_zstd_frames_of_empty_blocks_are_refused() -> None:
    """Millions of empty blocks cost time and say nothing."""
    head = b"\x28\xb5\x2f\xfd\x00\x58"
    assert decode(b"zstd", head + bytes(3) * 1000 + b"\x01\0\0", LIMIT) == b""
    assert code_of(b"zstd", head + bytes(3) * 70_000 + b"\x01\0\0") == "invalid_request"
