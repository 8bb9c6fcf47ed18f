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
from gradleak.servers.plan import Plan, plan
from gradleak.servers.secret import Secret
from gradleak.settings.fields import Count, Whole

# Words for the ways to fix the direction that cross-entropy leaves open.
FREE = {"median": "median of differences between neighbours", "range": "middle of the range"}


class Mkor(Attack):
    """Mean image of every class of a batch at once, without iteration.

    The server's secret locates the paths in its weights. A reconstruction has one image for each
    class that the gradient shows, with the number of images that it averages.

    Images are clipped to the input range, which any attacker knows.
    """

    reads_secret = True

    method: Literal["mkor"] = "mkor"
    # The nodes that the server assigned to each class (eq. 9), or every row of the first layer,
    # weighted by the gradient that each class sends back to it (ours).
    rows: Literal["path", "all"] = "path"
    coupling: Literal["solve", "ignore"] = (
        "solve"  # ignore: eq. (9) as it stands, whatever the loss
    )
    # Repetitions of the backward pass at the features found; 0: at those of a gray image.
    refinements: Whole = 1
    # Fixes the direction that cross-entropy leaves open, see
    # `gradleak.attacks.mkor.free_direction`.
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
        paths = plan(view.chain, secret.settings.get("shifts"))
        means = self._class_means(view, paths, secret)
        values = describers(view.chain, view.weights, paths, secret, means.features)
        if view.chain.is_normalised:
            values = stretched(values, paths)
        regions = Layout(paths, grid(view.chain), view.chain.input[0]).regions(values)
        images = estimate(regions, view.chain.input[1:], self.estimate, self.native, view.low)
        if self.smooth is not None:
            images = smoothed(images, self.smooth)
        classes, counts = tuple(means.classes.tolist()), tuple(means.counts.tolist())
        images = np.clip(images, view.low, view.high)
        return Reconstruction(images, means.note, classes=classes, counts=counts)

    def _class_means(self, view: AttackerView, paths: Plan, secret: Secret) -> ClassMeans:
        """Mean features of each class with the open direction fixed and images counted again."""
        head = Head(view.chain, view.weights, view.loss)
        # Eq. (9) as it stands does not use the features.
        plain = self.rows == "path" and (self.coupling == "ignore" or view.loss == RAW)
        repeats = 0 if plain else self.refinements
        means = self._refined(view, head, paths, secret, repeats=repeats)
        bias = view.gradients.get(f"{head.layers[-1].name}.bias")
        if self.coupling == "ignore" or view.loss == RAW or bias is None:
            return means
        gray = head.probabilities(secret.values["references"][1:2])[0]
        entries = bias.astype(np.float64) / means.scale
        if not is_needed(view.batch * (gray - entries), view.batch):
            return means
        # All classes, so that none is missed as absent.
        first = np.maximum(whole(view.batch * (gray - entries), view.batch), 1)
        settled = self._likeliest(view, head, paths, secret, first)

        def way(counts: np.ndarray) -> np.ndarray:
            found = self._refined(view, head, paths, secret, counts, settled)
            return head.probabilities(_known(found, secret))

        counts = recount(first, entries, view.batch, way)
        found = np.flatnonzero(counts)
        if not np.array_equal(found, means.classes):
            return self._refined(view, head, paths, secret, counts, repeats=repeats)
        # The image counts stay: they hardly depend on the features.
        return replace(means, counts=counts[found])

    def _likeliest(
        self, view: AttackerView, head: Head, paths: Plan, secret: Secret, counts: np.ndarray
    ) -> str:
        """Return how to fix the open direction for `counts`: by features of known value, if any."""
        places, values = constants(head, view.gradients, secret.values["references"])
        if not len(places):
            return self.free

        def off(free: str) -> float:
            found = self._refined(view, head, paths, secret, counts, free).features[:, places]
            return float(np.nanmean(np.abs(found - values)))

        return min((self.free, *ENDS), key=off)

    def _refined(
        self,
        view: AttackerView,
        head: Head,
        paths: Plan,
        secret: Secret,
        counts: np.ndarray | None = None,
        free: str | None = None,
        repeats: int = 2,
    ) -> ClassMeans:
        """Class means of `counts`, recomputed `repeats` times at the features found."""
        given = (head, view.gradients, view.batch, secret, (self.rows, self.coupling))
        at: np.ndarray | None = None
        for _ in range(1 + repeats):
            means = class_means(*given, at, counts)
            if means.direction is not None:
                means = _settled(view.chain, paths, secret, means, free or self.free)
            at = _known(means, secret)
        return means


def _settled(chain: Chain, paths: Plan, secret: Secret, means: ClassMeans, free: str) -> ClassMeans:
    """Class means with the open direction fixed, on the grid of regions."""
    assert means.direction is not None
    black, _, white = secret.values["references"]
    span, unknown = white - black, np.full(means.features.shape, np.nan)
    scaled = np.divide(means.features - black, span, out=unknown, where=span != 0)
    layout = Layout(paths, grid(chain), chain.input[0])
    grids = layout.grids(considered(chain, secret, scaled))
    parts = [settle(values, means.direction, free) for values in grids]
    moved = restored(chain, secret, layout.channels(parts)) * span
    features = means.features + means.direction[:, None] * moved
    note = f"{means.note}, one direction by the {FREE.get(free, free)}"
    return replace(means, features=features, note=note)


def _known(means: ClassMeans, secret: Secret) -> np.ndarray:
    """Features of each class (N', n), gray where the gradient gives no information."""
    gray: np.ndarray = secret.values["references"][1]
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
