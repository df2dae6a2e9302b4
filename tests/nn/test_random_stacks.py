"""Random stacks of all layers give the outputs of their recurrences, in every way they can be run."""

import copy
import random

import pytest
import torch
from closeness import assert_same
from layers import flat
from recurrences import outputs_of
from torch import Tensor, nn

import plmu
from plmu import LMU, CausalAttention, CausalConvolution, DelayLayer, Gated, Highway, ParallelLMU, Residual, Sequential
from plmu.nn import ThresholdShares

ROUNDINGS = 4000  # products that are summed on the way to an output: of all layers, over all steps


def memory_options(draw: random.Random, channels: int) -> dict:
    thetas = [3.0, 9.0] if channels % 2 == 0 and draw.random() < 0.4 else draw.choice([2.0, 7.5, 40.0])
    trainable = draw.choice(["none"] * 3 + ["theta", "system"])
    return {"order": draw.choice([1, 2, 3, 5]), "theta": thetas, "trainable": trainable}


def layer_of(draw: random.Random, width: int, depth: int = 0) -> tuple[nn.Module, int]:
    """A layer for inputs of this width, and the width of its outputs."""
    kinds = ["linear", "act", "norm", "parallel", "parallel", "parallel", "delay", "lmu", "shares", "conv", "attention"]
    kinds += ["highway", "timed", "standardize", *(["residual", "gated", "weighted", "inner"] if depth < 2 else [])]
    kind, out = draw.choice(kinds), draw.choice([1, 2, 4])
    if kind == "linear":
        return nn.Linear(width, out, bias=draw.random() < 0.7), out
    if kind == "act":
        return draw.choice([nn.Tanh(), nn.GELU(), nn.PReLU(), nn.Dropout(0.3), nn.Identity(), nn.ReLU()]), width
    if kind == "norm":
        return draw.choice([nn.LayerNorm, nn.RMSNorm])(width), width
    if kind == "parallel":
        encoder = draw.random() < 0.7
        channels = draw.choice([1, 2, 4]) if encoder else width
        gated = encoder and draw.random() < 0.3
        channels = width if gated else channels
        options = {
            "memory_size": channels, "encoder": encoder, "gated": gated, "bias": draw.random() < 0.7,
            "input_to_output": draw.random() < 0.7, "output_activation": draw.choice([None, "relu", "tanh"]),
            "input_activation": draw.choice([None, None, "tanh"]) if encoder else None,
            "standardize": draw.random() < 0.2,
        }  # fmt: skip
        return ParallelLMU(width, out, **memory_options(draw, channels), **options), out
    if kind == "delay":
        layer = DelayLayer(width, **memory_options(draw, width))
        return layer, layer.output_size
    if kind == "lmu":
        channels = draw.choice([1, 2])
        names = ("hidden_to_memory", "memory_to_memory", "input_to_hidden", "hidden_to_hidden", "bias", "encoder_bias")
        options = {name: draw.random() < 0.6 for name in names}
        return LMU(width, out, memory_size=channels, **memory_options(draw, channels), **options), out
    if kind == "shares":
        layer = ThresholdShares(width, 2, positions=draw.choice([0, 1, 3]))
        return layer, layer.output_size
    if kind == "conv":
        return CausalConvolution(width, draw.choice([2, 4])), width
    if kind == "highway":
        return Highway(width), width
    if kind == "standardize":
        return plmu.Standardize(width), width
    if kind == "timed":
        timed = Sequential(nn.Linear(width, 2), nn.Softplus(), plmu.TimedDelayLayer(1, draw.choice([1, 3]), 6.0))
        return timed, timed[-1].output_size
    if kind == "attention":
        first = Sequential(nn.Linear(width, 4), CausalAttention(4, draw.choice([1, 2]), draw.choice([2, 5, 30])))
        return first, 4
    if kind == "inner":
        return stack_of(draw, width, depth + 1, 2)
    inner, size = layer_of(draw, width, 2)
    if kind == "gated":
        return Gated(inner, nn.Linear(width, size)), size
    if kind == "weighted":
        return plmu.WeightedStack(inner, nn.Linear(size, size), Highway(size)), size
    return Residual(Sequential(inner, nn.Linear(size, width))), width


def stack_of(draw: random.Random, width: int, depth: int, most: int) -> tuple[Sequential, int]:
    modules = []
    for _ in range(draw.randint(1, most)):
        module, width = layer_of(draw, width, depth)
        modules.append(module)
        if width > 16:
            modules.append(nn.Linear(width, 3))
            width = 3
    return Sequential(*modules), width


def model_of(seed: int) -> tuple[Sequential, bool]:
    """A stack in float64 whose weights are all random, and whether it takes tokens."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    tokens = draw.random() < 0.2
    inner, _ = stack_of(draw, 3, 0, 4)
    model = inner
    if tokens:
        first = draw.choice([nn.Embedding(7, 3), plmu.TokenDelayLayer(7, 3, 1, 4.0, return_sequences=True)])
        model = Sequential(first, *inner)
    elif draw.random() < 0.3:
        model = Sequential(nn.Linear(3, 3), *inner, missing=draw.choice(["hold", "zero"]))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if not name.endswith(("log_theta", ".A", ".B")):
                value.normal_(std=0.5)
        for module in model.modules():
            if isinstance(module, ThresholdShares):
                module.thresholds.normal_(std=0.3)
            if isinstance(module, plmu.Standardize):
                module.mean.normal_()
                module.std.uniform_(0.5, 1.5)
    return model.double().eval(), tokens


def check(seed: int) -> None:
    model, tokens = model_of(seed)
    draw, time = random.Random(seed + 1), random.Random(seed + 2).choice([1, 2, 9, 24, 70])
    x = torch.randint(7, (3, time)) if tokens else torch.randn(3, time, 3, dtype=torch.float64)
    if model.missing is not None:
        x[torch.rand(x.shape) < 0.2] = torch.nan
    resets = torch.rand(3, time) < draw.choice([0.0, 0.1, 0.3])
    lengths = torch.tensor([time, draw.randint(0, time), draw.randint(0, time)])
    expected = torch.stack([outputs_of(model, row) for row in x])
    anew = torch.stack([outputs_of(model, *both) for both in zip(x, resets, strict=True)])

    def same(actual: Tensor, wanted: Tensor) -> None:
        assert_same(actual, wanted, ROUNDINGS)

    with torch.no_grad():
        whole, end = model(x)
        same(whole, expected)
        same(model(x, resets=resets)[0], anew)
        cut = draw.randint(1, time)
        pieces, state = [], None
        for piece, marks in zip(x.split(cut, 1), resets.split(cut, 1), strict=True):
            out, state = model(piece, state, resets=marks)
            pieces.append(out)
        same(torch.cat(pieces, 1), anew)
        spoilt = x.clone()
        for row, length in enumerate(lengths.tolist()):
            spoilt[row, length:] = 3 if tokens else torch.nan
        out, state = model(spoilt, None, lengths, resets=resets)
        for row, length in enumerate(lengths.tolist()):
            same(out[row, :length], anew[row, :length])
            assert not out[row, length:].any()
            if length:
                alone = model(x[row : row + 1, :length], resets=resets[row : row + 1, :length])[1]
                for part, other in zip(flat(state), flat(alone), strict=True):
                    same(part[row : row + 1], other)
        kept = model(spoilt, end, torch.zeros(3, dtype=torch.int64))[1]
        assert all(torch.equal(part, other) for part, other in zip(flat(kept), flat(end), strict=True))
        assert model(x[:0])[0].shape == (0, *whole.shape[1:])
        same(model(x[:1])[0], expected[:1])
        folded, states = plmu.fold(model), [None, None]
        stream, sessions = plmu.Stream(model), plmu.Sessions(model, width=2, features=None if tokens else 3)
        sessions.add(), sessions.add(), sessions.add()
        for t, x_t in enumerate(x[:, :24].unbind(1)):
            for way, step in enumerate((model.step, folded.step)):
                out, states[way] = step(x_t, states[way])
                same(out, expected[:, t])
            same(stream.push(x_t), expected[:, t])
            out, taken = sessions.step([2, 0, 1], x_t[[2, 0, 1]])
            if model.missing is None or not x_t.isnan().any():
                assert taken.all()
            if taken.all():
                same(out, expected[[2, 0, 1], t])
        assert copy.deepcopy(model)(x)[0].shape == whole.shape
        for dtype in (torch.float32, torch.bfloat16):
            out, state = copy.deepcopy(model).to(dtype)(x if tokens else x.to(dtype))
            assert out.dtype == dtype
            assert not {part.dtype for part in flat(state)} - {torch.float32, torch.float64}


@pytest.mark.parametrize("seed", range(12))
def test_a_random_stack_is_its_recurrence(seed: int) -> None:
    check(seed)
