"""Generative gradient leakage: a generator's latent vector by CMA-ES (Li et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.optimization.optimization_attack import Ready, Search, Share, moments
from gradleak.errors import NumericsError, require_extra
from gradleak.models.chain import Chain
from gradleak.runtime.progress import progress
from gradleak.settings.fields import AmountOrName, Count, Hidden, Identifier

if TYPE_CHECKING:
    from torch import Tensor

    from gradleak.attacks.optimization.engine.search_batch import Members
    from gradleak.training.generators.base import Generator

SPENT, BLANK = "evaluations spent", "candidates not told apart"
# Rounding error of ‖∇W' − ∇W‖ relative to ‖∇W‖: shared gradients are float32, and that of the
# true image itself is 1e-7 away (measured, ResNet-18), a few times more in deeper networks.
ROUNDING = 1e-6
# Keeps log σ finite where all values of a latent vector are equal.
TINY = 1e-10


class Ggl(Search):
    """Minimise ||∇W' − ∇W||² / ||∇W||² + prior · KL(z) over latent vectors z of a generator.

    ∇W' is the gradient for the generator's image of z and of the label, which is granted or
    inferred from the gradient's signs; the image is scaled to the input range. With mean μ and
    standard deviation σ of the values of z, KL(z) = ½ (μ² + σ² − 1 − log σ²) is the divergence of
    N(μ, σ²) from N(0, 1): the authors' regulariser, which keeps z where the generator was trained.
    The authors use absolute gradients and divide by the number of tensors.

    CMA-ES starts at z = 0, where the generator's prior is densest, and the best z seen is kept. A
    run fails if its distance never becomes finite or stays at `failure_loss` or above; 2 is the
    distance of an unrelated gradient of the same norm. It also fails, after its first generation,
    if ||∇W' − ∇W|| / ||∇W|| differs by no more than `ROUNDING` between all candidates: rounding
    alone can explain that, and CMA-ES would minimise the prior.
    """

    distance = "relative squared distance of gradients"

    threat = "D"  # its generator is trained on other data
    method: Literal["ggl"] = "ggl"
    generator: Identifier  # entry of `generators` in config.yaml
    generations: AmountOrName = 500
    population: Annotated[Count, Field(ge=2)] = 50  # latent vectors per generation
    sigma: PositiveFloat = 0.5  # their initial standard deviation
    bound: PositiveFloat = 2.0  # of the values of z; CMA-ES folds samples back smoothly
    prior: Share = 0.001
    failure_loss: PositiveFloat = 2.0
    generator_file: Hidden[str] = ""  # its path
    chunk: Hidden[int] = 1  # each run fills a batch with its own population

    @cached_property
    def _generator(self) -> Generator:
        from gradleak.training.generators import files

        return files.read(self.generator_file)

    def applies(self, chain: Chain, mode: str = "training") -> str | None:
        """See `gradleak.attacks.base.ManyAttack`."""
        generator = self._generator
        if generator.shape != chain.input:
            return (
                f"{chain.name} takes images of {list(chain.input)}, but the generator draws "
                f"{list(generator.shape)}; choose a generator of that size."
            )
        if generator.classes != chain.classes:
            return (
                f"{chain.name} has {chain.classes} outputs, but the generator knows "
                f"{generator.classes} classes; choose a generator of the same data set."
            )
        return super().applies(chain, mode)

    def _prepare(self, view: AttackerView, seed: int) -> Ready:
        """As in `Search`, for a single image."""
        if view.batch > 1:
            raise NumericsError(
                f"The gradient is of {view.batch} images, but ggl searches for a single one; "
                "choose targets without batch."
            )
        return super()._prepare(view, seed)

    def search(self, members: Members, views: Sequence[AttackerView]) -> list[Reconstruction]:
        """See `Search.search`; one member at a time, each with its whole population at once."""
        return [
            self._run(members.select(slice(number, number + 1)), views[number])
            for number in progress(range(len(views)), "searches")
        ]

    def _run(self, member: Members, view: AttackerView) -> Reconstruction:
        import torch

        from gradleak.attacks.optimization.engine.search_batch import Population

        assert member.labels is not None
        device, label = member.scale.device, int(member.labels[0, 0])
        generator = self._generator.to(device)

        def images(latents: np.ndarray) -> Tensor:
            """Images (P, 1, C, H, W), in the range of the input, of latent vectors (P, n)."""
            z = torch.from_numpy(latents).to(device, torch.float32)
            drawn = generator.images(z, torch.full((len(latents),), label, device=device))
            return (view.low + (view.high - view.low) * drawn).unsqueeze(1)

        population = Population(member, self.population)
        strategy = self._strategy(member)
        best, least, reached = np.zeros(self._generator.latent), np.inf, np.inf
        trace: list[float] = []
        blank = ""
        with progress(self.generations, "generations") as bar:
            while not blank and not strategy.stop():
                drawn = np.array(strategy.ask())
                distances = population.distances(images(drawn)).double().cpu().numpy()
                values = distances + self.prior * divergence(drawn)
                if np.nanmin(values, initial=np.inf) < least:
                    first = int(np.nanargmin(values))
                    best, least = drawn[first], float(values[first])
                    reached = float(distances[first])
                strategy.tell(list(drawn), list(_ranked(values)))
                blank = "" if trace else indistinct(distances)
                trace.append(least)
                bar.update()
        ended = strategy.stop()
        reason = SPENT if "maxiter" in ended else f"cma: {', '.join(sorted(ended))}"
        return Reconstruction(
            images(best[None])[0].double().cpu().numpy(),
            stop=BLANK if blank else reason,
            label=label,
            failure=blank or self.failure(reached),
            loss=least,
            evaluations=self.population * len(trace),
            trace=moments(np.array(trace)),
        )

    def _strategy(self, member: Members) -> Any:
        """CMA-ES with its own random numbers, without files or output."""
        require_extra("pipeline", "cma")
        # Imported here only: it takes most of a second.
        from cma import CMAEvolutionStrategy

        draw = np.random.default_rng(member.seeds[0].tolist())
        options = {
            "popsize": self.population,
            "maxiter": self.generations,
            "bounds": [-self.bound, self.bound],
            "randn": lambda *shape: draw.standard_normal(shape),
            "seed": np.nan,  # else PyCMA seeds NumPy's own generator
        }
        options |= {"verbose": -9, "verb_log": 0, "signals_filename": ""}
        return CMAEvolutionStrategy(np.zeros(self._generator.latent), self.sigma, options)


def divergence(latents: np.ndarray) -> np.ndarray:
    """Return KL (P,) of N(μ, σ²) from N(0, 1), with μ and σ of each latent vector (P, n)."""
    mean, variance = latents.mean(1), latents.var(1)
    found: np.ndarray = 0.5 * (mean**2 + variance - 1.0 - np.log(variance + TINY))
    return found


def indistinct(distances: np.ndarray) -> str:
    """Return why relative squared distances (P,) are uninformative; empty if they are not."""
    roots = np.sqrt(distances[np.isfinite(distances)])
    if len(roots) < 2 or np.ptp(roots) > ROUNDING:
        return ""
    return (
        f"The gradients of all {len(roots)} first candidates are {roots.min():.2g} to "
        f"{roots.max():.2g} of its norm away from the shared one, which differ by no more than "
        f"rounding ({ROUNDING:g}): this gradient says nothing of the image; use a network whose "
        "gradient does."
    )


def _ranked(values: np.ndarray) -> np.ndarray:
    """Replace non-finite values (P,) so that CMA-ES ranks them last."""
    finite = np.isfinite(values)
    worst = values[finite].max() if finite.any() else 0.0
    return np.where(finite, values, worst + abs(worst) + 1.0)
