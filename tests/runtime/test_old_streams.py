"""The state of a stream that an earlier version saved goes on in this one."""

import base64
from pathlib import Path

import pytest
import torch
from torch import nn

import plmu
from plmu.modelfiles.compare import fingerprint

# Five steps of the model below, saved by version 0.1.0 before models were folded.
FILE = (
    "EAIAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJwbG11Ijoie1wiZm9ybWF0XCI6IDEsIFwia2luZFwiOiBcInN0cmVhbVwiLCBcInN0ZXBzXCI6ID"
    "UsIFwic2luZ2xlXCI6IHRydWUsIFwibWlzc2luZ1wiOiBcImhvbGRcIiwgXCJmaW5nZXJwcmludFwiOiBcImRiOGZhMWU1ZDc1M2JkNDU0YjU2"
    "M2JhY2MwNGJlNzJkZGY3MjFjYjI1ZDAxNTZjZDhmZWZhZGZlYTM3YzRiNmZcIn0ifSwibGFzdCI6eyJkdHlwZSI6IkYzMiIsInNoYXBlIjpbMS"
    "wyXSwiZGF0YV9vZmZzZXRzIjpbMCw4XX0sInN0YXRlLjAiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzEsNCwxXSwiZGF0YV9vZmZzZXRzIjpb"
    "OCwyNF19LCJzdGF0ZS4xIjp7ImR0eXBlIjoiRjMyIiwic2hhcGUiOlsxLDJdLCJkYXRhX29mZnNldHMiOlsyNCwzMl19LCJzdGF0ZS4yIjp7Im"
    "R0eXBlIjoiRjMyIiwic2hhcGUiOlsxLDMsMl0sImRhdGFfb2Zmc2V0cyI6WzMyLDU2XX0sInN0YXRlLjMiOnsiZHR5cGUiOiJGMzIiLCJzaGFw"
    "ZSI6WzEsMiwyXSwiZGF0YV9vZmZzZXRzIjpbNTYsNzJdfX0gICAgICAAAAA/AAAAAJSa3r2onKg8IoC9PQBjw7lUz1Q9HtmcuzvlZj1+pcK7AE"
    "peORw9lbrIvby7PBezO1ndPj1E8yK7WqRpvCy+q7o="
)
NEXT = -0.3929824  # what that version gave for the sixth sample


def model() -> plmu.Sequential:
    made = plmu.Sequential(
        nn.Linear(2, 3),
        plmu.Residual(plmu.ParallelLMU(3, 3, order=4, theta=7.0)),
        nn.Dropout(0.1),
        nn.GELU(),
        plmu.LMU(3, 2, order=3, theta=[4.0, 9.0], memory_size=2),
        plmu.DelayLayer(2, order=2, theta=5.0, missing="zero"),
        nn.Linear(4, 1),
    )
    return filled(made)


def filled(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for value in model.parameters():
            value.copy_((torch.arange(value.numel()).reshape(value.shape) % 7 - 3) / 8)
    return model


def test_an_older_stream_goes_on(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(base64.b64decode(FILE))
    stream = plmu.Stream.restore(model(), tmp_path / "state")
    assert (stream.steps, stream.missing) == (5, "hold")
    # Printed to seven digits; a step sums fewer than 100 products.
    bound = 0.5e-7 + 100 * torch.finfo(torch.float32).eps
    assert stream.push([1.0, 0.5]).item() == pytest.approx(NEXT, rel=0, abs=bound)


class Model(plmu.Sequential):
    """Of a class of one's own all public attributes count."""


class Layer(plmu.ParallelLMU):
    """The same."""


class Delayed(plmu.DelayLayer):
    """The same."""


class Original(plmu.LMU):
    """The same."""


SMALL = {"order": 4, "theta": 7.0}
FINGERPRINTS = {
    "7bd46243": lambda: Model(nn.Linear(3, 3), plmu.ParallelLMU(3, 4, **SMALL)),
    "aa09a1e1": lambda: Model(plmu.ParallelLMU(3, 4, **SMALL, return_sequences=False)),
    "89e5fce5": lambda: Layer(3, 4, **SMALL),
    "ccb92af9": lambda: Delayed(3, **SMALL),
    "839cabc8": lambda: Original(3, 4, **SMALL),
}


@pytest.mark.parametrize("begins", FINGERPRINTS)
def test_fingerprints_of_classes_of_ones_own_are_as_they_were(begins: str) -> None:
    assert fingerprint(filled(FINGERPRINTS[begins]())).startswith(begins)


def test_it_is_still_refused_by_another_model(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(base64.b64decode(FILE))
    other = model()
    nn.init.constant_(other.layers[0].bias, 0.25)
    with pytest.raises(plmu.FileFormatError, match="another model"):
        plmu.Stream.restore(other, tmp_path / "state")
