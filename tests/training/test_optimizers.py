"""Muon against the same algorithm in float64 and against torch's; groups of parameters with rates of their own."""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from closeness import assert_same
from torch import Tensor, nn
from worker import config, seeded_model, task

from plmu.experiments import language
from plmu.experiments.language import LSTMModel, ModernModel, PlmuModel
from plmu.training.loop import Trainer
from plmu.training.optimizers import QUINTIC, Muon, _batches, optimizers, orthogonal
from plmu.training.processes import Processes
from plmu.training.task import Group, Task

ONE = Processes(0, 1, torch.device("cpu"))
SHAPES = [(5, 9), (9, 5), (9, 9), (6, 6), (1, 7), (4, 3, 5), (4, 15), (5, 9), (2, 2, 2, 2)]
RATES = (0.1, 0.03)
TERMS = 5 * 3 * 20  # iterations, products of each, and what a product sums


def exact_orthogonal(matrix: Tensor, iterations: int) -> Tensor:
    """The singular values through the quintic, by a decomposition."""
    a, b, c = QUINTIC
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / (values.square().sum().sqrt() + 1e-7)
    for _ in range(iterations):
        values = a * values + b * values**3 + c * values**5
    return left @ values.diag() @ right


def exact(start: list[Tensor], gradients: list[list[Tensor]], decay: float) -> list[Tensor]:
    """All steps in float64, one parameter after another."""
    found = []
    for number, first in enumerate(start):
        value = first.double()
        rows, columns = value.shape[0], value[0].numel()
        momentum = torch.zeros(rows, columns, dtype=torch.float64)
        for rate, step in zip(RATES, gradients, strict=True):
            gradient = step[number].double().reshape(rows, columns)
            momentum = 0.95 * momentum + 0.05 * gradient
            ahead = 0.95 * momentum + 0.05 * gradient
            update = 0.2 * max(rows, columns) ** 0.5 * exact_orthogonal(ahead, 5)
            value = value * (1 - rate * decay) - rate * update.reshape(value.shape)
        found.append(value)
    return found


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("few_launches", [False, True])
def test_muon_is_the_algorithm_in_float64(
    decay: float, as_tensor: bool, few_launches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda call, **_: call)
    start = [torch.randn(shape) for shape in SHAPES]
    gradients = [[torch.randn(shape) for shape in SHAPES] for _ in RATES]
    given = [nn.Parameter(value.clone()) for value in start]
    rate = torch.tensor(0.0) if as_tensor else 0.0
    optimizer = Muon([{"params": given, "lr": rate, "weight_decay": decay}], few_launches=few_launches)
    for rate_now, step in zip(RATES, gradients, strict=True):
        for p, gradient in zip(given, step, strict=True):
            p.grad = gradient.clone()
        if as_tensor:
            rate.fill_(rate_now)  # in place, as between replays of a graph
        else:
            optimizer.param_groups[0]["lr"] = rate_now
        optimizer.step()
        assert all(torch.equal(p.grad, gradient) for p, gradient in zip(given, step, strict=True))
    assert_same(given, exact(start, gradients, decay), terms=TERMS)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
def test_compiled_steps_of_muon_are_the_same() -> None:
    start = [torch.randn(shape) for shape in SHAPES]
    compiled, plain = ([nn.Parameter(value.clone()) for value in start] for _ in range(2))
    rates = [torch.tensor(0.1) for _ in range(2)]
    made = [
        Muon([{"params": given, "lr": rate, "weight_decay": 0.3}], few_launches=few)
        for given, rate, few in ((compiled, rates[0], True), (plain, rates[1], False))
    ]
    for number in range(3):
        for one, two in zip(compiled, plain, strict=True):
            one.grad = torch.randn_like(one)
            two.grad = one.grad.clone()
        for rate, optimizer in zip(rates, made, strict=True):
            rate.fill_(0.1 / (1 + number))  # in place, as between replays of a graph
            optimizer.step()
    assert_same(compiled, [p.double() for p in plain], terms=TERMS)
    moments = [[one.state[p]["momentum"] for p in given] for one, given in zip(made, (compiled, plain), strict=True)]
    assert_same(moments[0], [one.double() for one in moments[1]], terms=TERMS)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("few_launches", [False, True])
def test_a_copy_of_muon_goes_on(
    copied: Callable[..., Muon], few_launches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so does one that takes over its state, as from a checkpoint."""
    monkeypatch.setattr(torch, "compile", lambda call, **_: call)
    start = [torch.randn(3, 4), torch.randn(3, 5)]
    first = Muon([nn.Parameter(one.clone()) for one in start], few_launches=few_launches)
    step(first, 0)
    second = copied(first)
    assert second.few_launches == few_launches
    third = Muon([nn.Parameter(p.detach().clone()) for p in first.param_groups[0]["params"]], few_launches=few_launches)
    third.load_state_dict(copy.deepcopy(first.state_dict()))
    for optimizer in (first, second, third):
        step(optimizer, 1)
    found = [one.param_groups[0]["params"] for one in (first, second, third)]
    for expected, *others in zip(*found, strict=True):
        assert all(torch.equal(expected, other) for other in others)


def step(optimizer: Muon, seed: int) -> None:
    """With gradients that are the same for all optimisers."""
    torch.manual_seed(seed)
    for p in optimizer.param_groups[0]["params"]:
        p.grad = torch.randn_like(p)
    optimizer.step()


def test_what_muon_compiles_serves_for_all_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        compiled.append(graph)
        return graph

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call, **options: real(call, backend=backend, **options))
    optimizer = Muon([nn.Parameter(torch.randn(3, 4))], few_launches=True)
    for number in range(4):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + number)
        step(optimizer, number)
    assert len(compiled) == 2, "what is before the iterations, and what is after them"


def test_muon_in_several_precisions() -> None:
    """Each parameter is updated as if it were alone."""
    kinds = (torch.float16, torch.float32, torch.float64)
    together, alone = ([nn.Parameter(torch.ones(3, 4, dtype=kind)) for kind in kinds] for _ in range(2))
    step(Muon(together), 0)
    torch.manual_seed(0)
    for p, other in zip(together, alone, strict=True):
        other.grad = p.grad.clone()
        Muon([other]).step()
        assert torch.equal(p, other)


def test_matrices_with_equal_shorter_sides_are_one_batch() -> None:
    """As long as no more than half of it is zeros."""
    shapes = [(4, 9), (3, 8), (9, 4), (4, 4), (3, 200), *[(3, 8)] * 4, (2, 3, 3), (3, 4)]
    params = [torch.zeros(shape) for shape in shapes]

    def batched(padded: bool) -> list[list[tuple[int, ...]]]:
        return [[tuple(p.shape) for p in alike] for alike in _batches(params, padded)]

    assert batched(True) == [[(4, 9), (9, 4), (4, 4)], [(3, 200)], [*[(3, 8)] * 5, (3, 4)], [(2, 3, 3)]]
    assert batched(False) == [[(4, 9)], [(3, 8)] * 5, [(9, 4)], [(4, 4)], [(3, 200)], [(2, 3, 3)], [(3, 4)]]


@pytest.mark.parametrize(("model", "expected"), [(PlmuModel(), [3, 12]), (ModernModel(), [36])])
def test_batches_of_language_models(model: PlmuModel | ModernModel, expected: list[int]) -> None:
    """Weights of 8 · 256 columns are apart from those of 512 and 256; those of 768, 560 and 192 are together."""
    with torch.device("meta"):
        _, inner = language.groups(language.build(model, 27))
    assert [len(alike) for alike in _batches(inner.parameters, padded=True)] == expected


def test_parameters_without_a_gradient_stay() -> None:
    given = [nn.Parameter(torch.randn(3, 4)) for _ in range(2)]
    before = given[0].detach().clone()
    given[1].grad = torch.zeros(3, 4)
    zero = given[1].detach().clone()
    Muon([{"params": given, "lr": 0.1, "weight_decay": 0.5}]).step()
    assert torch.equal(given[0], before)
    assert torch.equal(given[1], zero * (1 - 0.1 * 0.5)), "a gradient of zero gives no direction, and decay alone"


def test_muon_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which iterates in bfloat16 wherever it runs; here both do so in float32."""
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)
    pairs = [[nn.Parameter(one.clone()) for _ in range(2)] for one in (torch.randn(7, 12), torch.randn(12, 7))]
    ours = Muon([{"params": [one for one, _ in pairs], "lr": 0.02, "weight_decay": 0.1}])
    theirs = torch.optim.Muon(
        [two for _, two in pairs], lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(3):
        for pair in pairs:
            gradient = torch.randn_like(pair[0])
            for p in pair:
                p.grad = gradient.clone()
        ours.step()
        theirs.step()
    for one, two in pairs:
        assert_same(one, two, terms=TERMS)


@pytest.mark.parametrize("shape", [(8, 8), (5, 20)])
def test_singular_values_come_near_one(shape: tuple[int, int]) -> None:
    """What begins above 1 % of the norm ends between 0.5 and 1.5, whatever the norm is."""
    given = torch.randn(3, *shape) * torch.tensor([1e-4, 1.0, 1e4])[:, None, None]
    relative = torch.linalg.svdvals(given) / given.norm(dim=(1, 2))[:, None]
    assert relative.min() > 0.01
    values = torch.linalg.svdvals(orthogonal(given, 5))
    assert values.min() > 0.5
    assert values.max() < 1.5
    assert_same(orthogonal(given[1:2], 5)[0], exact_orthogonal(given[1].double(), 5), terms=TERMS)


def test_a_closure_computes_loss_and_gradients() -> None:
    one, two = (nn.Parameter(torch.eye(2)) for _ in range(2))

    def loss(p: nn.Parameter) -> torch.Tensor:
        return (p @ torch.tensor([[1.0, 2.0], [3.0, 4.0]])).square().sum()

    def closure() -> float:
        value = loss(one)
        value.backward()
        return value.item()

    assert Muon([one]).step(closure) == loss(two).item()
    loss(two).backward()
    assert Muon([two]).step() is None
    assert torch.equal(one, two)
    assert not torch.equal(one, torch.eye(2))


def grouped(groups: Callable[[nn.Module], list[Group]], **changes: object) -> Trainer:
    made = task()
    made.groups = groups
    settings = dataclasses.replace(config(2), schedule="constant", warmup=0.0, average=None, clip=None, **changes)
    return Trainer(made, seeded_model(), settings, ONE, 3)


def test_rate_and_decay_are_of_the_group() -> None:
    trainer = grouped(
        lambda model: [Group(list(model[0].parameters()), rate=0.5), Group(list(model[3].parameters()), decay=False)],
        weight_decay=0.1,
        learning_rate=1e-2,
    )
    reference = seeded_model()
    adam = torch.optim.AdamW(
        [
            {"params": reference[0].parameters(), "lr": 5e-3, "weight_decay": 0.1},
            {"params": reference[3].parameters(), "lr": 1e-2, "weight_decay": 0.0},
        ]
    )
    x, y = trainer.task.train
    trainer.stepping.begin(anew=True)
    for shape, (keys,) in trainer._batches():
        trainer.stepping.load(shape, (keys,))
        trainer._set_learning_rate()
        trainer.stepping.run()
        adam.zero_grad()
        (reference(x[keys]) - y[keys]).square().mean().backward()
        adam.step()
    for p, expected in zip(trainer.model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(p, expected)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_groups_begin_when_they_are_told(optimizer: str) -> None:
    trainer = grouped(
        lambda model: [
            Group(list(model[3].parameters()), matrices=True),
            Group(list(model[0].parameters()), begins=0.5, matrices=True),
        ],
        weight_decay=0.1,
        optimizer=optimizer,
    )
    assert trainer.steps_per_epoch == 8
    weights = [[p.detach().clone() for p in trainer.model.parameters()]]
    run = trainer.stepping.run

    def step() -> None:
        run()
        weights.append([p.detach().clone() for p in trainer.model.parameters()])

    trainer.stepping.run = step
    trainer.run()
    same = [[torch.equal(one, two) for one, two in zip(*pair, strict=True)] for pair in pairwise(weights)]
    assert same == [[True, True, False, False]] * 4 + [[False] * 4] * 12


def test_each_trained_parameter_is_in_one_group() -> None:
    for wrong in (
        lambda model: [Group(list(model[0].parameters()))],
        lambda model: [Group(list(model.parameters())), Group([model[0].weight])],
    ):
        with pytest.raises(RuntimeError, match="each trained parameter once"):
            grouped(wrong)


def test_frozen_parameters_need_no_group() -> None:
    def groups(model: nn.Module) -> list[Group]:
        model[0].requires_grad_(False)
        return [Group(list(model[3].parameters()))]

    grouped(groups)


def test_muon_is_for_models_that_have_matrices_for_it() -> None:
    with pytest.raises(ValueError, match="muon is for models of language and translation: use adamw here"):
        grouped(lambda model: [Group(list(model.parameters()))], optimizer="muon")
    with pytest.raises(ValueError, match="muon is for models of language"):
        Trainer(task(), seeded_model(), dataclasses.replace(config(1), optimizer="muon"), ONE, 3)


@pytest.mark.parametrize(
    "model",
    [
        PlmuModel(width=8, blocks=2, order=3, attention=2),
        PlmuModel(width=8, blocks=1, tied=True),
        ModernModel(width=16, blocks=1, thetas=(2.0, 9.0), hidden=8, kernel=3, heads=2),
        ModernModel(width=8, blocks=1, thetas=(2.0, 9.0), hidden=8, tied=False),
        LSTMModel(embedding=4, hidden=5, layers=2),
    ],
)
def test_embeddings_output_norms_and_biases_of_language_models_are_apart(model) -> None:
    network = language.build(model, 11)
    rest, inner = language.groups(network)
    assert (rest.decay, rest.matrices) == (False, False)
    assert (inner.decay, inner.matrices) == (True, True)
    assert (rest.rate, rest.begins) == (inner.rate, inner.begins) == (1.0, 0.0)
    both = [id(p) for p in (*rest.parameters, *inner.parameters)]
    assert sorted(both) == sorted(id(p) for p in network.parameters()), "each once, tied weights too"
    apart = {id(p) for p in rest.parameters}
    for module in network.modules():
        own = dict(module.named_parameters(recurse=False))
        if isinstance(module, nn.Embedding | nn.LayerNorm | nn.RMSNorm) or own.get("weight") is _output(network):
            assert {id(p) for p in own.values()} <= apart
        for name, p in own.items():
            assert (id(p) in apart) == (p.dim() == 1 or isinstance(module, nn.Embedding) or p is _output(network)), name
    made = optimizers(network, Task((), (), (), None, None, None, "", True, groups=language.groups),
                      language.training(), graphed=False)  # type: ignore[arg-type]  # fmt: skip
    assert [type(one).__name__ for one in made] == ["AdamW", "Muon"]
    assert [one.param_groups[0]["weight_decay"] for one in made] == [0.0, 0.1]
    assert {id(p) for p in made[0].param_groups[0]["params"]} == apart


def _output(network: nn.Module) -> nn.Parameter:
    last = network.out if isinstance(network, language.LSTMLanguageModel) else network.layers[-1]
    return last.weight
