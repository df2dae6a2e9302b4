"""MNIST from its four idx files, and the permuted sequences of psMNIST."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from plmu.data.files import DataConfig, Remote, find
from plmu.data.reading import content
from plmu.errors import DataError

Array = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

HOME = "https://ossci-datasets.s3.amazonaws.com/mnist/"
# For each file: the checksum of the published .gz, that of its content, and the shape of the content.
FILES = {
    "train-images-idx3-ubyte": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        (60_000, 28, 28),
    ),
    "train-labels-idx1-ubyte": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        (60_000,),
    ),
    "t10k-images-idx3-ubyte": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        (10_000, 28, 28),
    ),
    "t10k-labels-idx1-ubyte": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        (10_000,),
    ),
}


def read_idx(path: Path, shape: tuple[int, ...], sha256: str) -> Array:
    """The bytes of an idx file, packed or plain, which must have this shape and checksum."""
    header = bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
    raw = content(path, len(header) + math.prod(shape))
    if not raw.startswith(header):
        raise DataError(f"{path} is not an idx file of shape {shape}: get it again")
    if len(raw) - len(header) != math.prod(shape):
        raise DataError(f"{path} has {len(raw) - len(header)} bytes of data instead of {math.prod(shape)}")
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise DataError(f"{path} does not have the checksum of MNIST's: get it again")
    return np.frombuffer(raw, np.uint8, offset=len(header)).reshape(shape)


def load(config: DataConfig) -> dict[str, Array]:
    """All four arrays by file name, each verified against its checksum."""
    arrays = {}
    for name, (packed, unpacked, shape) in FILES.items():
        path = find(config, "mnist", (f"{name}.gz", name), Remote(f"{HOME}{name}.gz", packed))
        arrays[name] = read_idx(path, shape, unpacked)
    return arrays


def permuted_sequences(config: DataConfig) -> tuple[tuple[Tensor, Tensor], ...]:
    """psMNIST: train, valid and test as pixels (examples, 784) in [0, 1] and labels.

    The permutation and the split are those of the LMU and NRU papers: one generator first shuffles the 60,000 training
    images, of which the first 50,000 are the training set and the last 10,000 the validation set, then the pixels.
    """
    arrays = load(config)
    generator = np.random.RandomState(50)  # the published permutation comes from this one
    shuffle, permutation = generator.permutation(60_000), generator.permutation(784)

    def sequences(images: str, labels: str) -> tuple[Tensor, Tensor]:
        pixels = arrays[images].reshape(-1, 784)[:, permutation].astype(np.float32) / 255
        return torch.from_numpy(pixels), torch.from_numpy(arrays[labels].astype(np.int64))

    x, y = sequences("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    test = sequences("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    order = torch.from_numpy(shuffle)
    return (x[order[:50_000]], y[order[:50_000]]), (x[order[50_000:]], y[order[50_000:]]), test
