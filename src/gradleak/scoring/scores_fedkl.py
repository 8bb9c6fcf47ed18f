"""Further scores of FedKL's experiments: LPIPS, and the metrics of its Table VI as printed."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from gradleak.attacks import reconstructions
from gradleak.data import backbones
from gradleak.data.targets import TargetSet
from gradleak.models.files import ModelFile
from gradleak.scoring.metrics.image import FEDKL
from gradleak.scoring.metrics.perceptual import Lpips, as_stored, standard
from gradleak.scoring.scores import Row, answer, matched, own_case, tidy

# Network of each LPIPS, and format of its images.
LPIPS: dict[str, tuple[str, Callable[[Sequence[np.ndarray]], np.ndarray]]] = {
    "lpips_alex": ("alex", standard),
    "lpips_squeeze": ("squeeze", standard),
    "lpips_vgg": ("vgg", standard),
    "lpips_alex_255": ("alex", as_stored),
    "lpips_vgg_255": ("vgg", as_stored),
}
METRICS = (*FEDKL, *LPIPS)
NOT_AVAILABLE = "not_available"

Images = list[np.ndarray]


def score(
    path: str, targets: TargetSet, models: ModelFile, case: Row, weights: Iterable[str]
) -> list[Row]:
    """One tidy row per reconstruction, image and metric, beside those of `scores.score`.

    Parameters are as there; `weights` are files of the available networks for LPIPS. An LPIPS whose
    network has no weights has rows with an empty value, status `NOT_AVAILABLE` and a reason that
    says how to get them. Failed reconstructions keep their rows; those given by class have none.
    docs/metrics.md explains the metrics.
    """
    images, records = reconstructions.read(path)
    chains = {chain.name: chain for chain in models.chains}
    records = [record for record in records if not record.get("classes")]
    originals, found = _pairs(images, records, targets)
    files = backbones.by_network(weights)
    values = _values(originals, found, files)
    lacking = [name for name, (network, _) in LPIPS.items() if network not in files]
    rows, start = [], 0
    for record in records:
        own = own_case(case, chains[record["model"]])
        if record["status"] != "ok":
            rows += tidy([dict.fromkeys(METRICS, np.nan)] * targets.size, record, targets, own)
            continue
        places = range(start, start + targets.size)
        start += targets.size
        ours = [{name: float(each[k]) for name, each in values.items()} for k in places]
        rows += tidy(ours, record, targets, own)
        for name in lacking:
            told = {"status": NOT_AVAILABLE, "reason": backbones.missing(LPIPS[name][0])}
            rows += tidy([{name: np.nan}] * targets.size, {**record, **told}, targets, own)
    return rows


def _pairs(
    images: Mapping[str, np.ndarray], records: list[Row], targets: TargetSet
) -> tuple[Images, Images]:
    """Pixels (C, H, W) of all originals, and of their reconstructions."""
    originals, found = Images(), Images()
    for record in records:
        if record["status"] == "ok":
            inputs = targets.inputs(record["batch"])
            originals += list(targets.pixels(inputs))
            found += list(targets.pixels(matched(inputs, answer(images, record))))
    return originals, found


def _values(originals: Images, found: Images, files: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Each computable metric, for all pairs (N,); a network is loaded once."""
    values = {
        name: np.array([metric(*pair) for pair in zip(originals, found, strict=True)])
        for name, metric in FEDKL.items()
    }
    if not originals:
        return values
    for network, path in files.items():
        distance = Lpips(network, path)
        for name, (needed, prepare) in LPIPS.items():
            if needed == network:
                values[name] = distance(prepare(originals), prepare(found))
    return values
