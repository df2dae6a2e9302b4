"""What training does step by step, when it is said to have diverged, and what is told meanwhile."""

import dataclasses
import errno
import io
import math
import re
import sys

import pytest
import torch
from worker import config, seeded_model, task

from plmu.errors import Diverged, RunError
from plmu.training.batches import Shape
from plmu.training.checkpoints import Checkpoints
from plmu.training.config import TrainingConfig
from plmu.training.loop import Trainer
from plmu.training.processes import Processes, _device, processes
from plmu.training.progress import Progress
from plmu.training.terminal import Console

ONE = Processes(0, 1, torch.device("cpu"))


def test_a_run_that_makes_the_model_far_worse_has_diverged(tmp_path):
    """Every number stays finite, and yet the best epoch is far worse than the start."""
    settings = dataclasses.replace(config(3), learning_rate=30.0, schedule="constant", clip=None, average=None)
    for folder in (tmp_path, None):
        kept = None if folder is None else Checkpoints(folder)
        trainer = Trainer(task(), seeded_model(), settings, ONE, 3, kept)
        with pytest.raises(
            Diverged, match=r"far worse than the untrained one: on training examples its loss is \d.*, at"
        ):
            trainer.run()
    assert Checkpoints(tmp_path).best()["epoch"] >= 1
    again = Trainer(task(), seeded_model(), settings, ONE, 3, Checkpoints(tmp_path))
    with pytest.raises(Diverged, match="far worse than the untrained one"):  # resumed at its end
        again.run()


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5, 9.9, 10.1, math.nan])
def test_a_loss_that_rises_a_little_is_a_warning(factor, monkeypatch):
    """As of a short run whose best epoch was chosen by its validation score."""
    trainer = Trainer(task(), seeded_model(), config(1), ONE, 3)
    losses = iter([2.0, 2.0 * factor])
    monkeypatch.setattr(trainer, "_sample_loss", lambda: next(losses))
    if not factor < 10:
        with pytest.raises(Diverged, match="far worse than the untrained one"):
            trainer.run()
        return
    warning = trainer.run().warning
    assert (warning is not None) == (factor > 1)
    if warning is not None:
        assert warning.startswith("the best model's loss is above the untrained one's: on training examples its loss")


def test_a_step_too_large_for_a_float_has_diverged(tmp_path):
    settings = dataclasses.replace(config(3), learning_rate=1e38, schedule="constant", warmup=0.0)
    with pytest.raises(Diverged, match="too large for float32 in epoch 1: there is no good model yet"):
        Trainer(task(), seeded_model(), settings, ONE, 3, Checkpoints(tmp_path)).run()
    assert not list(tmp_path.glob("*.ckpt"))


def test_other_errors_of_a_step_are_shown_as_they_are():
    trainer = Trainer(task(), seeded_model(), config(3), ONE, 3)

    def broken() -> None:
        raise RuntimeError("of another kind")

    trainer.stepping.run = broken
    with pytest.raises(RuntimeError, match="of another kind"):
        trainer.run()


def test_a_model_that_starts_without_numbers_is_not_put_down_to_training():
    wrong = seeded_model()
    wrong[0].weight.data[0, 0] = float("nan")
    with pytest.raises(RunError, match="the loss of the untrained model is nan: change the model's settings"):
        Trainer(task(), wrong, config(3), ONE, 3).run()


def test_data_that_is_not_finite_is_refused_before_training():
    broken = task()
    broken.valid[0][2, 1] = float("nan")
    with pytest.raises(RunError, match=r"the valid data hold 1 values that are not finite: the first is nan"):
        Trainer(broken, seeded_model(), config(3), ONE, 3)


def test_the_first_examples_are_what_start_and_end_are_compared_on():
    trainer = Trainer(task(), seeded_model(), config(1), ONE, 3)
    x, y = task().train
    expected = (seeded_model().eval()(x[:4]) - y[:4]).square().mean()
    assert trainer._sample_loss() == pytest.approx(float(expected.detach()))
    assert not trainer.model.training


def test_a_step_is_that_of_adam_on_the_mean_loss_with_what_is_set():
    """By hand: clipping, weight decay, the schedule and the average of two steps."""
    settings = TrainingConfig(
        epochs=2, batch_size=32, learning_rate=0.01, betas=(0.8, 0.9), weight_decay=0.1, schedule="cosine", warmup=0.25,
        clip=0.05, average=0.75,
    )  # fmt: skip
    trainer = Trainer(task(), seeded_model(), settings, ONE, 3)
    assert (trainer.steps_per_epoch, trainer.total_steps) == (2, 4)
    reference = seeded_model()
    adam = torch.optim.AdamW(reference.parameters(), lr=1.0, betas=(0.8, 0.9), weight_decay=0.1)
    means = [p.detach().clone() for p in reference.parameters()]
    x, y = task().train
    losses = []
    for epoch in range(2):
        generator = torch.Generator().manual_seed(3 * 1_000_003 + epoch)
        for number, rows in enumerate(torch.randperm(64, generator=generator).reshape(2, 32)):
            loss = (reference(x[rows]) - y[rows]).square().mean()
            losses.append(loss.item())
            adam.zero_grad()
            loss.backward()
            norm = torch.cat([p.grad.flatten() for p in reference.parameters()]).norm()
            for p in reference.parameters():
                p.grad *= min(1.0, 0.05 / float(norm))
            adam.param_groups[0]["lr"] = settings.learning_rate_at(2 * epoch + number, 4)
            adam.step()
            means = [0.75 * a + 0.25 * p.detach() for a, p in zip(means, reference.parameters(), strict=True)]
    outcome = trainer.run()
    assert [entry["loss"] for entry in outcome.history] == pytest.approx([sum(losses[:2]) / 2, sum(losses[2:]) / 2])
    assert [entry["epoch"] for entry in outcome.history] == [1, 2]
    assert trainer.average is not None
    for mean, expected in zip(trainer.average, means, strict=True):
        torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-6)


def test_validation_comes_every_so_many_epochs_and_at_the_end():
    settings = dataclasses.replace(config(5), evaluate_every=2, average=None)
    told = []
    outcome = Trainer(task(), seeded_model(), settings, ONE, 3, on_epoch=told.append).run()
    assert ["valid_mse" in entry for entry in outcome.history] == [False, True, False, True, True]
    assert told == outcome.history


def test_scores_are_of_all_examples_however_they_are_batched():
    made = task()
    trainer = Trainer(made, seeded_model(), config(1), ONE, 3)
    whole = {"mse": pytest.approx((trainer.model.eval()(made.test[0]) - made.test[1]).square().mean().item())}
    for size in (1, 5, 16, 100):
        trainer.task.evaluation_batch = size
        assert trainer.evaluate(made.test) == whole


@pytest.mark.parametrize(("seconds", "kept"), [(0.0, 2), (math.inf, 1)])
def test_checkpoints_come_as_often_as_asked_and_at_the_end(seconds, kept, tmp_path):
    settings = dataclasses.replace(config(3), checkpoint_seconds=seconds)
    outcome = Trainer(task(), seeded_model(), settings, ONE, 3, Checkpoints(tmp_path)).run()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-00000023.ckpt", "step-00000024.ckpt"][-kept:]
    assert Checkpoints(tmp_path).newest()["seconds"] == outcome.seconds > 0


def test_a_batch_larger_than_the_data_is_the_data():
    trainer = Trainer(task(), seeded_model(), dataclasses.replace(config(1), batch_size=1000), ONE, 3)
    assert (trainer.source.shapes, trainer.steps_per_epoch) == ([Shape(64)], 1)
    uneven = Trainer(task(), seeded_model(), dataclasses.replace(config(1), batch_size=60), ONE, 3)
    assert (uneven.steps_per_epoch, [len(step.keys) for step in uneven._order()]) == (1, [60])


def test_a_process_takes_its_share():
    assert [Processes(rank, 3, torch.device("cpu")).share(12) for rank in range(3)] == [
        slice(0, 4), slice(4, 8), slice(8, 12),
    ]  # fmt: skip
    assert [Processes(rank, 2, torch.device("cpu")).writes for rank in range(2)] == [True, False]


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="device 'nonsense' is not available"), processes("nonsense"):
        pytest.fail("started")
    with pytest.raises(ValueError, match="device 'meta' holds no values"), processes("meta"):
        pytest.fail("started")
    with processes("cpu") as group:
        assert group == ONE
    with processes() as group:
        assert group.device.type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(("rank", "raised"), [(0, Diverged), (1, SystemExit)])
def test_of_several_processes_one_says_that_they_diverged(rank, raised, monkeypatch):
    for name, value in (("WORLD_SIZE", "2"), ("RANK", str(rank))):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.distributed, "rendezvous", lambda _: iter([(torch.distributed.HashStore(), rank, 2)]))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)
    ended = []
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: ended.append(1))
    with pytest.raises(raised) as found, processes("cpu"):
        raise Diverged("the loss is nan")
    assert ended == [1]
    assert rank == 0 or found.value.code == 2
    with pytest.raises(RunError, match="of one alone"), processes("cpu"):
        raise RunError("of one alone")


def test_progress_is_a_line_now_and_then(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with Progress("a name", 3) as progress:
        for moment, epoch in ((5.0, 1), (10.5, 2), (11.0, 2.5), (12.0, 3)):
            now[0] = moment
            progress.at(epoch, None if epoch == 2.5 else {"epoch": epoch, "loss": 0.123456789})
    assert capsys.readouterr().out.splitlines() == [
        "a name  epoch 2/3  loss 0.12346",
        "a name  epoch 3/3  loss 0.12346",
    ]
    with Progress("a name", 1, quiet=True) as progress:
        progress.at(1, {"loss": 1.0})
    assert capsys.readouterr().out == ""


def test_progress_on_a_terminal_is_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with Progress("a name", 3) as progress:
        progress.at(1.5, {"epoch": 2, "loss": 0.25})
        assert progress.bar is not None
        assert progress.bar.tasks[0].completed == 1.5
        assert progress.bar.tasks[0].total == 3
        assert progress.bar.tasks[0].fields["scores"] == "loss 0.25"
        progress.at(2.5)
        assert progress.bar.tasks[0].completed == 2.5
        assert progress.bar.tasks[0].fields["scores"] == "loss 0.25"
    with Progress("a name", 3, quiet=True) as progress:
        assert progress.bar is None
    capsys.readouterr()


@pytest.mark.parametrize("width", [80, 100])
def test_the_bar_fits_a_terminal_of_80_columns(width, monkeypatch):
    """Name, bar, epochs, time and scores are whole, also after a validation."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    progress = Progress("text8 plmu-attention [x]", 200)
    assert progress.bar is not None
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    scores = {"epoch": 1.0, "loss": 1.2345678, "valid_bpc": 1.9876543, "valid_perplexity": 123.45678}
    monkeypatch.setattr(progress.bar.live, "_started", True)
    progress.at(123.4, scores)
    console.print(progress.bar.get_renderable())
    first, second = (line.rstrip() for line in out.getvalue().splitlines())
    assert re.fullmatch(r"text8 plmu-attention \[x\] [━╸╺ ]{4,} 123\.4/200 epochs \S+ left \S+", first)
    assert second == "loss 1.2346  valid_bpc 1.9877  valid_perplexity 123.46"
    assert len(first) <= width


def test_without_an_output_there_is_no_progress(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with Progress("a name", 1) as progress:
        progress.at(1, {"loss": 1.0})


class _Gone(io.StringIO):
    """The output of a program whose reader has gone."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal, self.tried = terminal, 0

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.tried += 1
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_goes_on_when_its_output_has_gone(terminal, tmp_path, monkeypatch):
    gone = _Gone(terminal)
    monkeypatch.setattr(sys, "stdout", gone)
    settings = dataclasses.replace(config(3), checkpoint_seconds=math.inf)
    with Progress("a name", 3) as progress:
        outcome = Trainer(task(), seeded_model(), settings, ONE, 3, Checkpoints(tmp_path), progress).run()
    monkeypatch.undo()
    assert len(outcome.history) == 3
    assert gone.tried > 0
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000024.ckpt"]


def test_the_checkpoint_of_an_epoch_comes_before_its_line(tmp_path):
    class Failing(Progress):
        def at(self, epoch: float, scores: dict[str, float] | None = None) -> None:
            raise KeyboardInterrupt

    trainer = Trainer(task(), seeded_model(), config(1), ONE, 3, Checkpoints(tmp_path), Failing("", 1, quiet=True))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert Checkpoints(tmp_path).newest()["epoch"] == 1


def test_a_gpu_is_that_of_the_process_unless_it_is_named(monkeypatch):
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)  # as if it were there
    assert _device("cuda", 3) == torch.device("cuda", 3)
    assert _device("cuda:1", 3) == torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert _device("auto", 0) == torch.device("cuda", 0)
    assert _device("cpu", 3) == torch.device("cpu")


def test_what_cannot_be_put_together_is_said():
    made = task()
    made.valid = (made.valid[0][:, :5], made.valid[1])
    with pytest.raises(RunError, match=r"examples of one size; they are \(8,\) and \(5,\)"):
        Trainer(made, seeded_model(), dataclasses.replace(config(1), refit=True), ONE, 3)


class _Told(Progress):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__("", 1, quiet=True)
        self.seen: list[tuple[float, bool]] = []

    def at(self, epoch: float, scores: dict[str, float] | None = None) -> None:
        self.seen.append((epoch, scores is not None))


def test_progress_is_told_now_and_then_within_an_epoch(tmp_path):
    settings = dataclasses.replace(config(1), batch_size=1)
    told = _Told()
    trainer = Trainer(task(), seeded_model(), settings, ONE, 3, Checkpoints(tmp_path), told)
    assert trainer.seconds == 0
    trainer.run()
    assert told.seen == [(0.25, False), (0.5, False), (0.75, False), (1.0, False), (1, True)]
    again = _Told()
    Trainer(task(), seeded_model(), settings, ONE, 3, Checkpoints(tmp_path), again).run()
    assert again.seen == [(1.0, False)]  # where it goes on
