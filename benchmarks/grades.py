"""Thresholds of an audit's grades, by matching reconstructions among many images.

``python -m benchmarks.grades [WEIGHTS]`` prints the tables of docs/audit.md, draws
docs/images/grades.png, and writes the examples on the pages of audits. Embedded photos are blurred,
covered by noise, mixed with other photos, or searched for from gradients, more and less far. Each
reconstruction is taken as it is, or smoothed, whichever has the larger SSIM, as grades take it.
Then its original is ranked among `CANDIDATES` images: by correlation, and by LPIPS if the file of
AlexNet's weights is given (`gradleak.data.backbones`).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import gaussian_filter
from torch import nn

import gradleak
from benchmarks.runner import arguments
from gradleak.reporting import pages
from gradleak.reporting.pictures import thumbnail
from gradleak.scoring.metrics.perceptual import Lpips, standard
from gradleak_audit.attack.samples import from_embedded
from gradleak_audit.attack.trials import THRESHOLDS, Judge, smooth
from gradleak_audit.result import GRADES

SIZE = (3, 32, 32)
# Images to find each original among, the first of them reconstructed; the searches are fewer.
CANDIDATES, IMAGES, SEARCHED = 500, 40, 20
NOISE = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6)  # standard deviations
BLUR = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # of the Gaussian, pixels
MIXED = (0.2, 0.4, 0.5, 0.6, 0.7, 0.8)  # weight of another photo
STEPS = (3, 5, 7, 10, 14, 20, 28, 40, 56, 80, 120, 200)  # of Inverting Gradients
PICTURE = Path("docs/images/grades.png")
# Photos in the public domain, which a page may show, and SSIMs.
ON_PAGE, ON_PAGE_SHOWN = {0: "astronaut", 3: "cat"}, (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
# Lines of the picture: an image's number and a kind. Columns: SSIM.
EXAMPLES = ((0, "search"), (3, "search"), (8, "noise"), (9, "blur"))
SHOWN = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
CELL, GAP, HEAD, FRAME = 96, 12, 64, 3
COLOURS = {"not shown": "#1c3a70", "partly": "#664400", "read": "#86160f"}
# Ranges of the tables, and what they are of.
TENTHS, DECIBELS = [n / 10 for n in range(11)], [0, 8, 10, 12, 13, 14, 15, 16, 18, 20, 24, 30, 60]
FEW = [0, 10, 12, 15, 60]  # of reconstructions below the threshold of SSIM
TITLES = {"seen": "SSIM", "psnr": "PSNR, dB"}
# A reconstruction in [0, 1] (C, H, W) of an image by its number.
Found = tuple[str, int, np.ndarray]


def pooled() -> nn.Module:
    """Two convolutions with ReLU and pools: searches in it end at an SSIM of about 0.6."""
    first = nn.Conv2d(3, 12, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(12, 24, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(24 * 8 * 8, 10))


def tangent() -> nn.Module:
    """Two convolutions with tanh: searches in it find the image."""
    first, second = nn.Conv2d(3, 6, 3, 2, padding=1), nn.Conv2d(6, 12, 3, padding=1)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Flatten(), nn.Linear(3072, 10))


def reconstructions(images: np.ndarray, labels: np.ndarray) -> Iterator[Found]:
    """All reconstructions: their kind, the image's number, pixels."""
    rng = np.random.default_rng(0)
    for number, image in enumerate(images[:IMAGES]):
        for level in NOISE:
            yield "noise", number, image + level * rng.standard_normal(image.shape)
        for level in BLUR:
            yield "blur", number, gaussian_filter(image, (0, level, level))
        for level in MIXED:
            other = images[rng.integers(IMAGES, len(images))]
            yield "mixed", number, (1 - level) * image + level * other
    for build in (pooled, tangent):
        for number in range(SEARCHED):
            torch.manual_seed(number)
            model, label = build(), labels[number : number + 1]
            given = torch.tensor(images[number : number + 1], dtype=torch.float32)
            shared = gradleak.capture(model, given, label)
            for steps in STEPS:
                given_by = shared, model, SIZE, "inverting_gradients"
                found = gradleak.invert(*given_by, labels=label, iterations=steps, seed=number)
                yield "search", number, np.asarray(found.images[0])


def distances(images: np.ndarray, lpips: Path | None) -> dict[str, Callable[..., np.ndarray]]:
    """Measures by name: an image's distance to each of the candidates."""
    judge = Judge(images)
    found: dict[str, Callable[..., np.ndarray]] = {
        "correlation": lambda one: -judge.correlations(one)
    }
    if lpips is not None:
        network = Lpips("alex", lpips)
        with torch.inference_mode():
            known = network._features(standard(list(images)))

        def perceived(one: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                own = network._features(standard([one]))
                layers = zip(known, own, network._heads, strict=True)
                gaps = [((a - b).square() * head).sum(1).mean((1, 2)) for a, b, head in layers]
                return np.asarray(torch.stack(gaps).sum(0))

        found["LPIPS"] = perceived
    return found


def measured(lpips: Path | None) -> tuple[pd.DataFrame, list[tuple[np.ndarray, np.ndarray]]]:
    """Rows of all reconstructions with ranks from 0, and each one's original and pixels."""
    samples = from_embedded(SIZE, 10)
    images = samples.images[:CANDIDATES] / 255.0
    judge, measures = Judge(images), distances(images, lpips)
    rows, pictures = [], []
    for kind, number, pixels in reconstructions(images, samples.labels):
        answer = np.clip(pixels, 0.0, 1.0)
        score = judge.score(answer[None], np.array([number]))
        row = {"kind": kind, "number": number, "grade": score.grade, "psnr": score.psnr}
        row |= {"ssim": score.ssim, "smoothed": score.smoothed, "matched": score.matched}
        looks = [answer, *smooth(answer)]
        nearness = [judge.ssim(number, look) or 0.0 for look in looks]
        row["seen"], look = max(nearness), looks[int(np.argmax(nearness))]
        for name, measure in measures.items():
            to = measure(look)
            row[name] = int((to < to[number] - 1e-9).sum())
        rows.append(row)
        pictures.append((images[number], answer))
    return pd.DataFrame(rows), pictures


def table(rows: pd.DataFrame, by: str, edges: Sequence[float]) -> str:
    """Markdown of how many originals rank first, or among the first, by ranges of a score."""
    names = [name for name in ("correlation", "LPIPS") if name in rows]
    ranges = pd.cut(
        rows[by], [-np.inf, *edges[1:-1], np.inf], right=False, labels=range(len(edges) - 1)
    )
    last = names[-1]
    heads = [TITLES[by], "n", *(f"first by {name}" for name in names)]
    heads += [f"first {CANDIDATES // 100} by {last}", f"first {CANDIDATES // 10} by {last}"]
    lines = [heads, ["---"] * len(heads)]
    for number, own in rows.groupby(ranges, observed=True):
        shares = [(own[name] == 0).mean() for name in names]
        shares += [(own[last] < CANDIDATES * part).mean() for part in (0.01, 0.1)]
        ends = f"{edges[number]:.4g} to {edges[number + 1]:.4g}"
        lines.append([ends, str(len(own)), *(f"{100 * share:.0f} %" for share in shares)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def nearest(rows: pd.DataFrame, line: tuple[int, str]) -> Callable[[float], int | None]:
    """Return a function that finds a line's row by its SSIM; None if none is within 0.05."""
    number, kind = line
    own = np.flatnonzero((rows["number"] == number) & (rows["kind"] == kind))

    def find(start: float) -> int | None:
        apart = np.abs(rows["seen"].to_numpy()[own] - start)
        return int(own[apart.argmin()]) if apart.min() < 0.05 else None

    return find


def record(rows: pd.DataFrame, pictures: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Write the examples of audits' pages: searched photos with their scores."""
    known = rows[["ssim", "smoothed", "seen", "psnr", "grade", "matched"]].astype(object)
    known = known.where(known.notna(), None)
    photos = []
    for number, name in ON_PAGE.items():
        places = map(nearest(rows, (number, "search")), ON_PAGE_SHOWN)
        found = [place for place in places if place is not None]
        shown = [
            known.loc[place].to_dict() | {"image": thumbnail(pictures[place][1], CELL)._asdict()}
            for place in found
        ]
        original = thumbnail(pictures[found[0]][0], CELL)._asdict()
        photos.append({"name": name, "original": original, "shown": shown})
    written = {"candidates": CANDIDATES, "near": ON_PAGE_SHOWN, "photos": photos}
    (pages.FOLDER / pages.GRADES).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def draw(rows: pd.DataFrame, pictures: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Draw reconstructions of `EXAMPLES` along SSIM, in frames of their grades' colours."""
    step = CELL + GAP
    wide, high = step * (len(SHOWN) + 1) + GAP, HEAD + step * len(EXAMPLES)
    sheet = Image.new("RGB", (wide, high), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    zones = [(grade, THRESHOLDS[grade].ssim) for grade in GRADES if grade in THRESHOLDS]
    starts: list[tuple[str, float]] = [("not shown", SHOWN[0]), *zones, ("", 1.0)]
    for (grade, low), (_, end) in pairwise(starts):
        inside = [column for column, start in enumerate(SHOWN) if low <= start < end]
        left, right = GAP + step * inside[0], GAP + step * (inside[-1] + 1) - GAP
        pen.rectangle((left, 30, right, 35), fill=COLOURS[grade])
        pen.text((left, 8), grade, fill=COLOURS[grade], font=font)
    for column, start in enumerate(SHOWN):
        pen.text((GAP + step * column, 40), f"SSIM {start:g}", fill="black", font=font)
    pen.text((GAP + step * len(SHOWN), 40), "original", fill="black", font=font)
    for line, (photo, kind) in enumerate(EXAMPLES):
        find, top = nearest(rows, (photo, kind)), HEAD + step * line
        original = pictures[int(rows.index[rows["number"] == photo][0])][0]
        for column, start in enumerate(SHOWN):
            if (place := find(start)) is not None:
                left = GAP + step * column
                frame = (left - FRAME, top - FRAME, left + CELL + FRAME - 1, top + CELL + FRAME - 1)
                pen.rectangle(frame, fill=COLOURS[str(rows["grade"][place])])
                sheet.paste(_thumbnail(pictures[place][1]), (left, top))
        sheet.paste(_thumbnail(original), (GAP + step * len(SHOWN), top))
    sheet.save(PICTURE, optimize=True)


def _thumbnail(pixels: np.ndarray) -> Image.Image:
    values = np.rint(255 * pixels).astype(np.uint8).transpose(1, 2, 0)
    return Image.fromarray(values).resize((CELL, CELL), Image.Resampling.NEAREST)


if __name__ == "__main__":
    (weights,) = arguments(__doc__, "[weights]")
    found, kept = measured(weights)
    low = found[found["seen"] < THRESHOLDS["partly"].ssim]
    tables = table(found, "seen", TENTHS), table(found, "psnr", DECIBELS), table(low, "psnr", FEW)
    print(*tables, sep="\n\n")
    draw(found, kept)
    record(found, kept)
