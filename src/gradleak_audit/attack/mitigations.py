"""Defences and architectural changes, each with the network and gradient it leads to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from gradleak.client.defences.base import Defence
from gradleak.client.defences.clipping import Clipping
from gradleak.client.defences.gaussian_noise import GaussianNoise
from gradleak.client.defences.soteria import Soteria, cost
from gradleak.errors import ConfigError
from gradleak.models.activations import Activation
from gradleak.models.build import STATISTICS, check_norms, with_statistics
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import initial_weights
from gradleak.models.locking import with_lock
from gradleak.models.locks import Lock
from gradleak_audit.attack.networks import Arrays, ChainNetwork, ModuleNetwork, Network
from gradleak_audit.read.layer_names import spoken
from gradleak_audit.result import NONE
from gradleak_audit.result import ChangeKind as Kind

# Standard deviations of noise relative to each tensor's own: negligible, moderate, equal.
NOISE = (0.01, 0.1, 1.0)
# Norm that gradients are clipped to, relative to the norm for the first image.
CLIPPED = 0.1
# Share of columns pruned, MKOR Table 7.
PRUNED = 0.3
# As in FedKL's leakage tests.
LOCK = Lock(1024, Activation("sigmoid"))
# Skips that are cut one by one, those with the most features first.
MOST_SKIPS = 3


@dataclass(frozen=True)
class Variant:
    """The network under one change; fields as in `gradleak_audit.result.Change`."""

    id: str
    title: str
    kind: Kind
    batch: int  # images that share a gradient
    network: Network | None = None  # as run by clients; None if it could not be built, see `reason`
    defence: Defence | None = None  # applied to gradients
    reason: str = ""


def variants(
    network: Network,
    batches: Sequence[int],
    *,
    critical: int | None,
    norm: float,
    work: float = math.inf,
) -> list[Variant]:
    """Return the unchanged network, then every change.

    Parameters
    ----------
    network, batches
        The unchanged network, and batch sizes, the first of which is that of the unchanged network.
    critical
        Number of the layer with the largest RA-i, the last layer excluded; None for networks that
        are not chains or have a single layer.
    norm
        Gradient norm of the unchanged network, the reference for clipping.
    work
        Limit on Soteria's multiply-adds for one gradient, beyond which it is skipped.
    """
    first = batches[0]
    out = [Variant(NONE, "unchanged", "none", first, network)]
    for level in NOISE:
        title = f"Gaussian noise of {level:.0%} of each tensor's spread"
        out.append(
            Variant(f"noise_{level:g}", title, "noise", first, network, GaussianNoise(level=level))
        )
    title = f"gradient scaled down to {CLIPPED:.0%} of its norm"
    out.append(Variant("clip", title, "clip", first, network, Clipping(norm=CLIPPED * norm)))
    if isinstance(network, ChainNetwork):
        out += [_soteria(network, first, work), *_architectures(network, first, critical)]
    else:
        assert isinstance(network, ModuleNetwork)
        why = f"It is made for chains of layers: {network.why_no_chain}"
        out += [_untried(kind, first, why) for kind in TITLES]
    for size in batches[1:]:
        title = f"{size} images share a gradient"
        out.append(Variant(f"batch_{size}", title, "batch", size, network))
    return out


TITLES: dict[Kind, str] = {
    "soteria": f"Soteria, {PRUNED:.0%} of the features withheld",
    "lock": "key-lock on the first convolution",
    "cut": "skips cut",
    "fewer": "half the filters",
    "strided": "twice the stride",
}


def _untried(kind: Kind, batch: int, reason: str) -> Variant:
    return Variant(kind, TITLES[kind], kind, batch, reason=reason)


def _soteria(network: ChainNetwork, batch: int, work: float) -> Variant:
    if not network.chain.convolutions:
        return _untried("soteria", batch, "There is no convolution.")
    passes = int(cost(network.chain)["passes"])
    # A backward pass costs about two forward passes.
    if 2 * passes * batch * network.multiply_adds > work:
        why = (
            f"A client would need {passes:,} passes back through the network for each gradient, "
            "more than an audit at this scale takes."
        )
        return _untried("soteria", batch, why)
    return Variant("soteria", TITLES["soteria"], "soteria", batch, network, Soteria(prune=PRUNED))


def _architectures(network: ChainNetwork, batch: int, critical: int | None) -> list[Variant]:
    """Key-lock, cut skips, half the filters, doubled stride."""
    chain = network.chain
    out = []

    def tried(kind: Kind, title: str, edit: Callable[[], Chain], name: str = "") -> None:
        variant = Variant(name or kind, title, kind, batch)
        try:
            found = edit()
            # Raises here if sizes do not fit.
            changed = changed_network(network, found)
            if network.task.mode == "training":
                check_norms(found, batch)
        except ConfigError as error:
            out.append(replace(variant, reason=network.told(str(error))))
        else:
            out.append(replace(variant, network=changed))

    locked = partial(with_lock, chain.specs, ["conv1"], LOCK)
    tried("lock", TITLES["lock"], lambda: replace(chain, specs=locked()))
    ends = skips(chain)
    for end in ends[:MOST_SKIPS]:
        title = f"skip that ends at {spoken(network.names[end])} cut"
        tried("cut", title, partial(cut, chain, [end]), f"cut_{end + 1}")
    if len(ends) > 1:
        tried("cut", f"all {len(ends)} skips cut", partial(cut, chain, ends), "cut_all")
    if not ends:
        out.append(_untried("cut", batch, "There is no skip connection."))
    edits: dict[Kind, Callable[[Chain, int], Chain]] = {"fewer": fewer, "strided": strided}
    for kind, edit in edits.items():
        if critical is None:
            why = "There is no layer before the last, whose outputs are the classes."
            out.append(_untried(kind, batch, why))
        else:
            title = f"{TITLES[kind]} at {spoken(network.names[critical])}"
            tried(kind, title, partial(edit, chain, critical))
    return out


def changed_network(network: ChainNetwork, chain: Chain) -> ChainNetwork:
    """Return a network with another architecture, initializing only what changed.

    Running statistics of norms behind a change would not fit: those of new norms start at 0 and 1,
    all others stay.
    """
    shapes = {name: value.shape for name, value in initial_weights(chain, 0).items()}

    def weights(draw: int) -> Arrays:
        before = network.weights(draw)
        out = initial_weights(chain, draw)
        for name, shape in shapes.items():
            if name in before and before[name].shape == shape:
                out[name] = before[name]
        if any(name.endswith(STATISTICS[0][0]) for name in before):
            out = with_statistics(chain, out)
            for name, value in before.items():
                if name.endswith(tuple(part for part, _ in STATISTICS)) and name in out:
                    out[name] = value if value.shape == out[name].shape else out[name]
        return out

    return replace(network, chain=chain, weights=weights)


def skips(chain: Chain) -> list[int]:
    """Layers at which a skip ends, those with the most features first."""
    sizes = [prod(chain.input)]
    ends = []
    for number, layer in enumerate(chain.convolutions):
        if layer.skip:
            ends.append((-sizes[-layer.skip], number))
        sizes.append(layer.output)
    return [number for _, number in sorted(ends)]


def cut(chain: Chain, ends: Sequence[int]) -> Chain:
    """Remove the skips that end at these layers, and their projections."""
    specs = list(chain.specs)
    for end in ends:
        spec = specs[end]
        assert isinstance(spec, ConvSpec)
        specs[end] = replace(spec, skip=0, projection=False, skip_lock=None)
    return replace(chain, specs=tuple(specs))


def fewer(chain: Chain, number: int) -> Chain:
    """Halve the filters or outputs of a layer and of all layers tied to it by skips.

    Raises `ConfigError` if nothing is left to halve or the sizes no longer fit.
    """
    specs = list(chain.specs)
    if number == len(specs) - 1:
        raise ConfigError("It is the last layer, whose outputs are the classes.")
    for place in sorted(_tied(chain, number)):
        spec = specs[place]
        count = spec.filters if isinstance(spec, ConvSpec) else spec.outputs
        if count < 2:
            raise ConfigError("It has one filter, and half of that is none.")
        if isinstance(spec, ConvSpec):
            specs[place] = replace(spec, filters=count // 2)
        else:
            specs[place] = replace(spec, outputs=count // 2)
    return _resized(chain, specs)


def strided(chain: Chain, number: int) -> Chain:
    """Double the stride of a convolution along both axes.

    Raises `ConfigError` if the layer is fully connected or the sizes no longer fit.
    """
    spec = chain.specs[number]
    if not isinstance(spec, ConvSpec):
        raise ConfigError("It is fully connected, and has no stride.")
    specs = list(chain.specs)
    down, across = spec.stride
    specs[number] = replace(spec, stride=(2 * down, 2 * across))
    return _resized(chain, specs)


def _resized(chain: Chain, specs: Sequence[ConvSpec | LinearSpec]) -> Chain:
    """Replace the layers of a chain; fully connected layers adapt to the new input sizes."""
    free = [replace(s, inputs=None) if isinstance(s, LinearSpec) else s for s in specs]
    found = replace(chain, specs=tuple(free))
    _ = found.layers  # raises `ConfigError` if sizes do not fit
    return found


def _tied(chain: Chain, number: int) -> set[int]:
    """Layers tied to one by skips without projection, which need equally many filters.

    Raises `ConfigError` if the input image is among them.
    """
    tied, before = {number}, set[int]()
    while tied != before:
        before = set(tied)
        for end, layer in enumerate(chain.convolutions):
            if layer.skip and layer.projection is None:
                pair = {end, end - layer.skip}
                tied |= pair if pair & tied else set()
    if -1 in tied:
        raise ConfigError("A skip adds the image itself to it, whose channels are given.")
    return tied


def gradient_norm(gradients: Arrays) -> float:
    """Return the L2 norm over all parameters."""
    return float(np.sqrt(sum(float(np.vdot(v, v)) for v in gradients.values())))
