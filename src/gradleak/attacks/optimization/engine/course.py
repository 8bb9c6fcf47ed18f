"""First-order searches of many members, each of which ends when its objective no longer falls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
import torch
from torch import Tensor

from gradleak.attacks.optimization.engine.lbfgs import CHANGE
from gradleak.attacks.optimization.engine.search_batch import Best
from gradleak.training.optimisers import BETA2, adam_step

# A member's objective no longer falls if so small a fraction of it is all that the steps of a
# window took off its lowest value. DLG has the same.
LEAST = 0.01
# Why a member ends that took all steps of its last rate, but not of all earlier ones.
LAST = "evaluations of the last rate spent"
KEPT = ("value", "distance", "images", "logits")
# Tensors of a course with a row for each member under way.
UNDER_WAY = ("ids", "_at", "_mark", "_since")


class Moving:
    """A value (M, ...) of members that Adam moves."""

    def __init__(self, value: Tensor) -> None:
        self.value = value.clone()
        self._moments = [torch.zeros_like(value), torch.zeros_like(value)]
        self._steps = torch.zeros(())

    def step(self, slope: Tensor, rate: float | Tensor, memory: float = BETA2) -> None:
        """Move along a gradient; `rate` is of all or (M,), `memory` decays second moments."""
        state = [[self._moments[0]], [self._moments[1]], [self._steps]]
        if isinstance(rate, float):
            adam_step([self.value], [slope], state, rate, memory)
            return
        step = torch.zeros_like(slope)
        adam_step([step], [slope], state, 1.0, memory)
        self.value.add_(step * rate.view(-1, *[1] * (step.ndim - 1)))

    def keep(self, rows: Tensor) -> None:
        """Drop the other members."""
        self.value = self.value.detach()[rows]
        self._moments = [moment[rows] for moment in self._moments]

    def state(self) -> dict[str, Tensor]:
        """Tensors from which `restore` goes on."""
        first, second = self._moments
        return {"value": self.value, "first": first, "second": second, "steps": self._steps.view(1)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state` was asked for."""
        self.value, self._steps = state["value"], state["steps"].cpu().view(())
        self._moments = [state["first"], state["second"]]


class Course:
    """Progress of a search's members: their best points, which go on, and at which rate.

    Without `patience` each takes all `rates`. With it, one whose lowest objective fell by less than
    `LEAST` of it over ⌈patience · len(rates)⌉ steps goes on at the next of the steps `lowered`,
    where the rate falls, or ends after the last of these. No member sees another's numbers.
    """

    def __init__(
        self, best: Best, rates: Sequence[float], patience: float, lowered: Sequence[int] = ()
    ) -> None:
        count, device = len(best.value), best.value.device
        self.best = best  # of the members under way
        self.ids = torch.arange(count, device=device)
        self._window = ceil(patience * len(rates))
        self._rates, self._step = rates, 0
        self._each = torch.tensor(rates, dtype=best.value.dtype, device=device)
        # First steps at each lower rate, and the step behind the last.
        self._next = torch.tensor([*lowered, len(rates)], device=device)
        self._last = len(lowered)
        self._at = torch.zeros(count, dtype=torch.long, device=device)
        self._mark = torch.full_like(best.value, torch.inf)
        self._since = torch.zeros_like(self._at)
        self._final: dict[str, Tensor] = {}
        # Objectives (steps, M), NaN behind a member's last. A tensor of its own for each step would
        # fragment the memory that steps free, so that the process would grow.
        self._traces = best.value.new_full((len(rates), count), torch.nan)
        self.steps = np.zeros(count, dtype=int)
        self.stop = [""] * count

    @property
    def rate(self) -> float | Tensor:
        """Rate of the next step: of all, or with patience of each (M,)."""
        return self._each[self._at] if self._window else self._rates[self._step]

    def tell(self, value: Tensor, spent: str) -> Tensor | None:
        """Note objectives (M,) after `best` was offered the point, and count a step.

        Returns which rows go on if others end, and keeps these. `spent` is the reason to stop of a
        member that took all its steps.
        """
        self._traces[self._step, self.ids] = value
        self._step += 1
        over = self._step == len(self._rates)
        stalled = torch.zeros_like(self.ids, dtype=torch.bool)
        ended = torch.full_like(stalled, over)
        if self._window:
            stalled = self._stalled(value)
            ended = self._at >= len(self._rates)
            over = bool(ended.any())
        # Without a window nothing is asked of an accelerator before the end.
        if not over:
            return None
        self._end(ended, stalled, spent)
        return ~ended

    def _stalled(self, value: Tensor) -> Tensor:
        """Count a step of each, and send those that have stalled to their next rate."""
        self._at = self._at + 1
        fell = value < (1.0 - LEAST) * self._mark
        self._mark = torch.where(fell, value, self._mark)
        self._since = torch.where(fell, 0, self._since + 1)
        stalled = (self._since >= self._window) & (self._at < len(self._rates))
        later = self._next[torch.searchsorted(self._next, self._at).clamp(max=self._last)]
        self._at = torch.where(stalled, later, self._at)
        self._since = torch.where(torch.isin(self._at, self._next), 0, self._since)
        return stalled

    def _end(self, ended: Tensor, stalled: Tensor, spent: str) -> None:
        ids = self.ids[ended]
        for name in KEPT:
            own: Tensor = getattr(self.best, name)
            if name not in self._final:
                self._final[name] = own.new_empty(len(self.stop), *own.shape[1:])
            self._final[name][ids] = own[ended]
            setattr(self.best, name, own[~ended])
        for member, why in zip(ids.tolist(), stalled[ended].tolist(), strict=True):
            whole = LAST if self.taken < len(self._rates) else spent
            self.stop[member], self.steps[member] = CHANGE if why else whole, self.taken
        rows = ~ended
        self.ids, self._at = self.ids[rows], self._at[rows]
        self._mark, self._since = self._mark[rows], self._since[rows]

    def final(self, name: str) -> Tensor:
        """Best ``value``, ``distance`` (M,), ``images`` or ``logits`` of all members at the end."""
        return self._final[name]

    @property
    def taken(self) -> int:
        """Number of steps that were told of."""
        return self._step

    def state(self) -> dict[str, Tensor]:
        """Tensors from which `restore` goes on; `stop` tells the rest."""
        out = {name: getattr(self, name) for name in UNDER_WAY}
        out |= {f"best.{name}": getattr(self.best, name) for name in KEPT}
        out |= {f"final.{name}": value for name, value in self._final.items()}
        rest = {"taken": torch.tensor(self._step), "steps": torch.from_numpy(self.steps)}
        return out | rest | {"traces": self._traces[: self._step]}

    def restore(self, state: Mapping[str, Tensor], stop: Sequence[str]) -> None:
        """Go on where `state` was asked for, at which members had stopped as in `stop`."""
        for name in UNDER_WAY:
            setattr(self, name, state[name])
        for name in KEPT:
            setattr(self.best, name, state[f"best.{name}"])
            if f"final.{name}" in state:
                self._final[name] = state[f"final.{name}"]
        self._step, self.stop = int(state["taken"]), [*stop]
        self.steps = state["steps"].cpu().numpy()
        self._traces[: self._step] = state["traces"]

    def traces(self) -> list[np.ndarray]:
        """Objectives of each member's steps."""
        found = self._traces[: self._step].cpu().double().numpy()
        return [found[:steps, member] for member, steps in enumerate(self.steps)]
