"""The time of each kernel in a call, by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def kernel_times(call: Callable[[], Any], calls: int = 10) -> dict[str, float]:
    """Microseconds that each kernel takes in a call, the longest first."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    times = {event.key[:60]: event.self_device_time_total / calls for event in profiler.key_averages()}
    return dict(sorted(times.items(), key=lambda item: -item[1]))
