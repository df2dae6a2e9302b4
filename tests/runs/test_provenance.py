"""Where a number comes from: the commit of an unchanged checkout, else a hash of the source."""

import re

import torch

from plmu.runs import provenance as module


def test_the_source_of_a_result_is_named(monkeypatch):
    found = module.provenance(torch.device("cpu"))
    assert found["torch"] == torch.__version__
    assert "threads" in found["hardware"]
    assert found["source"].split()[0] in ("commit", "source")
    monkeypatch.setattr(module, "_git", lambda folder, *words: {"status": "", "rev-parse": "abc"}[words[0]])
    assert module._source() == "commit abc"
    monkeypatch.setattr(module, "_git", lambda folder, *words: {"status": " M a.py", "rev-parse": "abc"}[words[0]])
    assert re.fullmatch("source sha256 [0-9a-f]{16}", module._source())
    monkeypatch.setattr(module, "_git", _no_git)
    assert re.fullmatch("source sha256 [0-9a-f]{16}", module._source())


def _no_git(folder, *words):
    raise OSError("no git")
