"""Parts of a batch, states carried from batch to batch, data on the host, schedules: each against a plain loop."""

import copy
import dataclasses
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from closeness import assert_same
from kinds import LETTERS, ONE, stream_config, stream_model, stream_task, text_task, trainer_of
from torch import Tensor, nn
from worker import config, seeded_model, task

from plmu.experiments import language
from plmu.experiments.language import LSTMModel, ModernModel, PlmuModel
from plmu.runtime.state_tree import leaves, map_state
from plmu.training.checkpoints import Checkpoints
from plmu.training.loop import Outcome, Trainer
from plmu.training.processes import Processes
from plmu.training.state import restore, snapshot
from plmu.training.task import Batch, Task


def weights(trainer: Trainer) -> list[Tensor]:
    return [p.detach() for p in trainer.model.parameters()]


def same_outcome(one: Outcome, two: Outcome) -> None:
    """Bit for bit."""
    assert dataclasses.replace(one, seconds=0.0) == dataclasses.replace(two, seconds=0.0)


@pytest.mark.parametrize("kind", ["plain", "streams", "texts"])
def test_a_batch_in_parts_is_the_same_batch(kind: str) -> None:
    """Its losses, scores and weights, within rounding; also where texts of different lengths weigh differently."""

    def trainer(parts: int) -> Trainer:
        if kind == "plain":
            return Trainer(task(), seeded_model(), dataclasses.replace(config(2), accumulate=parts), ONE, 3)
        return trainer_of(kind, 2, accumulate=parts)

    whole = trainer(1)
    expected = whole.run()
    for parts in (2, 4):
        divided = trainer(parts)
        assert len(divided.stepping._parts()) == parts
        found = divided.run()
        for one, two in zip(found.history, expected.history, strict=True):
            assert one == pytest.approx(two, rel=1e-5)
        assert_same(weights(divided), weights(whole))


def test_a_batch_of_fewer_examples_than_parts() -> None:
    """As of long texts: one part for each."""
    many = trainer_of("texts", 1, batch_tokens=20, accumulate=50)
    sizes = {shape.rows for shape in many.source.shapes}
    assert min(sizes) < 5
    one = trainer_of("texts", 1, batch_tokens=20, accumulate=1)
    assert many.run().history == [pytest.approx(entry, rel=1e-5) for entry in one.run().history]


def mean_of_examples(model: nn.Module, batch: Batch) -> Tensor:
    """A loss that counts each text once, however long it is."""
    words, lengths, wanted = batch
    there = torch.arange(words.shape[1]) < lengths[:, None]
    errors = (model(words)[..., 0] - wanted[:, : words.shape[1]]).square() * there
    return (errors.sum(1) / lengths).mean()


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("parts", [1, 3])
def test_the_shares_of_processes_and_parts_add_up(weighted: bool, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over processes is the loss of the whole batch, also of one that cannot be divided evenly."""
    made = text_task() if weighted else dataclasses.replace(text_task(), weight=None, loss=mean_of_examples)
    total: list[Tensor] = []
    monkeypatch.setattr(dist, "all_reduce", lambda value: value.copy_(total[0]))
    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", lambda model: nn.Sequential(model))

    def trainer(rank: int, count: int, accumulate: int) -> Trainer:
        settings = dataclasses.replace(config(1), batch_tokens=60, accumulate=accumulate)
        processes = Processes(rank, count, torch.device("cpu"))
        torch.manual_seed(1)
        return Trainer(made, nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 1)), settings, processes, 3)

    whole = trainer(0, 1, 1)
    ranks = [trainer(rank, 2, parts) for rank in range(2)]
    batches = [list(one._batches()) for one in (whole, *ranks)]
    uneven = 0
    for steps in zip(*batches, strict=True):
        (shape, (keys,)), *others = steps
        uneven += len({other.rows for other, _ in others}) > 1
        assert torch.equal(torch.cat([own for _, (own,) in others]), keys)
        batch = whole.source.take(keys, shape)
        total[:] = [batch[1].sum().float()]
        shared = 0.0
        for one, (own, content) in zip(ranks, others, strict=True):
            one.stepping.load(own, content)
            divided = one.stepping._parts()
            shares = one.stepping._shares(divided)
            losses = [made.loss(one.model, part) for part in divided]
            shared += sum(loss * (1.0 if shares is None else shares[i]) for i, loss in enumerate(losses)) / 2
        assert_same(shared, made.loss(whole.model, batch))
    assert uneven


MODELS = [
    PlmuModel(width=8, blocks=2, order=3, theta=4.0, highways=1, attention=2, window=5, dropout=0.0),
    ModernModel(width=16, blocks=1, order=3, thetas=(2.0, 9.0), hidden=8, kernel=3, heads=2, dropout=0.0),
    LSTMModel(embedding=4, hidden=5, layers=2, dropout=0.0),
]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_a_carried_state_is_truncated_backpropagation(model: Any, parts: int) -> None:
    """By hand: each window starts from the state that the one before ended in, without its gradient."""
    torch.manual_seed(1)
    network = language.build(model, len(LETTERS))
    reference = copy.deepcopy(network)
    made = dataclasses.replace(stream_task(), groups=None)
    settings = stream_config(
        2, optimizer="adamw", schedule="constant", warmup=0.0, average=None, accumulate=parts, weight_decay=0.0
    )
    trainer = Trainer(made, network, settings, ONE, 3)
    adam = torch.optim.AdamW(reference.parameters(), lr=0.03, weight_decay=0.0)
    losses, tokens = [], made.train[0].long()
    for epoch in range(2):
        state = None
        steps = trainer.source.order(torch.Generator().manual_seed(3 * 1_000_003 + epoch))
        for step in steps:
            windows = torch.stack([tokens[key : key + 9] for key in step.keys.tolist()])
            out, state = reference(windows[:, :-1], state)
            state = map_state(state, Tensor.detach)
            loss = nn.functional.cross_entropy(out.flatten(0, 1), windows[:, 1:].flatten())
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(reference.parameters(), 0.3)
            adam.step()
            losses.append(loss.item())
    found = trainer.run()
    half = len(losses) // 2
    expected = [sum(losses[:half]) / half, sum(losses[half:]) / half]
    assert [entry["loss"] for entry in found.history] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["plain", "streams", "texts"])
def test_data_on_the_host_gives_the_same_numbers(kind: str) -> None:
    found = []
    for where in ("host", "device"):
        if kind == "plain":
            torch.manual_seed(1)
            trainer = Trainer(task(), seeded_model(), dataclasses.replace(config(2), data=where), ONE, 3)
        else:
            trainer = trainer_of(kind, 2, dropout=0.2, data=where)
        assert (trainer.prefetcher is not None) == (where == "host")
        found.append((trainer.run(), weights(trainer)))
    same_outcome(found[0][0], found[1][0])
    assert all(torch.equal(one, two) for one, two in zip(found[0][1], found[1][1], strict=True))


@pytest.mark.parametrize("error", [OSError("the disk is gone"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["take", "step"])
def test_what_breaks_while_batches_are_prefetched_ends_the_run(where: str, error: BaseException) -> None:
    trainer = trainer_of("streams", 2)
    calls: list[int] = []
    place, name = (trainer.source, "take") if where == "take" else (trainer.stepping, "run")
    whole = getattr(place, name)

    def failing(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 7:
            raise error
        return whole(*given)

    setattr(place, name, failing)
    before = threading.active_count()
    with pytest.raises(type(error)):
        trainer.run()
    assert threading.active_count() == before
    assert len(calls) < 10


def rates(trainer: Trainer) -> list[list[float]]:
    """The learning rates of each step, noted as it runs: lists, one for each group."""
    found: list[list[float]] = []
    run = trainer.stepping.run

    def step() -> None:
        found.append([group["lr"] for one in trainer.optimizers for group in one.param_groups])
        run()

    trainer.stepping.run = step
    return found


def test_the_step_schedule_drops_after_its_epochs() -> None:
    settings = dataclasses.replace(
        config(3), schedule="step", drops=(1.0, 2.5), drop=0.5, learning_rate=0.08, warmup=1 / 24
    )
    trainer = Trainer(task(), seeded_model(), settings, ONE, 3)
    found = rates(trainer)
    trainer.run()
    assert [one for (one,) in found] == pytest.approx([0.08] * 8 + [0.04] * 12 + [0.02] * 4)


SCORES = [5.0, 4.0, 4.0, 4.5, 3.0, 3.5, 3.5, 3.5, 3.5, 2.0]  # worse or no better in 3 and 4, then in 6, 7, 8 and 9
FACTORS = [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125]


def plateau(folder: Any = None) -> tuple[Trainer, list[list[float]]]:
    settings = dataclasses.replace(config(10), schedule="plateau", patience=2, drop=0.5, warmup=0.0, learning_rate=0.01)
    trainer = Trainer(task(), seeded_model(), settings, ONE, 3, None if folder is None else Checkpoints(folder))
    trainer.evaluate = lambda _: {"mse": SCORES[min(trainer.epoch, 10) - 1]}  # type: ignore[method-assign]
    return trainer, rates(trainer)


def test_the_plateau_schedule_drops_when_validation_no_longer_improves(tmp_path: Any) -> None:
    trainer, found = plateau()
    whole = trainer.run()
    assert found == [[pytest.approx(0.01 * factor)] for factor in FACTORS for _ in range(8)]
    for stop in (35, 56):  # within an epoch, and at its end before a drop
        folder = tmp_path / str(stop)
        folder.mkdir()
        first, begun = plateau(folder)
        _stop_after(first, stop)
        with pytest.raises(InterruptedError):
            first.run()
        second, rest = plateau(folder)
        same_outcome(second.run(), whole)
        assert begun + rest == found


def test_the_plateau_of_scores_that_are_higher_when_better() -> None:
    settings = dataclasses.replace(config(1), schedule="plateau", patience=1, drop=0.1)
    assert settings.plateau_factor([0.5, 0.6, 0.7], higher_is_better=True) == 1
    assert settings.plateau_factor([0.5, 0.6, 0.7], higher_is_better=False) == pytest.approx(0.01)
    assert settings.plateau_factor([0.5, float("nan")], higher_is_better=True) == pytest.approx(0.1)
    assert settings.plateau_factor([], higher_is_better=True) == 1


def _stop_after(trainer: Trainer, steps: int) -> None:
    run, done = trainer.stepping.run, []

    def step() -> None:
        if len(done) == steps:
            raise InterruptedError
        done.append(1)
        run()

    trainer.stepping.run = step


def test_everything_together_resumes_bit_for_bit(tmp_path: Any) -> None:
    """Dropout, Muon, parts, a carried state, a plateau, averaged and clipped weights, host data, groups that wait."""
    whole = trainer_of("streams", 5, dropout=0.2)
    expected = whole.run()
    scores = [entry["valid_bpc"] for entry in expected.history]
    assert whole.config.plateau_factor(scores[:-1], higher_is_better=False) < 1
    for stop in (3, 3, 15):  # in turn: before a group begins, at the end of an epoch, and within the fourth
        first = trainer_of("streams", 5, Checkpoints(tmp_path), dropout=0.2)
        _stop_after(first, stop)
        with pytest.raises(InterruptedError):
            first.run()
        torch.manual_seed(99)
    last = trainer_of("streams", 5, Checkpoints(tmp_path), dropout=0.2)
    same_outcome(last.run(), expected)
    for one, two in zip(weights(last), weights(whole), strict=True):
        assert torch.equal(one, two)


def test_checkpoints_of_before_had_no_carried_states() -> None:
    trainer = Trainer(task(), seeded_model(), config(2), ONE, 3)
    content = snapshot(trainer)
    assert content.pop("carried") == [[]]
    restore(trainer, content)
    carrying = trainer_of("streams", 2)
    content = snapshot(carrying)
    carried = content.pop("carried")
    with pytest.raises(ValueError, match="its carried states are not of 1 processes"):
        restore(carrying, content)
    with pytest.raises(ValueError, match=r"a carried state has the shape \(1,\)"):
        restore(carrying, {**content, "carried": [[torch.zeros(1)] * len(carried[0])]})


def test_a_resumed_run_takes_its_checkpoint_of_before(tmp_path: Any) -> None:
    whole = Trainer(task(), seeded_model(), config(2), ONE, 3).run()
    checkpoints = Checkpoints(tmp_path)
    first = Trainer(task(), seeded_model(), config(2), ONE, 3, checkpoints)
    _stop_after(first, 11)
    with pytest.raises(InterruptedError):
        first.run()
    content = checkpoints.newest()
    assert content is not None
    del content["carried"]
    checkpoints.save(11, content)
    same_outcome(Trainer(task(), seeded_model(), config(2), ONE, 3, checkpoints).run(), whole)


def test_on_a_cpu_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("compiled"))
    for kind in ("streams", "texts"):
        trainer = trainer_of(kind, 1, compile=True)
        assert trainer.stepping.loss in (trainer.task.loss, trainer.task.carried_loss)
        same_outcome(trainer.run(), trainer_of(kind, 1).run())


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated", "ignore:.*should not be instantiated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of an LSTM, by torch itself
@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_a_compiled_loss_is_the_same(model: Any, carry: bool) -> None:
    made: Task = stream_task()
    network = language.build(model, len(LETTERS))
    twin = copy.deepcopy(network)
    batch = tuple(torch.randint(len(LETTERS), (2, 3, 16)))
    eager: Any = made.carried_loss if carry else made.loss
    torch._dynamo.reset()
    compiled = torch.compile(eager, dynamic=False)
    state = [map_state(network(torch.randint(len(LETTERS), (3, 9)))[1], Tensor.detach)] if carry else []
    found = []
    for function, one in ((eager, network), (compiled, twin)):
        loss = function(one, batch, *state)
        value = loss[0] if carry else loss
        value.backward()
        found.append([value.detach(), *(p.grad for p in one.parameters()), *leaves(loss[1:] if carry else None)])
    assert_same(found[1], found[0])


def test_dropout_of_a_stream_model_differs_between_steps() -> None:
    """So that resuming has something to keep."""
    network = stream_model(0.5).train()
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    assert not torch.equal(network(tokens)[0], network(tokens)[0])
