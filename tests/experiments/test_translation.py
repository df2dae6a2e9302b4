"""Translation through the command line, on a small language: training, scoring here or elsewhere, and translating."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from program import refused
from sacrebleu.metrics.bleu import BLEU
from texts import GLOSSARY, iwslt_folder, pairs
from untrained import EXPERIMENTS, built

from plmu.cli.catalogue import lookup
from plmu.cli.program import main
from plmu.experiments.translation import task as translation
from plmu.experiments.translation import translator
from plmu.experiments.translation.bleu import bleu
from plmu.experiments.translation.decoding import Translation
from plmu.experiments.translation.translator import Options, Translator
from plmu.runs import configuration
from plmu.text.moses import detokenise
from plmu.text.vocabularies import BEGIN, END, PADDING
from plmu.training.batches import source_of
from plmu.training.processes import Processes

SMALL = "--model.width 32 --model.embedding 24 --model.encoder-blocks 1 --model.decoder-blocks 1"
PLAIN = "--model.attention-heads 2 --model.dropout 0 --model.word-dropout 0 --model.label-smoothing 0"
COMMAND = f"train iwslt --quiet --device cpu {SMALL} {PLAIN} --training.batch-tokens 150 --training.average 0.9".split()
RATE = ["--training.epochs", "14", "--training.learning-rate", "1e-2", "--training.evaluate-every", "7"]
LEARN = ["--model.hidden", "32", *RATE]
RUN = Path("runs/iwslt-plmu-seed0")
OWN = ["--data.source", "a.txt", "--data.target", "b.txt"]


def _files(folder: Path, count: int = 900) -> None:
    for name, texts in zip("ab", pairs(count), strict=True):
        (folder / f"{name}.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with files of one's own, and a run that has learned to translate them on a machine without sacrebleu."""
    folder = tmp_path_factory.mktemp("translation")
    _files(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLMU_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        patch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
        main([*COMMAND, *LEARN, *OWN])
    return folder


def _result(folder: Path) -> dict:
    return json.loads((folder / RUN / "result.json").read_text())


def _expected(text: str) -> str:
    words = text.lower().removesuffix(".").split()
    return " ".join(GLOSSARY[word] for word in words) + "."


def test_a_small_language_is_learned_and_translated(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert _result(trained)["test"]["bleu"] > 90
    asked = ["The dog sees cat.", "", "Old cat it's old.", "   "]
    Path("ask.txt").write_text("".join(f"{text}\n" for text in asked))
    main(["translate", str(RUN), "ask.txt", "--beam", "3"])
    out = capsys.readouterr()
    assert out.out.split("\n")[:-1] == [_expected(asked[0]), "", _expected(asked[2]), ""]
    assert "2 sentences in " in out.err
    _give(monkeypatch, b"\xef\xbb\xbf" + Path("ask.txt").read_bytes().replace(b"\n", b"\r\n"))
    main(["translate", str(RUN), "--scores", "--batch", "1", "--attention", "attention.png"])
    scored = capsys.readouterr().out.split("\n")[:-1]
    assert [line.split("\t")[-1] for line in scored] == out.out.split("\n")[:-1]
    assert all(float(scored[row].split("\t")[0]) < 0 for row in (0, 2))
    assert Path("attention.png").read_bytes().startswith(b"\x89PNG")


def _give(monkeypatch, raw: bytes) -> None:
    """As standard input, the way it is read where no language is set."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw), "ascii", errors="surrogateescape"))


def test_standard_input_that_is_not_utf_8_is_named_with_its_line(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    _give(monkeypatch, b"The dog.\nThe c\xffat.\n")
    assert "standard input, line 2: it is not UTF-8" in refused(["translate", str(RUN)], capsys)


def test_without_standard_input_a_file_is_asked_for(trained, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", None)
    assert "there is no standard input to read from" in refused(["translate", str(trained / RUN)], capsys)


def test_few_long_sentences_are_translated_at_once(trained, monkeypatch):
    sizes = []

    def spied(model, source, *args, **kwargs):
        sizes.append(source.shape)
        return [Translation([], -1.0, None) for _ in source]

    monkeypatch.setattr(translator, "translate", spied)
    monkeypatch.setattr(translator, "MOST_TOKENS", 20)
    texts = ["dog " * size for size in (50, 1, 9, 10, 2, 30, 1)]
    assert len(Translator(trained / RUN).translate(texts, Options(batch=3))) == 7
    assert sizes == [(3, 2), (2, 10), (1, 30), (1, 50)]


def test_a_picture_of_long_sentences_is_no_larger_than_a_screen_can_show(tmp_path, capsys):
    path = tmp_path / "attention.png"
    translator.draw(path, ["你", *"a" * 249], ["b" * 9_999, "</s>"], torch.zeros(2, 250))
    width, height = (int.from_bytes(path.read_bytes()[at : at + 4], "big") for at in (16, 20))
    assert width == 6000
    assert height < 1000
    assert capsys.readouterr().err == f"{path} has boxes for characters that its font does not have\n"


def test_unknown_words_are_copied_by_attention(trained, monkeypatch, capsys):
    translator = Translator(trained / RUN)
    words = ["red", "dog", "Zanzibar"]
    numbered = list(translator.source.encode([word] for word in words))
    found = Translation(next(translator.target.encode([["rojo", "nada"]])), -1.0, torch.eye(3)[[0, 2, 1]])
    for copy, expected in ((False, ["rojo", "<unk>"]), (True, ["rojo", "Zanzibar"])):
        written = translator._written(words, numbered, found, Options(copy_unknown=copy))
        assert written.words == expected
        assert written.source == words
    monkeypatch.chdir(trained)
    Path("strange.txt").write_text("Zanzibar sees the dog.\n")
    main(["translate", str(RUN), "strange.txt", "--copy-unknown"])
    assert len(capsys.readouterr().out.split("\n")) == 2


def test_what_was_not_scored_where_it_ran_is_scored_by_the_same_command(trained, monkeypatch, capsys):
    """From the files of the run's folder alone: without data, checkpoints and the model."""
    monkeypatch.chdir(trained)
    before = _result(trained)
    assert before["notes"]["scoring"].startswith("sacrebleu was not installed")
    assert before["test"].keys() == {"bleu", "bleu_uncased", "perplexity"}
    assert json.loads(Path("runs/iwslt-plmu.json").read_text())["paper"] is None, "its data was another"
    hypotheses, references = (
        (RUN / name).read_text(encoding="utf-8").split("\n")[:-1] for name in ("hypotheses.txt", "references.txt")
    )
    assert before["test"]["bleu"] == pytest.approx(bleu(hypotheses, references))
    monkeypatch.setattr(lookup("iwslt"), "task", lambda _: pytest.fail("data was read"), raising=False)
    main([*COMMAND, *LEARN, *OWN])
    after = _result(trained)
    assert after["test"].keys() == {"bleu", "bleu_uncased", "bleu_detokenised", "perplexity"}
    assert after["test"]["bleu"] == pytest.approx(before["test"]["bleu"])
    assert "bleu nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:" in after["notes"]["scoring"]
    for key in ("hardware", "seconds_training", "command", "valid"):
        assert after[key] == before[key]
    summary = json.loads(Path("runs/iwslt-plmu.json").read_text())
    assert summary["test"]["bleu_detokenised"]["mean"] == after["test"]["bleu_detokenised"]
    assert "scores were added" in capsys.readouterr().out
    main([*COMMAND, *LEARN, *OWN])
    assert "scores were added" not in capsys.readouterr().out


def test_the_best_model_is_scored_again(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    for name in "ab":
        (trained / f"{name}.txt").rename(trained / f"moved-{name}.txt")
    message = refused(["evaluate", str(RUN)], capsys)
    assert "a.txt, which is not there: give --data.source" in message
    main(["evaluate", str(RUN), "--data.source", "moved-a.txt", "--data.target", "moved-b.txt", "--device", "cpu"])
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(printed["bleu"]) == pytest.approx(_result(trained)["test"]["bleu"], rel=1e-5)
    assert "bleu_detokenised" in printed


@pytest.mark.parametrize("model", ["plmu", "lstm", "bpe"])
def test_all_models_train_in_bfloat16_and_translate(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if model == "lstm":  # oneDNN's LSTM fails where ONEDNN_MAX_CPU_ISA is below the processor's
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    folder = iwslt_folder(tmp_path, 100)
    more = ["--training.precision", "bfloat16", *(["--model.pieces", "300"] if model == "bpe" else [])]
    main([*COMMAND, "--data.root", str(folder), "--model", model, "--training.epochs", "1", "--model.beam", "2", *more])
    run = tmp_path / f"runs/iwslt-{model}-seed0"
    result = json.loads((run / "result.json").read_text())
    assert "train partial: 100 of 133,317" in result["notes"]["data"]
    assert result["notes"]["decoding"] == "beam 2, length penalty 1, <unk> not replaced"
    assert (run / ("tokenizer.json" if model == "bpe" else "source-vocabulary.txt")).is_file()
    assert len((run / "hypotheses.txt").read_text(encoding="utf-8").split("\n")) == 101
    capsys.readouterr()
    (tmp_path / "ask.txt").write_text("The red dog.\n\n")
    main(["translate", str(run), "ask.txt", "--copy-unknown"])
    assert capsys.readouterr().out.count("\n") == 2


@pytest.mark.full
def test_a_small_language_is_learned_by_every_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _files(tmp_path)
    for model in EXPERIMENTS["iwslt"].models:
        more = {"lstm": [], "bpe": ["--model.pieces", "300"]}.get(model, [])
        learn = LEARN if model != "lstm" else RATE
        main([*COMMAND, *learn, *OWN, "--model", model, *more])
        assert json.loads(Path(f"runs/iwslt-{model}-seed0/result.json").read_text())["test"]["bleu"] > 90


# ---------------------------------------------------------------- the task


@pytest.fixture
def task(tmp_path):
    experiment = EXPERIMENTS["iwslt"]
    config = experiment.defaults("plmu")
    config.data.root = iwslt_folder(tmp_path, 80)
    config.model.longest = 4
    config.model.width = config.model.embedding = 16
    config.model.attention_heads = 2
    return config, experiment.task(config)


def test_batches_are_of_similar_length_and_long_pairs_are_left_out(task):
    config, made = task
    source, lengths, target, target_lengths = made.train
    assert int(lengths.max()) <= 4
    assert made.notes["longest"] == f"{80 - len(source)} pairs with more than 4 tokens were not trained on"
    assert (target[torch.arange(len(target)), target_lengths - 1] == END).all()
    assert not (target == BEGIN).any()
    assert int(made.test[1].max()) > 4, "those to test on are not"
    config.training.batch_tokens = 40
    batches = source_of(made, config.training, Processes(0, 1, torch.device("cpu")))
    for step in batches.order(torch.Generator().manual_seed(0)):
        rows, some, wanted, some_target = batches.take(step.keys, step.shape)
        assert rows.shape[1] == int(batches.take(step.keys, step.shape)[0].shape[1]) >= int(some.max())
        assert wanted.shape[1] >= int(some_target.max())
        assert len(rows) * max(rows.shape[1], wanted.shape[1]) <= 40
    assert int(made.weight(made.train)) == int(target_lengths.sum())


def test_the_loss_is_of_the_tokens_that_are_there(task):
    config, made = task
    network = EXPERIMENTS["iwslt"].build(config, made).eval()
    batch = tuple(part[:6] for part in made.train)
    whole = made.loss(network, batch)
    expected = []
    for row in range(6):
        size, wanted = int(batch[1][row]), int(batch[3][row])
        target = batch[2][row, :wanted].long()
        given = torch.cat([torch.tensor([BEGIN]), target[:-1]])
        out = network(batch[0][row : row + 1, :size].long(), None, given[None])[0]
        smoothing = config.model.label_smoothing
        expected.append(torch.nn.functional.cross_entropy(out, target, reduction="sum", label_smoothing=smoothing))
    torch.testing.assert_close(whole, torch.stack(expected).sum() / batch[3].sum())
    spoilt = batch[2].clone()
    spoilt[torch.arange(spoilt.shape[1]) >= batch[3][:, None]] = 5
    torch.testing.assert_close(made.loss(network, (*batch[:2], spoilt, batch[3])), whole)


def test_validation_is_greedy_over_all_sentences_and_the_test_by_beam(task, monkeypatch):
    config, made = task
    network = EXPERIMENTS["iwslt"].build(config, made).eval()
    asked = []

    def perfect(model, source, lengths, beam, penalty):
        asked.append(beam)
        return [Translation([PADDING], -1.0, None) for _ in source]

    monkeypatch.setattr(translation, "translate", perfect)
    with torch.no_grad():
        assert made.score(network, made.valid).keys() == {"bleu", "perplexity"}
        assert set(asked) == {1}
        asked.clear()
        made.score(network, made.test)
    assert set(asked) == {config.model.beam}
    assert made.outputs["references.txt"].count("\n") == 80


def test_bleu_is_of_each_translation_against_its_own_reference(task, monkeypatch):
    """Each translation is the reference of its sentence without the last word, so it pays for its brevity."""
    config, made = task
    network = EXPERIMENTS["iwslt"].build(config, made).eval()
    monkeypatch.setattr(translation, "nats", lambda network, split: 0.0)
    for split in (made.valid, made.test):
        answers = {
            tuple(source[:size].tolist()): target[: length - 2].tolist()
            for source, size, target, length in zip(*split[:4], strict=True)
        }
        monkeypatch.setattr(
            translation,
            "translate",
            lambda model, source, lengths, beam, penalty, answers=answers: [
                Translation(answers[tuple(row[:size].tolist())], -1.0, None)
                for row, size in zip(source, lengths, strict=True)
            ],
        )
        whole, short = (
            [" ".join(made.target.decode(row[: size - cut].tolist())) for row, size in zip(*split[2:4], strict=True)]
            for cut in (1, 2)
        )
        expected = BLEU(tokenize="none", force=True).corpus_score(short, [whole]).score
        assert 0 < expected < 95
        assert made.score(network, split)["bleu"] == pytest.approx(expected)
    assert made.outputs["hypotheses.txt"].split("\n")[:-1] == short
    assert made.outputs["references.txt"].split("\n")[:-1] == whole


@pytest.mark.parametrize(("model", "least"), [("plmu", 24.0e6), ("lstm", 23.5e6), ("bpe", 23.5e6)])
def test_models_have_about_the_parameters_of_the_paper_and_no_more(model, least):
    network, _ = built("iwslt", model)
    assert least < sum(p.numel() for p in network.parameters()) <= 24.5e6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["translate", "nothing"], "nothing is not a run"),
        (["translate", str(RUN), "--beam", "0"], "--beam must be at least 1, got 0"),
        (["translate", str(RUN), "--length-penalty", "-1"], "--length-penalty must be at least 0, got -1.0"),
        (["translate", str(RUN), "no.txt"], "no.txt cannot be read"),
        (["translate", str(RUN), "bad.txt"], "bad.txt, line 2: it is not UTF-8"),
        (["translate", str(RUN), "empty.txt", "--attention", "x.png"], "there is no sentence to draw"),
        (["translate", "nothing", "--attention", "x.nothing"], "--attention x.nothing: the name must end like"),
        (["translate", "nothing", "--attention", "x"], "--attention x: the name must end like that of a picture"),
        (["translate", "nothing", "--attention", "no/x.png"], "--attention no/x.png: there is no folder no"),
        ([*COMMAND, "--model.width", "15", *OWN], "model.width must be an even multiple of model.attention_heads = 2"),
        ([*COMMAND, "--name", "x", "--data.source", "a.txt"], "--data.source and --data.target belong together"),
    ],
)
def test_wrong_uses(words, message, trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    Path("bad.txt").write_bytes(b"a\nb\xff\n")
    Path("empty.txt").write_text("\n")
    assert message in refused(words, capsys)


def test_a_run_of_another_experiment_does_not_translate(tmp_path, capsys):
    experiment = EXPERIMENTS["mackey-glass"]
    configuration.write_config(tmp_path, configuration.as_json(experiment, "plmu", experiment.defaults("plmu")))
    message = refused(["translate", str(tmp_path)], capsys)
    assert f"{tmp_path} is a run of mackey-glass, which does not translate: give one of iwslt" in message


def test_detokenised_text_is_what_is_printed(trained):
    (written,) = Translator(trained / RUN).translate(["It's the dog."], Options())
    assert detokenise(written.words) == "es el perro."
