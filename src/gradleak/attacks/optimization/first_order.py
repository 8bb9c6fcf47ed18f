"""Base of first-order searches: a number of steps, or fewer where the objective no longer falls."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo

from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.optimization.optimization_attack import Search
from gradleak.runtime.progress import progress
from gradleak.settings.fields import ScaledFraction

if TYPE_CHECKING:
    from torch import Tensor

    from gradleak.attacks.finished import UnderWay
    from gradleak.attacks.optimization.engine.course import Course
    from gradleak.attacks.optimization.engine.search_batch import Members

# Patience at scale night: `python -m benchmarks.patience` lost at most 0.9 dB on an image by it.
NIGHT = 0.1


def _of_scale(value: Any, info: ValidationInfo) -> Any:
    """Patience without a value of its own: some at scale ``night``, none at others."""
    if value is not None:
        return value
    return NIGHT if info.context and info.context["scale"] == "night" else 0.0


class Moved(Protocol):
    """Values that a search moves, whose state can be kept."""

    def state(self) -> dict[str, Tensor]:
        """Tensors from which `restore` goes on."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state` was asked for."""


class FirstOrder(Search):
    """A search of a given number of first-order steps at most, whose best point counts.

    Where finished parts are kept, so is the state of the part under way, now and then.
    """

    # Share of the iterations after which a run goes on at its next rate, or ends, if these lowered
    # its lowest objective by less than 1 %; 0: it takes all. By default 0.1 at scale night, else 0;
    # by scale, laptop's holds at night if none is given there. Ignored where the distance
    # cannot fall to 0 (`Members.mismatched`).
    patience: Annotated[ScaledFraction, BeforeValidator(_of_scale)] = Field(
        default=None, validate_default=True, json_schema_extra={"default": 0.0}
    )

    _under_way: UnderWay | None = PrivateAttr(default=None)

    def search(self, members: Members, views: Sequence[AttackerView]) -> list[Reconstruction]:
        """See `Search.search`; the members of each part at once."""
        out: list[Reconstruction] = []
        with progress(len(members), "searches") as bar:
            for number, part in enumerate(self._parts(members)):
                if self._finished:
                    self._under_way = self._finished.under_way(number)
                with bar.doing(part.stop - part.start):
                    out += self._search(members.select(part), views[part])
        return out

    def _parts(self, members: Members) -> Sequence[slice]:
        return members.parts()

    @abstractmethod
    def _search(self, members: Members, views: Sequence[AttackerView]) -> list[Reconstruction]:
        """Optimise members at once."""

    def patience_for(self, members: Members) -> float:
        """Patience of a course; 0 where a part that no image can match hides progress."""
        return 0.0 if members.mismatched else self.patience

    def resume(self, course: Course, moved: Mapping[str, Moved]) -> bool:
        """Go on where a search was cut off; returns False where there is nothing to go on from."""
        import torch

        kept = self._under_way.load() if self._under_way else None
        if kept is None:
            return False
        arrays, stop = kept
        device = course.ids.device
        states: dict[str, dict[str, Tensor]] = {}
        for name, value in arrays.items():
            whose, _, own = name.partition(" ")
            states.setdefault(whose, {})[own] = torch.from_numpy(value).to(device)
        for whose, one in moved.items():
            one.restore(states[whose])
        course.restore(states["course"], stop)
        return True

    def note(self, course: Course, moved: Mapping[str, Moved], *, last: bool = False) -> None:
        """Keep the state of a search if it is time, or the `last`, from which `answers` follow."""
        if self._under_way is None or not (last or self._under_way.is_due):
            return
        states = {"course": course.state()} | {whose: one.state() for whose, one in moved.items()}
        arrays = {
            f"{whose} {name}": value.detach().cpu().numpy()
            for whose, state in states.items()
            for name, value in state.items()
        }
        self._under_way.save(arrays, course.stop)

    def answers(self, members: Members, course: Course, images: Tensor) -> list[Reconstruction]:
        """Reconstructions at the best points of a course that ended, whose images are `images`."""
        return self.reconstructions(
            members,
            images,
            course.final("logits"),
            course.traces(),
            stop=course.stop,
            failure=[self.failure(one) for one in course.final("distance").tolist()],
            loss=course.final("value").tolist(),
            evaluations=course.steps.tolist(),
        )
