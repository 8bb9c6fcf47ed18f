"""A mod of a Flower `ClientApp` that attacks what the client is about to send."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import nn

from gradleak.client.local_training import Recipe
from gradleak.errors import ConfigError, GradleakError, NotApplicable
from gradleak.library.attack_choice import chosen
from gradleak.library.attacker import Inversion
from gradleak.library.check import check
from gradleak.library.inspect import inspect
from gradleak.library.invert import check_numbers, invert
from gradleak.library.network import read_network
from gradleak.library.score import score
from gradleak.library.update import Update, split
from gradleak.reading.model_checks import first_line
from gradleak.runtime.artifacts import atomic, write_csv

LOG = logging.getLogger("gradleak")
# Keys that Flower's strategies use.
TRAIN, COUNT, ROUND = "train", "num-examples", "server-round"
# Attacks in their order, with settings; the next one runs unless an image explains the update.
ATTACKS: Mapping[str, Mapping[str, Any]] = {
    "rgap": {},
    "gauss_newton": {},
    "inverting_gradients": {"iterations": 1000},
}
EXPLAINED, DOUBTFUL = 1e-3, 0.1
TABLE = "updates.csv"

# Gives the images (K, C, H, W) of a client, from a message and its context.
Originals = Callable[[Any, Any], Any]


class LeakageAudit:
    """Reconstruct images from each update of a Flower client, before the server sees it.

    Put it first among the mods to see what leaves the client, last to see what there was before
    the other mods, for example `LocalDpMod`::

        app = ClientApp(mods=[LeakageAudit(net, (3, 32, 32), Recipe(rate=0.1), "leakage"), dp])

    The message passes unchanged, whatever the attacks do. For each message of type ``train``, a row
    is added to ``updates.csv`` in the folder, and the images are saved beside it as
    ``client-{client}-round-{round}.png``. A client is its partition in a simulation, else its node.
    Flower itself is not imported.

    Parameters
    ----------
    model
        The network that the client trains; its weights are taken from the messages.
    input_shape
        (C, H, W) of one image.
    recipe
        The client's local training.
    folder
        Where the results go.
    attacks
        Attacks of `gradleak.invert` by name, with settings, in their order. One that does not
        apply is left out; the image that explains most of the update is kept.
    originals
        Function of message and context that returns the client's own images (K, C, H, W), for
        scores.
    count
        Number of images behind an update; by default ``num-examples`` of the client's metrics.
    received
        Also inspect the weights received (`gradleak.inspect`): their verdict is in the column of
        that name, and a warning tells of weights that look shaped before the client trains.
    loss, mode, low, high
        As in `gradleak.invert`.

    Raises
    ------
    GradleakError
        Here, before any training, if network, attacks and settings do not fit together.
    """

    def __init__(
        self,
        model: nn.Module,
        input_shape: tuple[int, int, int],
        recipe: Recipe,
        folder: str | Path,
        *,
        attacks: Mapping[str, Mapping[str, Any]] = ATTACKS,
        originals: Originals | None = None,
        count: int | None = None,
        received: bool = False,
        loss: str = "cross_entropy",
        mode: str = "training",
        low: float = 0.0,
        high: float = 1.0,
    ) -> None:
        if not isinstance(attacks, Mapping) or not attacks:
            raise ConfigError(
                "attacks: give attacks of gradleak.invert by name, with a dict of settings each, "
                f"not {attacks!r}."
            )
        for name, settings in attacks.items():
            chosen(name, settings, "cpu")
        if not isinstance(recipe, Recipe):
            raise ConfigError(f"recipe: give a gradleak.Recipe, not {recipe!r}.")
        check_numbers(low, high)
        read_network(model, input_shape, loss=loss, mode=mode)
        self.model, self.input_shape, self.recipe = model, input_shape, recipe
        self.folder, self.attacks, self.originals = Path(folder), attacks, originals
        self.count, self.received = count, received
        self.how: dict[str, Any] = {"loss": loss, "mode": mode, "low": low, "high": high}

    def __call__(self, message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        """Let the client train, attack what it returns, and return that."""
        if message.metadata.message_type.split(".")[0] != TRAIN:
            return call_next(message, context)
        # An audit must not end a client's training. What was sent may be trained in place.
        before: dict[str, torch.Tensor] = {}
        with _survived():
            before = _arrays(message)
        looks: dict[str, str] = {}
        with _survived():
            looks = self._inspect(before)
        reply = call_next(message, context)
        if not reply.has_error():
            with _survived():
                self._audit(before, looks, message, context, reply)
        return reply

    def _inspect(self, before: dict[str, torch.Tensor]) -> dict[str, str]:
        """Verdict on what the client received; a warning if it looks shaped."""
        if not self.received:
            return {}
        found = inspect(self.model, before)
        for finding in found.findings:
            LOG.warning("The weights received look shaped. %s", finding)
        return {"received": found.verdict}

    def _audit(
        self,
        before: dict[str, torch.Tensor],
        looks: Mapping[str, str],
        message: Any,
        context: Any,
        reply: Any,
    ) -> None:
        started = time.monotonic()
        client = context.node_config.get("partition-id", context.node_id)
        place = {"client": client, "round": self._round(message, client)}
        try:
            update = self._update(before, reply)
            true = None if self.originals is None else self.originals(message, context)
            row = self._attack(update, true, place)
        except Exception as error:
            row = {"note": f"not attacked: {first_line(error)}"}
        self._add({**place, **looks, **row, "seconds": round(time.monotonic() - started, 2)})

    def _round(self, message: Any, client: Any) -> int:
        """Round of the server, or the number of the client's messages so far and one."""
        for record in message.content.config_records.values():
            if ROUND in record:
                return int(record[ROUND])
        table = self.folder / TABLE
        if not table.exists():
            return 1
        return int((pd.read_csv(table)["client"] == client).sum()) + 1

    def _update(self, before: dict[str, torch.Tensor], reply: Any) -> Update:
        """Weights and buffers before and after; `ConfigError` if they are not the network's."""
        after = _arrays(reply)
        state = self.model.state_dict()
        for which, held in (("received", before), ("sent", after)):
            wrong = [n for n in state if n not in held] + [n for n in held if n not in state]
            if wrong:
                raise ConfigError(
                    f"model: {wrong[0]} is in only one of the network and the arrays {which}; give "
                    "the network that the client trains."
                )
        counts = [r[COUNT] for r in reply.content.metric_records.values() if COUNT in r]
        if self.count is None and not counts:
            raise ConfigError(
                f"count: the client's metrics have no {COUNT}; give the number of images."
            )
        names = [name for name, _ in self.model.named_parameters()]
        (weights, buffers), (trained, moved) = split(before, names), split(after, names)
        size = int(counts[0]) if self.count is None else self.count
        return Update(weights, trained, self.recipe, size, buffers, moved)

    def _attack(self, update: Update, true: Any, place: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row of results; the images are saved."""
        best, refused = None, []
        for name, settings in self.attacks.items():
            try:
                given: dict[str, Any] = {"batch": update.count, **self.how, **settings}
                found = invert(update, self.model, self.input_shape, name, **given)
            except GradleakError as error:
                kind = "does not apply" if isinstance(error, NotApplicable) else "failed"
                refused.append(f"{name} {kind}: {error}")
                continue
            if best is None or not found.distance >= best.distance:
                best = found
            if best.distance < EXPLAINED:
                break
        row: dict[str, Any] = {"images": update.count, "steps": update.steps}
        # What does not fit in an update is of interest where no image explains it.
        unexplained = best is None or not best.distance < DOUBTFUL
        findings = (
            check(update, self.model, self.input_shape, **self.how).findings if unexplained else ()
        )
        row["note"] = " ".join([*findings, *refused])
        if best is None:
            return row
        row |= {"attack": best.attack, "distance": best.distance}
        originals = None if true is None else np.asarray(true, dtype=np.float64)
        if originals is not None:
            if len(originals) != update.count:
                raise ConfigError(
                    f"originals: they are {len(originals)} images, but the update is of "
                    f"{update.count}; give those that the client trained on."
                )
            scores = score(originals, best)
            row |= {f"mean_{key}": scores[key].mean() for key in ("psnr", "ssim")}
            row |= {f"best_{key}": scores[key].max() for key in ("psnr", "ssim")}
        self._picture(best, originals, place)
        return row

    def _picture(
        self, found: Inversion, originals: np.ndarray | None, place: Mapping[str, Any]
    ) -> None:
        """Save reconstructions, under the originals if they are known."""
        rows = [found.images.detach().cpu().numpy()]
        if originals is not None:
            rows.insert(0, originals)
        low, high = self.how["low"], self.how["high"]
        bands = []
        for images in rows:
            pixels = np.clip((images - low) / (high - low), 0.0, 1.0)
            bands.append(np.concatenate(list(pixels), axis=2))
        width = max(band.shape[2] for band in bands)
        bands = [np.pad(b, ((0, 0), (0, 0), (0, width - b.shape[2]))) for b in bands]
        sheet = (255 * np.concatenate(bands, axis=1)).round().astype(np.uint8)
        coloured = len(sheet) == 3
        picture = Image.fromarray(np.moveaxis(sheet, 0, 2) if coloured else sheet[0])
        name = f"client-{place['client']}-round-{place['round']}.png"
        with atomic(self.folder / name) as path:
            picture.save(path, format="png")

    def _add(self, row: Mapping[str, Any]) -> None:
        """Add a row to the table, in place of one of the same client and round."""
        path = self.folder / TABLE
        keys = ["client", "round"]
        old = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=keys)
        rest = old[(old[keys] != pd.Series({key: row[key] for key in keys})).any(axis=1)]
        new = pd.DataFrame([row])
        write_csv(path, new if rest.empty else pd.concat([rest, new], ignore_index=True))


@contextmanager
def _survived() -> Iterator[None]:
    """Log whatever goes wrong, and go on."""
    try:
        yield
    except Exception as error:
        LOG.warning("The update was not audited: %s", first_line(error))


def _arrays(message: Any) -> dict[str, torch.Tensor]:
    """Tensors of the only array record of a message; empty if it has none."""
    records = list(message.content.array_records.values())
    if not records:
        return {}
    # Tensors of their own: the client may train in place.
    return {name: value.clone() for name, value in records[0].to_torch_state_dict().items()}
