"""MKOR's reconstruction from one gradient (Wang, Velipasalar, Gursoy, Algorithm 1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import model_validator

from gradleak.attacks.base import Attack, AttackerView, Reconstruction
from gradleak.attacks.mkor.decoupling import ClassMeans, class_means
from gradleak.attacks.mkor.features import considered, describers, grid, restored, stretched
from gradleak.attacks.mkor.free_direction import ENDS, settle
from gradleak.attacks.mkor.head import Head
from gradleak.attacks.mkor.pixels import Layout, estimate, smoothed
from gradleak.attacks.mkor.recount import constants, is_needed, recount, whole
from gradleak.client.gradient_checks import check_gradient
from gradleak.errors import NumericsError
from gradleak.models.chain import Chain
from gradleak.models.losses import OF_CLASSES, RAW
from gradleak.servers.plan import plan
from gradleak.servers.secret import Secret
from gradleak.settings.fields import Count, Whole

# Words for the ways to fix the direction that cross-entropy leaves open.
FREE = {"median": "median of differences between neighbours", "range": "middle of the range"}


def estimate_for(chain: Chain) -> str:
    """Return the `estimate` that fits the pools of a chain."""
    average = any(layer.pool == "average" for layer in chain.convolutions)
    return "average" if average else "bounds"


class Mkor(Attack):
    """Mean image of every class of a batch at once, without iteration.

    The server's secret locates the paths in its weights. A reconstruction has one image for each
    class that the gradient shows, with the number of images that it averages.

    Images are clipped to the input range, which any attacker knows.
    """

    reads_secret = True
    threat = "F"

    method: Literal["mkor"] = "mkor"
    # The nodes that the server assigned to each class (eq. 9), or every row of the first layer,
    # weighted by the gradient that each class sends back to it (ours).
    rows: Literal["path", "all"] = "path"
    # ignore: eq. (9) as it stands, whatever the loss
    coupling: Literal["solve", "ignore"] = "solve"
    # Repetitions of the backward pass at the features found; 0: at those of a gray image.
    refinements: Whole = 1
    # Fixes the direction that cross-entropy leaves open (`gradleak.attacks.mkor.free_direction`).
    free: Literal["median", "range"] = "median"
    # Bounds (eq. 17 to 19) for max pools or none; section 3.6 or two methods of ours for average.
    estimate: Literal["bounds", "direct", "average", "least_squares"] = "bounds"
    native: Count | None = None  # side of the images before they were enlarged, if known
    # Odd side in pixels of the final smoothing filter, see `pixels.smoothed`; the authors' code has
    # 5 behind VGG-16, the paper gives none.
    smooth: Count | None = None

    @model_validator(mode="after")
    def _fitting(self) -> Mkor:
        if self.rows == "all" and self.coupling == "ignore":
            raise ValueError(
                "coupling: ignore is eq. (9), which needs rows: path; set that, or coupling: solve"
            )
        if self.smooth is not None and self.smooth % 2 == 0:
            raise ValueError(
                f"smooth: {self.smooth} has no middle pixel; give an odd side, or null for none"
            )
        if self.native is not None and self.estimate in ("direct", "least_squares"):
            raise ValueError(f"native is not for estimate: {self.estimate}; take one of them out")
        return self

    def applies(self, chain: Chain) -> str | None:
        """See `gradleak.attacks.base.Attack`."""
        if chain.classes == 1:
            return f"{chain.name} has one output; MKOR tells images apart by their classes."
        pools = {layer.pool for layer in chain.convolutions} - {"none"}
        wrong = {"max": ("direct", "average", "least_squares"), "average": ("bounds",)}
        for pool in sorted(pools):
            if pool not in wrong:
                return (
                    f"{chain.name} has a pool '{pool}', whose regions MKOR does not know; use 2x2 "
                    "max or average pools, or strides."
                )
            if self.estimate in wrong[pool]:
                return (
                    f"{chain.name} has {pool} pools, whose regions estimate: {self.estimate} does "
                    "not fit; choose bounds for max pools, direct, average or least_squares for "
                    "average pools."
                )
        side = chain.input[1]
        if self.native is not None and (side % self.native or chain.input[1] != chain.input[2]):
            return (
                f"{chain.name} takes images of {side}x{chain.input[2]}, which native: "
                f"{self.native} does not divide; correct or drop it."
            )
        return None

    def run(self, view: AttackerView, seed: int) -> Reconstruction:
        """See `gradleak.attacks.base.Attack`; deterministic, `seed` is ignored."""
        secret = own_secret(view, "mkor")
        if view.loss not in OF_CLASSES:
            raise NumericsError(
                f"MKOR tells images apart by their classes, which the {view.loss} loss does not "
                "have; choose cross_entropy."
            )
        check_gradient(view.chain, view.gradients)
        batch = _Batch(self, view, secret)
        means, paths = batch.means(), batch.paths
        values = describers(view.chain, view.weights, paths, secret, means.features)
        if view.chain.is_normalised:
            values = stretched(values, paths)
        regions = batch.layout.regions(values)
        images = estimate(regions, view.chain.input[1:], self.estimate, self.native, view.low)
        if self.smooth is not None:
            images = smoothed(images, self.smooth)
        classes, counts = tuple(means.classes.tolist()), tuple(means.counts.tolist())
        images = np.clip(images, view.low, view.high)
        return Reconstruction(images, means.note, classes=classes, counts=counts)


class _Batch:
    """One gradient with the settings, the secret, the classifier and the paths."""

    def __init__(self, attack: Mkor, view: AttackerView, secret: Secret) -> None:
        self.attack, self.view, self.secret = attack, view, secret
        self.paths = plan(view.chain, secret.settings.get("shifts"))
        self.layout = Layout(self.paths, grid(view.chain), view.chain.input[0])
        self.head = Head(view.chain, view.weights, view.loss)

    def means(self) -> ClassMeans:
        """Mean features of each class with the open direction fixed and images counted again."""
        head, count = self.head, self.view.batch
        # Eq. (9) as it stands does not use the features.
        alone = self.attack.coupling == "ignore" or head.loss == RAW
        repeats = 0 if alone and self.attack.rows == "path" else self.attack.refinements
        means = self._refined(repeats=repeats)
        bias = self.view.gradients.get(f"{head.layers[-1].name}.bias")
        if alone or bias is None:
            return means
        gray = head.probabilities(self.secret.values["references"][1:2])[0]
        entries = bias.astype(np.float64) / means.scale
        if not is_needed(count * (gray - entries), count):
            return means
        # All classes, so that none is missed as absent.
        first = np.maximum(whole(count * (gray - entries), count), 1)
        free = self._likeliest(first)

        def way(counts: np.ndarray) -> np.ndarray:
            return head.probabilities(self._known(self._refined(counts, free)))

        counts = recount(first, entries, count, way)
        found = np.flatnonzero(counts)
        if not np.array_equal(found, means.classes):
            return self._refined(counts, repeats=repeats)
        # The image counts stay: they hardly depend on the features.
        return replace(means, counts=counts[found])

    def _likeliest(self, counts: np.ndarray) -> str:
        """Return how to fix the open direction for `counts`: by features of known value, if any."""
        references = self.secret.values["references"]
        places, values = constants(self.head, self.view.gradients, references)
        if not len(places):
            return self.attack.free

        def off(free: str) -> float:
            found = self._refined(counts, free).features[:, places]
            return float(np.nanmean(np.abs(found - values)))

        return min((self.attack.free, *ENDS), key=off)

    def _refined(
        self, counts: np.ndarray | None = None, free: str | None = None, repeats: int = 2
    ) -> ClassMeans:
        """Class means of `counts`, recomputed `repeats` times at the features found."""
        view, how = self.view, (self.attack.rows, self.attack.coupling)
        at: np.ndarray | None = None
        for _ in range(1 + repeats):
            means = class_means(self.head, view.gradients, view.batch, self.secret, how, at, counts)
            if means.direction is not None:
                means = self._settled(means, means.direction, free or self.attack.free)
            at = self._known(means)
        return means

    def _settled(self, means: ClassMeans, direction: np.ndarray, free: str) -> ClassMeans:
        """Class means with the open direction fixed, on the grid of regions."""
        chain, secret = self.view.chain, self.secret
        black, _, white = secret.values["references"]
        span, unknown = white - black, np.full(means.features.shape, np.nan)
        scaled = np.divide(means.features - black, span, out=unknown, where=span != 0)
        grids = self.layout.grids(considered(chain, secret, scaled))
        parts = [settle(values, direction, free) for values in grids]
        moved = restored(chain, secret, self.layout.channels(parts)) * span
        features = means.features + direction[:, None] * moved
        note = f"{means.note}, one direction by the {FREE.get(free, free)}"
        return replace(means, features=features, note=note)

    def _known(self, means: ClassMeans) -> np.ndarray:
        """Features of each class (N', n), gray where the gradient gives no information."""
        gray: np.ndarray = self.secret.values["references"][1]
        return np.where(np.isnan(means.features), gray, means.features)


def own_secret(view: AttackerView, method: str) -> Secret:
    """Secret of the server that sent the weights; `NumericsError` if there is no such secret."""
    secret = view.secret
    if secret is None or secret.method != method:
        raise NumericsError(
            f"The weights were not sent by a server of method: {method}, so there is no secret to "
            "read; give the experiment such a server."
        )
    if secret.fingerprint != view.fingerprint:
        raise NumericsError(
            "The update is not of the weights that this server sent (fingerprint "
            f"{view.fingerprint[:12] or 'missing'} instead of {secret.fingerprint[:12]}); ask the "
            "client for the gradient of this round."
        )
    return secret
