"""Blocks run whole, in pieces, step by step, padded, with resets, compiled and in low precision; and save."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import BLOCKS, WIDTH, WINDOWS, build, in_steps, language_model, state_after
from closeness import assert_same
from layers import assert_equal, flat, pick
from torch import Tensor, nn

import plmu
from plmu import Gated, Highway, LMUBlock, MemoryBlock, ParallelLMU, Sequential, WeightedStack

every_block = pytest.mark.parametrize("name", BLOCKS)


def gradients(block: nn.Module, x: Tensor, out: Tensor, weight: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad((out * weight).sum(), [x, *block.parameters()], materialize_grads=True))


@every_block
@pytest.mark.parametrize("time", [1, 11])
def test_whole_in_pieces_and_step_by_step(name: str, time: int) -> None:
    block = build(name)
    x = torch.randn(2, time, WIDTH, dtype=torch.float64, requires_grad=True)
    for state in (None, state_after(block, 2), state_after(block, 2, time=9)):
        whole, end = block(x, state)
        weight = torch.randn_like(whole)
        expected = gradients(block, x, whole, weight)
        steps, end_of_steps = in_steps(block, x, state)
        assert_same((steps, end_of_steps), (whole, end))
        assert_same(gradients(block, x, steps, weight), expected)
        if time > 1:
            first, middle = block(x[:, :2], state)
            second, end_of_pieces = block(x[:, 2:], middle)
            pieces = torch.cat([first, second], dim=1)
            assert_same((pieces, end_of_pieces), (whole, end))
            assert_same(gradients(block, x, pieces, weight), expected)


@every_block
def test_resets_are_separate_sequences(name: str) -> None:
    block = build(name)
    x = torch.randn(3, 14, WIDTH, dtype=torch.float64)
    starts = [[0, 5, 6, 13], [8], []]
    resets = torch.zeros(3, 14, dtype=torch.bool)
    for i, marks in enumerate(starts):
        resets[i, marks] = True
    state = state_after(block, 3)
    out, end = block(x, state, resets=resets)
    for i, marks in enumerate(starts):
        one = slice(i, i + 1)
        for start, stop in pairwise(sorted({0, *marks, 14})):
            before = None if start in marks else pick(state, one)
            alone, alone_end = block(x[one, start:stop], before)
            assert_same(out[one, start:stop], alone)
        assert_same(pick(end, one), alone_end)


@every_block
def test_padded_sequences_are_as_if_alone(name: str) -> None:
    block = build(name)
    lengths, resets = torch.tensor([12, 0, 1, 7]), torch.zeros(4, 12, dtype=torch.bool)
    resets[0, 3] = resets[3, 5] = resets[3, 9] = True  # one of them in the padding
    x = torch.randn(4, 12, WIDTH, dtype=torch.float64)
    state = state_after(block, 4)
    weight = torch.randn_like(block(x)[0])
    valid = torch.arange(12)[None, :, None] < lengths[:, None, None]
    padded = torch.where(valid, x, torch.nan).requires_grad_()
    out, end = block(padded, state, lengths, resets=resets)
    found = gradients(block, padded, out, weight)
    total = [torch.zeros_like(value) for value in found]
    for i, length in enumerate(lengths.tolist()):
        one = slice(i, i + 1)
        assert not out[i, length:].any()
        if length == 0:
            assert_equal(pick(end, i), pick(state, i))
            continue
        alone = x[one, :length].clone().requires_grad_()
        expected, expected_end = block(alone, pick(state, one), resets=resets[one, :length])
        assert_same(out[one, :length], expected)
        assert_same(pick(end, one), expected_end)
        of_x, *rest = gradients(block, alone, expected, weight[one, :length])
        total[0][one, :length] = of_x
        total[1:] = [sum_ + more for sum_, more in zip(total[1:], rest, strict=True)]
    assert_same(found, total)


@every_block
def test_gradients_flow_through_the_carried_state(name: str) -> None:
    block = build(name)
    before = torch.randn(2, 4, WIDTH, dtype=torch.float64, requires_grad=True)
    _, state = block(before)
    out, _ = block(torch.randn(2, 2, WIDTH, dtype=torch.float64), state)
    (found,) = torch.autograd.grad(out.sum() + 0 * before.sum(), [before])
    assert found.isfinite().all()
    assert bool(found.any()) == bool(flat(state))


@every_block
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision(name: str, dtype: torch.dtype) -> None:
    block = build(name, dtype)
    x = torch.randn(2, 11, WIDTH, dtype=dtype)
    with torch.no_grad():
        whole, end = block(x)
        steps, end_of_steps = in_steps(block, x, None)
    assert whole.dtype == dtype
    roundings = 1000 if dtype == torch.float32 else 40  # of at most ten products behind each other, with norms
    assert_same(steps, whole, roundings)
    for one, other in zip(flat(end_of_steps), flat(end), strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert_same(one.to(dtype), other.to(dtype), roundings)


@every_block
def test_under_autocast(name: str) -> None:
    block = build(name, torch.float32)
    x = torch.randn(2, 11, WIDTH, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole, end = block(x)
        steps, end_of_steps = in_steps(block, x, None)
    whole.float().sum().backward()
    assert all(value.grad is None or value.grad.isfinite().all() for value in block.parameters())
    assert all(part.dtype == torch.float32 for part in flat((end, end_of_steps)))
    assert_same(steps.bfloat16(), whole.bfloat16(), 40)
    assert_same(whole.bfloat16(), block(x)[0].bfloat16(), 40)


def everything() -> Sequential:
    """A language model with all blocks in it."""
    deep = WeightedStack(LMUBlock(WIDTH, 3, 4.0), MemoryBlock(WIDTH, 3, WINDOWS, kernel_size=3))
    attention = plmu.Residual(Sequential(nn.RMSNorm(WIDTH), plmu.CausalAttention(WIDTH, 2, 5)))
    return language_model(deep, MemoryBlock(WIDTH, 2, WINDOWS, heads=2), attention)


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.full)])
def test_compiled_without_a_break(backend: str) -> None:
    model = everything()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    tokens = torch.randint(11, (2, 9))
    expected, end = model(tokens)
    found, found_end = compiled(tokens)
    assert_same((found, found_end), (expected, end))
    weights = list(model.parameters())
    wanted = torch.autograd.grad(expected.square().sum(), weights)
    assert_same(torch.autograd.grad(found.square().sum(), weights), wanted)


@pytest.mark.full
def test_exported_for_every_length() -> None:
    model = everything().eval()
    sizes = {0: torch.export.Dim("batch", min=2, max=64), 1: torch.export.Dim("time", min=2, max=4000)}
    exported = torch.export.export(model, (torch.randint(11, (2, 9)),), dynamic_shapes=(sizes,)).module()
    for batch, time in ((2, 3), (3, 30)):
        tokens = torch.randint(11, (batch, time))
        assert_same(exported(tokens), model(tokens))


def test_a_stream_of_everything_is_the_whole_sequence() -> None:
    model = everything().eval()
    tokens = torch.randint(11, (3, 40))
    stream = plmu.Stream(model)
    assert_same(torch.stack([stream.push(one) for one in tokens.unbind(1)], dim=1), model(tokens)[0])


@every_block
def test_files_and_streams(name: str, path: Path) -> None:
    """A model comes back as it was, and its stream, stopped and restored, gives what `forward` gives."""
    block = build(name, torch.float32)
    model = Sequential(nn.Linear(2, WIDTH), block, nn.Dropout(0.5)).eval()
    plmu.save(model, path)
    again = plmu.load(path).eval()
    x = torch.randn(2, 9, 2)
    expected = model(x)[0].detach()
    assert torch.equal(again(x)[0], expected)
    stream = plmu.Stream(model)
    out = [stream.push(one) for one in x[:, :5].unbind(1)]
    stream.save(path.with_name("stream"))
    restored = plmu.Stream.restore(again, path.with_name("stream"))
    out += [restored.push(one) for one in x[:, 5:].unbind(1)]
    assert_same(torch.stack(out, dim=1), expected)
    folded = plmu.fold(model)
    assert_same(folded.step(x[:, 5], model(x[:, :5])[1])[0], expected[:, 5])  # from the model's own state
    other = build(name, torch.float32)
    torch.nn.init.normal_(next(iter(other.parameters())))
    with pytest.raises(plmu.FileFormatError, match="another model"):
        plmu.Stream.restore(Sequential(model[0], other, nn.Dropout(0.5)), path.with_name("stream"))


def test_folded_blocks_are_named_arrays() -> None:
    """None stays a copy of its module, attention alone excepted."""
    kinds = {
        name: {key.split(".")[-1] for key in plmu.fold(build(name)).arrays()} for name in BLOCKS if "att" not in name
    }
    assert kinds["highway"] == {"weight", "bias"}
    norm = {"floor", "scale"}
    assert kinds["memory"] == {"weight", "matrix", "readout"} | norm
    assert kinds["memory, selective"] == {"weight", "bias", "matrix"} | norm
    assert kinds["convolution"] == {"weight"}
    assert kinds["weighted"] == {"weight", "weights", "bias", "matrix", "readout", "input_weight"} | norm


def test_weights_tied_to_the_embedding_are_saved_once(path: Path) -> None:
    model = language_model(MemoryBlock(WIDTH, 3, WINDOWS), LMUBlock(WIDTH, 3, 4.0)).eval()
    assert model[0].weight is model[-1].weight
    plmu.save(model, path)
    again = plmu.load(path).eval()
    assert again[0].weight is again[-1].weight
    tokens = torch.randint(11, (1, 20))
    assert torch.equal(again(tokens)[0], model(tokens)[0])
    stream = plmu.Stream(again)
    assert_same(torch.stack([stream.push(one) for one in tokens[0]]), model(tokens)[0][0])
    optimizer = torch.optim.SGD(again.parameters(), lr=0.1)
    again(tokens)[0].square().sum().backward()
    optimizer.step()
    assert torch.equal(again[0].weight, again[-1].weight)
    assert not torch.equal(again[0].weight, model[0].weight)


def count(model: nn.Module) -> int:
    return sum(value.numel() for value in model.parameters())


def test_parameters_of_language_models_on_characters() -> None:
    """Both stay below 3.3 million, the size of the paper's model."""
    with torch.device("meta"):
        blocks = [LMUBlock(288, 8, 15.0) for _ in range(3)]
        paper = Sequential(nn.Embedding(27, 288), *blocks, nn.LayerNorm(288), nn.Linear(288, 27))
        modern = Sequential(*(MemoryBlock(208, hidden=448) for _ in range(6)))
        selective = Sequential(*(MemoryBlock(208, 8, (8.0, 32.0, 128.0, 512.0), hidden=636, heads=8) for _ in range(6)))
    memory, dense, highway, norm = 288 * 8 * 288, 288 * 288 + 288, 2 * (288 * 288 + 288), 2 * 288
    assert count(paper) == 3 * (memory + dense + 2 * highway + norm) + 27 * 288 + norm + 27 * 289 == 3_257_019
    memory, gate_and_output, feed_forward, norms = 208 * 4 * 208, 2 * 208 * 208, 3 * 208 * 448, 2 * 208
    assert count(modern) == 6 * (memory + gate_and_output + feed_forward + norms) == 3_237_312
    assert count(selective) == 6 * (208 * 208 + 208 * 64 + 64 + 26 + gate_and_output + 3 * 208 * 636 + norms)
    assert max(count(paper), count(modern) + 27 * 208 + 208, count(selective) + 27 * 208 + 208) < 3_300_000


@pytest.mark.parametrize("kind", ["the paper's", "memory", "selective"])
def test_training_stores_the_memory_of_a_selective_readout_alone(kind: str) -> None:
    order, time = 10, 600
    options: dict[str, Any] = {"order": order, "theta": 9.0, "algorithm": "chunked"}
    block = LMUBlock(WIDTH, **options) if kind == "the paper's" else MemoryBlock(WIDTH, **options)
    if kind == "selective":
        block = MemoryBlock(WIDTH, **options, heads=2)
    saved: list[int] = []

    def note(value: Tensor) -> Tensor:
        saved.append(value.numel())
        return value

    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        block(torch.randn(2, time, WIDTH))
    assert (max(saved) >= 2 * time * order * WIDTH) == (kind == "selective")


def test_a_new_weighted_stack_is_the_mean(path: Path) -> None:
    parts = [nn.Identity(), nn.Linear(WIDTH, WIDTH), LMUBlock(WIDTH, 2, 3.0)]
    stack = WeightedStack(*parts)
    x = torch.randn(2, 5, WIDTH)
    second = parts[1](x)
    third, _ = parts[2](second)
    assert_same(stack(x)[0], (x + second + third) / 3)
    assert_same(stack.shares(), torch.full((3,), 1 / 3))
    with torch.no_grad():
        stack.mix.weights.copy_(torch.tensor([0.0, 50.0, 0.0]))
        stack.mix.scale.fill_(2.0)
    assert_same(stack(x)[0], 2 * second)
    tokens = WeightedStack(nn.Embedding(11, WIDTH), LMUBlock(WIDTH, 2, 3.0))
    numbers = torch.randint(11, (1, 6))
    stream = plmu.Stream(tokens)
    assert_same(torch.stack([stream.push(one) for one in numbers[0]]), tokens(numbers)[0][0])


def test_a_block_read_backwards_has_weights_of_its_own() -> None:
    both = plmu.Bidirectional(WeightedStack(LMUBlock(WIDTH, 2, 3.0), MemoryBlock(WIDTH, 2, WINDOWS, heads=2)))
    ahead, back = (dict(side.named_parameters()) for side in (both.forward_layer, both.backward_layer))
    same = [name for name, value in ahead.items() if value.dim() > 1 and torch.equal(value, back[name])]
    assert same == []


def test_dropout_acts_in_training_alone() -> None:
    for block in (LMUBlock(WIDTH, 2, 3.0, dropout=0.5), MemoryBlock(WIDTH, 2, WINDOWS, dropout=0.5)):
        x = torch.randn(1, 5, WIDTH)
        assert not torch.equal(block(x)[0], block(x)[0])
        block.eval()
        assert torch.equal(block(x)[0], block(x)[0])


def test_a_stream_goes_on_in_a_model_without_the_dropout_of_training(path: Path) -> None:
    trained, plain = (MemoryBlock(WIDTH, 2, WINDOWS, dropout=p) for p in (0.5, 0.0))
    plain.load_state_dict(trained.state_dict())
    stream, x = plmu.Stream(trained), torch.randn(2, WIDTH)
    stream.push(x)
    stream.save(path)
    assert torch.equal(plmu.Stream.restore(plain, path).push(x), stream.push(x))


WRONG: dict[str, tuple[Any, str]] = {
    "width": (lambda: LMUBlock(0, 2, 3.0), "width must be an integer of at least 1, got 0"),
    "highways": (lambda: LMUBlock(4, 2, 3.0, highways=-1), "highways must be an integer"),
    "highways is false": (lambda: LMUBlock(4, 2, 3.0, highways=False), "highways must be an integer"),
    "activation": (lambda: Highway(4, "rely"), "activation must be None, a callable or one of"),
    "dropout": (lambda: MemoryBlock(4, dropout=1.0), "dropout must be a number of at least 0 and below 1"),
    "windows": (lambda: MemoryBlock(6), "theta has 4 values, which do not divide the number of memory channels, 6"),
    "heads": (lambda: MemoryBlock(8, heads=3), "hidden_size must be a multiple of heads, got 8 and 3"),
    "standardize": (lambda: MemoryBlock(8, heads=2, standardize=True), "with heads it must be False"),
    "kernel_size": (lambda: MemoryBlock(8, kernel_size=1), "kernel_size must be at least 2, got 1"),
    "a gate with a state": (lambda: Gated(nn.Linear(4, 4), LMUBlock(4, 2, 3.0)), "gate must act pointwise in time"),
    "no sequence": (
        lambda: Gated(ParallelLMU(4, 4, 2, 3.0, return_sequences=False), nn.Linear(4, 4)),
        "needs a sequence",
    ),
    "a filled module": (
        lambda: Gated(ParallelLMU(4, 4, 2, 3.0, missing="zero"), nn.Linear(4, 4)), "give missing= to the",
    ),
    "other outputs": (
        lambda: Gated(nn.Linear(4, 4), nn.Linear(4, 3))(torch.ones(1, 2, 4)), "as many outputs as module: got 3 and 4",
    ),
    "nothing to sum": (lambda: WeightedStack(), "at least one module"),
    "other sizes": (lambda: WeightedStack(nn.Linear(4, 3), nn.Linear(3, 4))(torch.ones(1, 2, 4)), r"\[3, 4\] features"),
    "no sequence to sum": (
        lambda: WeightedStack(ParallelLMU(4, 4, 2, 3.0, return_sequences=False)), "must return sequences",
    ),
    "features": (lambda: LMUBlock(4, 2, 3.0, norm=False)(torch.ones(1, 2, 5)), r"\(batch, time, 4\), got \(1, 2, 5\)"),
    "features of a norm": (lambda: MemoryBlock(4)(torch.ones(1, 2, 5)), r"\(batch, time, 4\), got \(1, 2, 5\)"),
    "features of a step": (lambda: MemoryBlock(4).step(torch.ones(2, 5)), r"\(batch, 4\), got \(2, 5\)"),
    "highway features": (lambda: Highway(4)(torch.ones(1, 2, 5)), r"\(..., 4\), got \(1, 2, 5\)"),
    "states": (lambda: WeightedStack(nn.Identity())(torch.ones(1, 2, 4), (None, None)), "tuple of 1"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_errors_name_what_is_wrong(what: str) -> None:
    make, words = WRONG[what]
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def test_an_activation_that_has_no_name_is_not_saved(path: Path) -> None:
    for block in (LMUBlock(4, 2, 3.0, activation=torch.special.expit), Sequential(Highway(4, torch.special.expit))):
        with pytest.raises(ValueError, match=r"only activations given by name can be saved"):
            plmu.save(block, path)
        assert_same(plmu.fold(block).step(torch.ones(1, 4))[0], block.step(torch.ones(1, 4))[0])


@every_block
def test_a_batch_without_sequences(name: str) -> None:
    block, x = build(name), torch.zeros(0, 4, WIDTH, dtype=torch.float64)
    out, state = block(x)
    folded = plmu.fold(block)
    assert out.shape[:2] == (0, 4)
    assert block.step(x[:, 0])[0].shape == folded.step(x[:, 0])[0].shape == out[:, 0].shape
    assert block(x, state, torch.zeros(0, dtype=torch.int64))[0].shape == out.shape
