"""Recorded files, good ones and such as unpack to too much: traces as numpy's archives, times as JSON."""

import io
import json
import zipfile
import zlib

import numpy as np

__all__ = ["LATENCY", "META", "archive", "four_gigabytes", "header", "meta", "npy"]

LATENCY = {
    "version": 1,
    "batches": {
        "1": {"verify_ms": {"1": 1.0, "99": 2.0}, "laws": {"any": {"level_ms": 0.1}}},
    },
}
META = {
    "version": 1, "law": "deterministic", "rule": "greedy", "sampling": {"temperature": 0.0},
    "width": 2, "forced": False, "about": {},
}  # fmt: skip


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def header(kind, shape, data=b""):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": kind, "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + data


def meta(text):
    return npy(np.frombuffer(text.encode(), np.uint8))


def archive(packing=zipfile.ZIP_DEFLATED, **changed):
    """A trace of eight positions, or one with other members."""
    members = {
        "offsets": npy(np.array([0, 8], "<i8")),
        "tokens": npy(np.zeros(8, "<i4")),
        "ranks": npy(np.zeros(8, "<i4")),
        "probs": npy(np.full((8, 2), 0.5, "<f4")),
        "accepted": npy(np.full((8, 2), 0.25, "<f4")),
        "kept": npy(np.array([8], "<i8")),
        "meta": meta(json.dumps(META)),
    } | changed
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", packing) as packed:
        for name, data in members.items():
            packed.writestr(f"{name}.npy", data)
    return file.getvalue()


def four_gigabytes():
    """A whole trace whose probabilities unpack to 4 GiB of zeros, from four megabytes."""
    size = 2**32 - 2**20
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = packer.compress(header("<f4", (size // 8, 2))) + packer.flush(zlib.Z_FULL_FLUSH)
    block = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = block.compress(bytes(2**20)) + block.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    bomb = start + zeros * (size // 2**20) + end
    whole = bytearray(archive(zipfile.ZIP_STORED, probs=bomb))
    at = whole.index(b"probs.npy") - 30  # the local header, then the one in the directory
    for place, first in ((at, 8), (whole.rindex(b"probs.npy") - 46, 10)):
        whole[place + first : place + first + 2] = (8).to_bytes(2, "little")
        sizes = place + first + 10
        whole[sizes + 4 : sizes + 8] = size.to_bytes(4, "little")
    return bytes(whole)
