"""`gradleak.audit`: run an audit from Python."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gradleak.errors import ConfigError
from gradleak.reading.model_checks import check_network, same_parameters, times
from gradleak_audit.attack import samples
from gradleak_audit.attack.samples import Source
from gradleak_audit.report import ci_gate, files, page
from gradleak_audit.report.files import Pictures
from gradleak_audit.result import NONE, Audit
from gradleak_audit.run import NetworkAudit, Origin, Settings, whole

Images = str | os.PathLike[str] | np.ndarray | torch.Tensor | None


# Recorded on the page, beside which it would regenerate it.
COMMAND = "gradleak.audit(…).save(…)"
BASE = '<head>\n<base href="about:srcdoc">'


@dataclass(frozen=True)
class Report:
    """Findings of an audit; notebooks show its page."""

    result: Audit  # everything, as written to the JSON file
    pictures: Pictures  # images under attack and the best reconstructions

    @property
    def verdict(self) -> str:
        """Return the verdict in one sentence."""
        return self.result.verdict.sentence

    @property
    def leak(self) -> float | None:
        """Share of gradients read at least in part, 0 to 1; None if all attacks failed."""
        return ci_gate.leak(self.result)

    def save(
        self, folder: str | os.PathLike[str], command: str = "gradleak.audit(…).save(…)"
    ) -> Path:
        """Write ``report.html`` and ``audit.json`` into a folder; return the page's path.

        The page names the `command` that makes it again.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        files.save(place / "audit.json", self.result)
        page.write(place / "report.html", self.result, self.pictures, command)
        return place / "report.html"

    def __repr__(self) -> str:
        """Return a summary in one line."""
        network, verdict = self.result.network, self.result.verdict
        unchanged = next(change for change in self.result.changes if change.id == NONE)
        text = f"{unchanged.read} of {unchanged.gradients} gradients read"
        text += f", {unchanged.partly} in part" if unchanged.partly else ""
        if worst := verdict.worst:
            ssim = "" if worst.ssim is None else f", SSIM {worst.ssim:.2f}"
            text += f", closest {worst.psnr:.1f} dB{ssim} by {worst.attack}"
        what = f"{self.result.name} ({network.kind}, {times(network.input)})"
        return f"<Audit of {what}: {verdict.grade}; {text}>"

    def _repr_html_(self) -> str:
        text = page.render(self.result, self.pictures, COMMAND)
        # Otherwise links within the page would lead to the notebook around it.
        for before, after in (("base-uri 'none'", "base-uri about:"), ("<head>", BASE)):
            text = text.replace(before, after, 1)
        style = "width: 100%; height: 40em; border: 1px solid"
        return f'<iframe srcdoc="{escape(text)}" title="Audit" style="{style}"></iframe>'


def audit(
    model: nn.Module,
    input_shape: Sequence[int],
    *,
    images: Images = None,
    labels: Sequence[int] | None = None,
    name: str = "network",
    loss: str = "cross_entropy",
    mode: str = "auto",
    count: int | None = None,
    seeds: int | None = None,
    batches: Sequence[int] = (1, 4),
    offset: float = 0.0,
    std: float = 1.0,
    scale: str = "laptop",
    device: str = "cpu",
    redraw: Callable[[int], nn.Module] | None = None,
) -> Report:
    """Audit a network for what its shared gradients reveal about the training images.

    Raises `GradleakError`, whose message is one sentence, if the arguments do not fit together.

    Parameters
    ----------
    model, input_shape
        The network, which is not modified, and (C, H, W) of one image.
    images, labels
        Folder of images, or uint8 pixels (N, C, H, W) as an array or tensor with classes (N,); by
        default embedded photos or digits.
    name
        Title on the page.
    loss, mode, count, seeds, batches, offset, std, scale, device
        As in an entry of ``audit`` in examples/audit.yaml; see docs/audit.md.
    redraw
        Returns the network initialized with another seed. By default only the weights of `model`
        are audited.
    """
    check_network(model, "model")
    wanted = "(C, H, W) of one image, three whole numbers above 0"
    if len(sides := whole("input_shape", input_shape, wanted)) != 3:
        raise ConfigError(f"input_shape: give {wanted}, not {sides}.")
    if redraw is not None:
        _check_redraw(model, redraw)
    settings = Settings(loss, mode, count, seeds, batches, offset, std, scale, device)  # type: ignore[arg-type]
    weights = "as given" if redraw is None else "as given, then drawn by redraw"
    origin = Origin(name, f"{type(model).__module__}.{type(model).__qualname__}", weights)
    (channels, height, width), source = sides, _source(images, labels)
    size = channels, height, width
    found = NetworkAudit(model, size, source, settings, origin, redraw).run()
    return Report(found.timed, found.pictures)


def _check_redraw(model: nn.Module, redraw: Any) -> None:
    if not callable(redraw):
        raise ConfigError(
            f"redraw: give a function of a seed that returns a network, not {redraw!r}."
        )
    other = redraw(1)
    check_network(other, "redraw: what it returns")
    if len(same_parameters(model, other, "redraw")) == len(list(model.parameters())):
        raise ConfigError(
            "redraw: it gives the weights of model again; draw others by its seed, or leave it out."
        )


def _source(images: Images, labels: Sequence[int] | None) -> Source:
    # `from_pixels` would not get to report types that NumPy does not know.
    if isinstance(images, torch.Tensor) and images.dtype == torch.uint8:
        images = images.detach().cpu().numpy()
    if isinstance(images, np.ndarray):
        return partial(samples.from_pixels, images, labels)
    if images is not None and not isinstance(images, str | os.PathLike):
        what = f"{images.dtype} tensor" if isinstance(images, torch.Tensor) else repr(images)
        raise ConfigError(f"images: give a folder, or pixels uint8 (N, C, H, W), not {what}.")
    if labels is not None:
        raise ConfigError(
            "labels: they are of images given as pixels; take them out, or sort the folder's "
            "images into sub-folders."
        )
    if images is None:
        return samples.from_embedded
    return partial(samples.from_folder, os.fspath(images))
