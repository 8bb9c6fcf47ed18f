"""Defences and architectural changes, each with the network and gradient it leads to."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

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
from gradleak.reading.layer_names import spoken
from gradleak_audit.attack.networks import Arrays, ChainNetwork, ModuleNetwork, Network
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
    """Return the unchanged network, which has the first batch size, then every change.

    `critical` is the number of the layer with the largest RA-i, the last one excluded, None without
    one. Gradients are clipped relative to `norm`, that of the unchanged network. `work` limits
    Soteria's multiply-adds for one gradient.
    """
    first = batches[0]
    out = [Variant(NONE, "unchanged", "none", first, network)]
    for level in NOISE:
        title, noise = f"Gaussian noise of {level:.0%} of each tensor's spread", f"noise_{level:g}"
        out.append(Variant(noise, title, "noise", first, network, GaussianNoise(level=level)))
    title = f"gradient scaled down to {CLIPPED:.0%} of its norm"
    out.append(Variant("clip", title, "clip", first, network, Clipping(norm=CLIPPED * norm)))
    if isinstance(network, ChainNetwork):
        out += [_soteria(network, first, work), *_architectures(network, first, critical)]
    else:
        assert isinstance(network, ModuleNetwork)
        why = "It is made for chains of layers, which this network is not."
        out += [_untried(kind, first, why) for kind in TITLES]
    return out + [
        Variant(f"batch_{size}", f"{size} images share a gradient", "batch", size, network)
        for size in batches[1:]
    ]


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
        why = f"A client would need {passes:,} passes back through the network for each gradient, "
        return _untried("soteria", batch, f"{why}more than an audit at this scale takes.")
    return Variant("soteria", TITLES["soteria"], "soteria", batch, network, Soteria(prune=PRUNED))


def _architectures(network: ChainNetwork, batch: int, critical: int | None) -> list[Variant]:
    chain = network.chain

    def tried(kind: Kind, title: str, edit: Callable[[], Chain], name: str = "") -> Variant:
        variant = Variant(name or kind, title, kind, batch)
        try:
            found = edit()
            changed = changed_network(network, found)
            if network.task.mode == "training":
                check_norms(found, batch)
        except ConfigError as error:
            return replace(variant, reason=network.told(str(error)))
        return replace(variant, network=changed)

    locked = partial(with_lock, chain.specs, ["conv1"], LOCK)
    out = [tried("lock", TITLES["lock"], lambda: replace(chain, specs=locked()))]
    ends = skips(chain)
    for end in ends[:MOST_SKIPS]:
        title = f"skip that ends at {spoken(network.names[end])} cut"
        out.append(tried("cut", title, partial(cut, chain, [end]), f"cut_{end + 1}"))
    if len(ends) > 1:
        title = f"all {len(ends)} skips cut"
        out.append(tried("cut", title, partial(cut, chain, ends), "cut_all"))
    if not ends:
        out.append(_untried("cut", batch, "There is no skip connection."))
    edits: dict[Kind, Callable[[Chain, int], Chain]] = {"fewer": fewer, "strided": strided}
    if critical is None:
        why = "There is no layer before the last, whose outputs are the classes."
        return out + [_untried(kind, batch, why) for kind in edits]
    for kind, edit in edits.items():
        title = f"{TITLES[kind]} at {spoken(network.names[critical])}"
        out.append(tried(kind, title, partial(edit, chain, critical)))
    return out


def changed_network(network: ChainNetwork, chain: Chain) -> ChainNetwork:
    """Return a network with another architecture, initializing only what changed."""
    initial_weights(chain, 0)  # raises `ConfigError` if sizes do not fit

    def weights(draw: int) -> Arrays:
        before, out = network.weights(draw), initial_weights(chain, draw)
        if any(name.endswith(STATISTICS[0][0]) for name in before):
            out = with_statistics(chain, out)
        kept = {k: v for k, v in before.items() if k in out and out[k].shape == v.shape}
        return out | kept

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
    gone: dict[str, Any] = {"skip": 0, "projection": False, "skip_lock": None}
    specs = (replace(s, **gone) if k in ends else s for k, s in enumerate(chain.specs))
    return replace(chain, specs=tuple(specs))


def fewer(chain: Chain, number: int) -> Chain:
    """Halve filters or outputs of a layer and its ties; `ConfigError` if nothing can be halved."""
    specs = list(chain.specs)
    if number == len(specs) - 1:
        raise ConfigError("It is the last layer, whose outputs are the classes.")
    for place in sorted(_tied(chain, number)):
        spec = specs[place]
        key = "filters" if isinstance(spec, ConvSpec) else "outputs"
        if (count := getattr(spec, key)) < 2:
            raise ConfigError("It has one filter, and half of that is none.")
        specs[place] = replace(spec, **{key: count // 2})
    return _resized(chain, specs)


def strided(chain: Chain, number: int) -> Chain:
    """Double both strides of a convolution; `ConfigError` for other layers."""
    specs = list(chain.specs)
    if not isinstance(spec := specs[number], ConvSpec):
        raise ConfigError("It is fully connected, and has no stride.")
    specs[number] = replace(spec, stride=(2 * spec.stride[0], 2 * spec.stride[1]))
    return _resized(chain, specs)


def _resized(chain: Chain, specs: Sequence[ConvSpec | LinearSpec]) -> Chain:
    # Fully connected layers adapt to the new input sizes.
    free = [replace(s, inputs=None) if isinstance(s, LinearSpec) else s for s in specs]
    return replace(chain, specs=tuple(free))


def _tied(chain: Chain, number: int) -> set[int]:
    """Layers that skips without projection tie to one: they need equally many filters."""
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
    """L2 norm over all parameters."""
    return float(np.sqrt(sum(float(np.vdot(v, v)) for v in gradients.values())))
