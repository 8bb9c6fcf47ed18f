"""Files of an audit: the result as JSON, and images shown on the page."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from gradleak.errors import ArtifactError
from gradleak.runtime.artifacts import check_array, read_tensors, whole, write_json, write_tensors
from gradleak_audit.result import VERSION, Audit

Path_ = str | os.PathLike[str]


@dataclass(frozen=True)
class Pictures:
    """Images under attack and their reconstructions; `ValueError` if shapes do not fit."""

    originals: np.ndarray  # (n, C, H, W) in [0, 1]
    # By attack id and image number: the best reconstruction (C, H, W) without any change, clipped
    # to [0, 1]; that of the run with the largest rank.
    answers: Mapping[str, Mapping[int, np.ndarray]]
    # By change: attack, image number and reconstruction that comes nearest to its original.
    changes: Mapping[str, tuple[str, int, np.ndarray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.originals.ndim != 4 or not np.isfinite(self.originals).all():
            raise ValueError(f"originals: {self.originals.shape} is not (n, C, H, W) of numbers")
        count, *shape = self.originals.shape
        shown = {f"changes.{change}": {one[1]: one[2]} for change, one in self.changes.items()}
        shown |= {f"answers.{attack}": dict(own) for attack, own in self.answers.items()}
        for place, answers in shown.items():
            for image, answer in answers.items():
                if image not in range(count):
                    raise ValueError(f"{place}: there is no image {image}")
                if answer.shape != tuple(shape) or not np.isfinite(answer).all():
                    why = f"{answer.shape} is not {tuple(shape)} of numbers"
                    raise ValueError(f"{place}.{image}: {why}")


def save(path: Path_, audit: Audit) -> None:
    """Write a result as JSON with the schema of `gradleak_audit.result.schema`."""
    write_json(str(path), audit.model_dump(mode="json"))


def read(path: Path_) -> Audit:
    """Read a result written by `save`; raise `ArtifactError` if there is none of this version."""
    try:
        return Audit.model_validate_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be read ({error.strerror}); give the audit.json of an audit."
        ) from error
    except (ValidationError, UnicodeDecodeError) as error:
        why = "it is not text"
        if isinstance(error, ValidationError):
            one = error.errors(include_url=False)[0]
            why = ": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"])))
        raise ArtifactError(
            f"{path} holds no result of an audit in version {VERSION} ({why}); make it again with "
            "this gradleak."
        ) from error


def save_pictures(path: Path_, pictures: Pictures) -> None:
    """Write ``originals``, ``answers/{attack}/{image}``, ``changes/{change}/{attack}/{image}``."""
    arrays = {"originals": pictures.originals.astype(np.float32)}
    for attack, answers in pictures.answers.items():
        for image, answer in answers.items():
            arrays[f"answers/{attack}/{image}"] = answer.astype(np.float32)
    for change, (attack, image, answer) in pictures.changes.items():
        arrays[f"changes/{change}/{attack}/{image}"] = answer.astype(np.float32)
    write_tensors(str(path), arrays, {})


def read_pictures(path: Path_) -> Pictures:
    """Read images written by `save_pictures`; raise `ArtifactError` if there are none."""
    arrays, _ = read_tensors(str(path))
    answers: dict[str, dict[int, np.ndarray]] = {}
    changes: dict[str, tuple[str, int, np.ndarray]] = {}
    with whole(path):
        shape = check_array(arrays, "originals", ["float32"], [None] * 4).shape[1:]
        for name in sorted(arrays.keys() - {"originals"}):
            *place, attack, image = name.split("/")
            answer = check_array(arrays, name, ["float32"], shape)
            if place[0] == "changes":
                changes[place[1]] = attack, int(image), answer
            else:
                answers.setdefault(attack, {})[int(image)] = answer
        return Pictures(arrays["originals"], answers, changes)


def read_seconds(path: Path_) -> dict[str, float]:
    """Read the seconds of a client's step by change."""
    with whole(path):
        return TypeAdapter(dict[str, float]).validate_json(Path(path).read_bytes())
