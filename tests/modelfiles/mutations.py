"""Random changes to files of models and streams, each loaded: `python mutations.py COUNT SEED FOLDER`.

A program of its own, so that its memory can be limited. Every change must be loaded or refused by `FileFormatError`;
the last line it prints says how many were, and what took the most time and memory.
"""

import copy
import json
import random
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import nn

import plmu
from plmu import LMU, DelayLayer, ParallelLMU, Residual, Sequential, Stream

MEMORY = 200 << 20  # beyond what the imports take
SMALL = {"order": 4, "theta": 7.0}
SYSTEM = plmu.LinearSystem([[0.9, 0.3], [-0.3, 0.9]], [0.1, 0.5])
SHARED = nn.Linear(3, 3)


def model() -> Sequential:
    torch.manual_seed(0)
    return Sequential(
        nn.Sequential(SHARED, nn.Dropout(0.1), nn.LayerNorm(3), nn.Softmax(-1)),
        Residual(ParallelLMU(3, 3, order=4, theta=[3.0, 9.0, 12.0], memory_size=3, trainable="theta")),
        SHARED,
        LMU(3, 4, **SMALL),
        DelayLayer(4, system=SYSTEM),
    )


def tokens() -> Sequential:
    return Sequential(nn.Embedding(9, 32, padding_idx=1), ParallelLMU(32, 4, **SMALL, gated=True), nn.GELU())


HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 1.5, 1e-300, 1e300, float("nan"), float("inf"), -float("inf"), 1000, 1024, 4096,
    10**6, 2**31, 2**40, 2**62, 2**63, 2**64, 10**30, 10**400, -(2**63), "", "relu", "Linear", "Sequential",
    ".systems.0", "a" * 1000, "\ud800", [], [1], [[1]], [9.0] * 1000, [[]] * 1000, {}, {"system": ".systems.0"},
    {"class": "ReLU"},
    {"class": "Linear", "config": {"in_features": 2**20, "out_features": 2**20}},
    {"class": "DelayLayer", "config": {"channels": 1, "order": 3000, "theta": 9.0}},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where there are values within a description."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [place for key, one in inside for place in places(one, (*path, key))]


def changed_description(content: bytes, rng: random.Random) -> bytes:
    """The description with one to three values replaced, removed, doubled or wrapped many times."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    description = json.loads(header["__metadata__"]["plmu"])
    for _ in range(rng.choice((1, 1, 2, 3))):
        *path, last = rng.choice(places(description) or [("kind",)])
        owner = description
        for key in path:
            owner = owner[key]
        kind = rng.randrange(10)
        if kind == 0:
            del owner[last]
        elif kind == 1 and isinstance(owner, list):
            owner.extend([owner[last]] * rng.choice((1, 2, 1000)))
        elif kind == 2:
            owner[last] = [owner[last]] * rng.choice((1, 2, 100))
        elif kind == 3 and isinstance(owner, dict):
            owner[rng.choice(("device", "dtype", "names", "order", "theta", "system", "x"))] = copy.deepcopy(
                rng.choice(HOSTILE)
            )
        elif kind == 4 and isinstance(owner[last], int | float) and abs(owner[last]) < 1e9:
            owner[last] = owner[last] * rng.choice((-1, 2, 10, 100, 1000)) + rng.choice((-1, 0, 1))
        else:
            owner[last] = copy.deepcopy(rng.choice(HOSTILE))
    text = json.dumps(description)
    if rng.randrange(20) == 0:
        deep = rng.choice((50, 500, 50_000))
        text = rng.choice(("[" * deep + "]" * deep, '{"modules":[' * deep, text * 2, text[: len(text) // 2]))
    header["__metadata__"]["plmu"] = text
    return packed(header, content[8 + length :])


def changed_header(content: bytes, rng: random.Random) -> bytes:
    """A tensor's declared shape, type or place replaced."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    name = rng.choice([one for one in header if one != "__metadata__"])
    entry = header[name]
    kind = rng.randrange(6)
    if kind == 0:
        header[rng.choice(("x", "state.7", "last", ".systems.9.A", "layers.0.weight"))] = header.pop(name)
    elif kind == 1:
        entry["dtype"] = rng.choice(("I32", "U32", "F32", "I64", "F64", "BOOL", "C64", "F8_E4M3", "F4", "x"))
    elif kind == 2:
        entry["shape"] = [*entry["shape"], 1]
    elif kind == 3:
        entry["shape"] = rng.choice(([0], [2**40, 0], [2**62, 4], [], [-1], [1] * 100))
    elif kind == 4:
        entry["shape"] = entry["shape"][::-1]
    else:
        entry["data_offsets"] = rng.choice(([0, 0], [0, 2**40], [8, 4], entry["data_offsets"][::-1]))
    return packed(header, content[8 + length :])


def changed_batch(content: bytes, rng: random.Random) -> bytes:
    """The last sample of a stream as a large batch, with a state of as many sequences, of one, or none."""
    tensors = load(content)
    if "last" not in tensors:
        return changed_header(content, rng)
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    metadata["plmu"] = metadata["plmu"].replace('"single": true', '"single": false')
    size, kind = rng.choice((2, 1000, 500_000)), rng.randrange(4)
    for name in tensors:
        if name == "last" or (kind == 0 and size <= 1000):
            tensors[name] = tensors[name].repeat(size, *(1,) * (tensors[name].dim() - 1))
    if kind == 1:
        tensors = {"last": tensors["last"]}
    elif kind == 2:
        tensors["last"] = tensors["last"].to(rng.choice((torch.int32, torch.uint8, torch.float16, torch.bool)))
    return save(tensors, metadata)


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    """Some bytes of the header or of the body changed, inserted or cut off."""
    changed = bytearray(content)
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(rng.choice((1, 1, 4, 16))):
        place = rng.randrange(*((0, min(header, len(changed))) if rng.randrange(3) else (0, len(changed))))
        if rng.randrange(8):
            changed[place] = rng.choice((rng.randrange(256), *b'0123456789-"{}[],:tfn'))
        elif rng.randrange(2):
            changed[place:place] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 8))))
        elif len(changed) > 16:
            del changed[-rng.randrange(1, len(changed) // 2) :]
    if not rng.randrange(4):  # NaN and infinity in the body
        changed[-8:] = rng.choice((b"\xff" * 8, b"\x00\x00\x80\x7f" * 2))
    return bytes(changed)


def packed(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def largest() -> list[bytes]:
    """Descriptions that take about as long to build as any that is built, without tensors."""
    order, many = {"channels": 1, "order": 1024, "theta": 60.0}, {"channels": 900, "order": 1, "theta": [9.0] * 900}
    models = [{"class": "DelayLayer", "config": config} for config in (order, many)]
    small = {"class": "DelayLayer", "config": {"channels": 1, **SMALL}}
    models.append({"class": "torch.Sequential", "modules": [small] * 500})
    models.append({"class": "torch.Sequential", "modules": [{"class": "ReLU", "config": {}}] * 7900})
    description = {"format": 1, "kind": "model", "tied": {}}
    return [save({}, {"plmu": json.dumps({**description, "model": one})}) for one in models]


def attempt(read: Callable[[], object]) -> bool:
    try:
        read()
    except plmu.FileFormatError as error:
        if "allocate" in str(error):
            raise MemoryError(str(error)) from error
        if len(str(error)) > 2000:
            raise RuntimeError("an error of that length cannot be read") from error
        return False
    return True


def main(count: int, seed: int, folder: Path) -> None:
    rng = random.Random(seed)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # streams without a fingerprint
    readers: list[tuple[bytes, Callable[[Path], object]]] = []
    for build, sample in ((model, [1.0, 2.0, 3.0]), (tokens, 3)):
        one = build()
        plmu.save(one, folder / "model")
        stream = Stream(one, missing="hold")
        stream.push(sample)
        stream.save(folder / "stream")
        readers.append(((folder / "model").read_bytes(), plmu.load))
        readers.append(((folder / "model").read_bytes(), lambda path, one=one: plmu.load_into(one, path)))
        readers.append(((folder / "stream").read_bytes(), lambda path, one=one: Stream.restore(one, path)))
    for content, read in readers:
        (folder / "whole").write_bytes(content)
        read(folder / "whole")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loaded, slowest = 0, 0.0
    path, costly = folder / "changed", largest()
    for number in range(count):
        content, read = readers[rng.choice((0, 0, 1, 2, 3, 3, 4, 5))]
        change = rng.choice((changed_description, changed_description, changed_header, changed_bytes, changed_batch))
        path.write_bytes(change(content, rng))
        if number < len(costly):
            path.write_bytes(costly[number])
            read = plmu.load
        begin = time.process_time()
        try:
            loaded += attempt(lambda read=read, path=path: read(path))
        except BaseException as error:
            (folder / "failed").write_bytes(path.read_bytes())
            raise AssertionError(f"change {number} of seed {seed}: {type(error).__name__}: {error}") from error
        slowest = max(slowest, time.process_time() - begin)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{loaded} of {count} loaded, the others refused; at most {slowest:.2f} s of a core and {grown:.0f} MiB more")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
