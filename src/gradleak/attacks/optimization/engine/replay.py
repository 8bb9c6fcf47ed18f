"""Steps of a search as CUDA graphs: all kernels of a step are launched at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Step = Callable[..., tuple[Tensor | None, ...]]

# Calls before the capture, in which libraries choose algorithms and take their memory.
WARM = 3


class Replayed:
    """A function of tensors that, on CUDA, is captured once and then replayed.

    A step of a search launches hundreds to thousands of kernels, each of which takes less time than
    its launch. The function may depend on nothing but its inputs, always of the same shapes, and
    values that stay where they are in memory; it may change these in place, but must not ask the
    device for a value. What it returns stays valid after the next call. Elsewhere than on CUDA it
    is called as it is.
    """

    def __init__(self, function: Step) -> None:
        self._function = function
        self._calls = 0
        self._side: Any = None
        self._graph: Any = None
        self._given: list[Tensor] = []
        self._found: tuple[Tensor | None, ...] = ()

    def __call__(self, device: torch.device, *inputs: Tensor) -> tuple[Tensor | None, ...]:
        """Call the function, which computes on `device`."""
        if not self._applies(device):
            return self._function(*inputs)
        self._calls += 1
        if self._calls <= WARM:
            return self._warmed(inputs)
        if self._graph is None:
            self._capture(inputs)
        else:
            with torch.no_grad():
                for own, new in zip(self._given, inputs, strict=True):
                    own.copy_(new)
        self._graph.replay()
        return tuple(None if value is None else value.clone() for value in self._found)

    @staticmethod
    def _applies(device: torch.device) -> bool:
        return device.type == "cuda"

    def _warmed(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        # Off the default stream, as capturing is; in one, which keeps the memory that it took.
        self._side = self._side or torch.cuda.Stream()
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            found = self._function(*inputs)
        torch.cuda.current_stream().wait_stream(self._side)
        return found

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self._given = [
            value.detach().clone().requires_grad_(value.requires_grad) for value in inputs
        ]
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._found = self._function(*self._given)
