"""Our attack: second order on the gradients, from what R-GAP finds, layers and all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.damped import Damped, Problem
from gradleak.attacks.dlg import Dlg
from gradleak.attacks.known_layers import known_deltas
from gradleak.attacks.layerwise import ConvolutionCache
from gradleak.attacks.search import Members, Search, moments
from gradleak.errors import ConfigError

KINKED = ("relu", "leaky_relu")


@dataclass(frozen=True)
class GaussNewton(Search):
    """Levenberg-Marquardt on the residual r(x) = ∂ℓ/∂W(x) − ∂ℓ/∂W shared, in two stages.

    First with each dℓ/dz that R-GAP's walk finds before a layer lacks rank: these need not be
    computed from x, so that the gradients of their layers are continuous in x even where
    activations have kinks. Residuals are then taken layer by layer relative to the gradient's
    norm; those of layers before the last known one count if they are smooth in x, and not if
    kinks make them jump. Then as DLG does, with all that follows from x, relative to the norm of
    the whole gradient; a start that already has the target distance is returned as it is.

    An answer's `loss` is DLG's relative distance, and it is held for a failure as DLG's is. In
    `evaluations` a passage of the network forward and back counts as one, with or without
    derivatives, and so does a product with J and Jᵀ (measured: 0.3, 1 and 1.05 of DLG's).

    Parameters
    ----------
    iterations
        Most steps of both stages together.
    inner
        Most conjugate-gradient steps for each of them.
    tolerance
        Conjugate gradients end at this share of the preconditioned residual.
    damping
        λ = damping · ||r||² / (n σ²) at first, with σ² the variance of uniform noise in the range
        of inputs: what a move across the range may cost, relative to the residual.
    target
        Stop one step after this relative distance is reached.
    layers
        Whether to run R-GAP's walk for the first stage.
    precondition
        Whether conjugate gradients are preconditioned by R-GAP's layer systems.
    """

    start: str = "given"
    precision: str = "float64"
    iterations: int = 30
    inner: int = 100
    tolerance: float = 1e-2
    damping: float = 0.1
    target: float = 1e-12
    layers: bool = True
    precondition: bool = True
    _cache: ConvolutionCache = field(default_factory=ConvolutionCache, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label == "unknown":
            raise ConfigError(
                "label: unknown is not for gauss_newton; grant the label, or choose method: dlg."
            )

    def search(self, members: Members, views: Sequence[AttackerView]) -> list[Reconstruction]:
        """See `Search.search`; one member after the other, since each has its own factors."""
        known: dict[int, Mapping[str, np.ndarray]] = {}
        out = []
        for number, view in enumerate(views):
            one = members.select(slice(number, number + 1))
            out.append(self._answer(one, view, known))
        return out

    def _answer(
        self, member: Members, view: AttackerView, known: dict[int, Mapping[str, np.ndarray]]
    ) -> Reconstruction:
        plain = Problem(member, precondition=self.precondition)
        best, passes = member.starts, 1
        distance = plain.distance(best)
        trace, stop = [distance], "target reached"
        if np.isfinite(distance) and distance > self.target:
            best = best.clamp(view.low, view.high)
            stages = [plain]
            if self.layers and view.batch == 1:
                if id(view) not in known:
                    known[id(view)] = known_deltas(view, self._cache)
                if known[id(view)]:
                    stages.insert(0, self._first_stage(member, known[id(view)]))
            x, left = best, self.iterations
            for problem in stages:
                run = Damped(
                    problem,
                    spread=(view.high - view.low) ** 2 / 12.0,
                    damping=self.damping,
                    inner=self.inner,
                    tolerance=self.tolerance,
                    target=self.target,
                )
                x = run.minimise(x, left)
                stop = run.stop
                left -= run.steps
                passes += run.passes
                trace += run.trace
            # What either stage ended at counts only if DLG's distance fell.
            found = plain.distance(x)
            if found < distance:
                best, distance = x, found
            else:
                best = member.starts
        images = best[0].double().cpu().numpy()
        return Reconstruction(
            images,
            stop=stop,
            label=int(member.labels[0, 0]) if member.labels is not None else None,
            failure=Dlg().failure(distance, images, view),
            loss=distance,
            evaluations=passes,
            trace=moments(np.array(trace)),
        )

    def _first_stage(self, member: Members, known: Mapping[str, np.ndarray]) -> Problem:
        """Residuals with known δ, layer by layer."""
        network, chain = member.gradients, member.gradients.chain
        smooth = all(layer.activation.name not in KINKED for layer in chain.layers)
        weights = []
        for name, target in zip(network.names, member.targets, strict=True):
            layer = name.split(".")[0]
            norm = float(torch.linalg.vector_norm(target))
            if layer in known or layer.startswith("fc"):
                weights.append(1.0 / norm if norm else 0.0)
            else:
                weights.append(1.0 if smooth else 0.0)
        deltas = {
            name: network.tensor(value)[None] * member.scale[0] for name, value in known.items()
        }
        return Problem(member, weights, deltas, precondition=self.precondition)
