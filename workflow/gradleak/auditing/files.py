"""Files of an audit: the result as JSON, and the pictures that the page shows."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from gradleak.artifacts import check_array, read_tensors, whole, write_json, write_tensors
from gradleak.auditing.page_pictures import Pictures
from gradleak.auditing.result import VERSION, Audit
from gradleak.errors import ArtifactError

Path_ = str | os.PathLike[str]


def save(path: Path_, audit: Audit) -> None:
    """Write a result as JSON, as `gradleak.auditing.result.schema` describes it."""
    write_json(str(path), audit.model_dump(mode="json"))


def read(path: Path_) -> Audit:
    """A result that `save` wrote; an `ArtifactError` if there is none of this version."""
    try:
        return Audit.model_validate_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be read ({error.strerror}); give the audit.json of an audit."
        ) from error
    except (ValidationError, UnicodeDecodeError) as error:
        why = "it is no text"
        if isinstance(error, ValidationError):
            one = error.errors(include_url=False)[0]
            why = ": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"])))
        raise ArtifactError(
            f"{path} holds no result of an audit in version {VERSION} ({why}); make it again with "
            "this gradleak."
        ) from error


def save_pictures(path: Path_, pictures: Pictures) -> None:
    """Write originals and answers: ``originals`` and ``answers/{attack}/{image}``."""
    arrays = {"originals": pictures.originals.astype(np.float32)}
    for attack, answers in pictures.answers.items():
        for image, answer in answers.items():
            arrays[f"answers/{attack}/{image}"] = answer.astype(np.float32)
    write_tensors(str(path), arrays, {})


def read_pictures(path: Path_) -> Pictures:
    """Pictures that `save_pictures` wrote; an `ArtifactError` if it holds none."""
    arrays, _ = read_tensors(str(path))
    answers: dict[str, dict[int, np.ndarray]] = {}
    with whole(path):
        shape = check_array(arrays, "originals", ["float32"], [None] * 4).shape[1:]
        for name in sorted(arrays.keys() - {"originals"}):
            _, attack, image = name.split("/")
            answer = check_array(arrays, name, ["float32"], shape)
            answers.setdefault(attack, {})[int(image)] = answer
        return Pictures(arrays["originals"], answers)


def save_seconds(path: Path_, seconds: dict[str, float]) -> None:
    """Write seconds of a client's step by change: what varies from run to run."""
    write_json(str(path), seconds)


def read_seconds(path: Path_) -> dict[str, float]:
    """Seconds that `save_seconds` wrote."""
    with whole(path):
        return TypeAdapter(dict[str, float]).validate_json(Path(path).read_bytes())
