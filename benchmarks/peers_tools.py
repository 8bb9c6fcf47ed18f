"""Interface of a tool in the comparison, and gradleak's answers."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import torch

from benchmarks.client_networks import SHAPE
from benchmarks.peers_cases import LABELS, Client
from gradleak.attacks.closed_form.rgap import RGap
from gradleak.attacks.optimization.dlg import Dlg
from gradleak.attacks.optimization.gauss_newton import GaussNewton
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.library.invert import invert
from gradleak.library.network import read_network
from gradleak.library.shared import open_shared
from gradleak.runtime.provenance import code_hash
from gradleak.runtime.version import __version__

MODE = "evaluation"
# More iterations than any budget allows.
MOST = 10**6
# Classes whose code methods run, besides that of `invert`.
KINDS = MappingProxyType(
    {
        "rgap": RGap,
        "rgap_plain": RGap,
        "gauss_newton": GaussNewton,
        "dlg": Dlg,
        "inverting_gradients": InvertingGradients,
        "inverting_gradients_paper": InvertingGradients,
        "surrogate": InvertingGradients,
    }
)
# Methods that are an attack as its paper has it; the weight of total variation is that of the
# authors' library.
SETTINGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "rgap_plain": {"attack": "rgap", "rows": "plain"},
        "inverting_gradients_paper": {"attack": "inverting_gradients", "tv": 0.1},
    }
)


class Tool(Protocol):
    """A library of attacks. Methods are known by name."""

    # Methods that take a number of iterations, and the most of them.
    searches: Mapping[str, int]

    def version(self, method: str) -> str:
        """Return what a method's results depend on; `ImportError` without the tool."""

    def images(
        self, method: str, client: Client, iterations: int | None, seed: int
    ) -> torch.Tensor:
        """Attack: images (K, C, H, W), or one for the batch; `iterations` is None if no search."""

    def labels(self, client: Client) -> Collection[int]:
        """Infer the classes of a batch."""


class Ours:
    """gradleak, with the settings of `gradleak.invert` unless a method says otherwise."""

    # Gauss-Newton ends by itself, and a step of it takes up to a hundred products.
    searches: Mapping[str, int] = MappingProxyType(
        {name: 300 if kind is GaussNewton else MOST for name, kind in KINDS.items() if kind != RGap}
    )

    def version(self, method: str) -> str:
        """Version and hash of code, so that results of other code are measured anew."""
        module = "gradleak.library.shared" if method == LABELS else KINDS[method].__module__
        return f"{__version__}+{code_hash('gradleak.library.invert', module)[:8]}"

    def images(
        self, method: str, client: Client, iterations: int | None, seed: int
    ) -> torch.Tensor:
        """See `Tool`."""
        settings: dict[str, Any] = {"attack": method, **SETTINGS.get(method, {})}
        settings |= {} if iterations is None else {"iterations": iterations}
        settings |= {"labels": client.labels, "loss": client.loss, "mode": MODE, "seed": seed}
        return invert(client.shared, client.model, SHAPE, **settings).images

    def labels(self, client: Client) -> Collection[int]:
        """See `Tool`."""
        network = read_network(client.model, SHAPE, loss=client.loss, mode=MODE)
        return open_shared(network, client.shared).labels(len(client.images))
