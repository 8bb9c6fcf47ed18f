"""Files of an audit: the result as JSON, and images shown on the page."""

import os
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from gradleak.errors import ArtifactError
from gradleak.runtime.artifacts import check_array, read_tensors, whole, write_json, write_tensors
from gradleak_audit.report.page_pictures import Pictures
from gradleak_audit.result import VERSION, Audit

Path_ = str | os.PathLike[str]


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
        why = "it is no text"
        if isinstance(error, ValidationError):
            one = error.errors(include_url=False)[0]
            why = ": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"])))
        raise ArtifactError(
            f"{path} holds no result of an audit in version {VERSION} ({why}); make it again with "
            "this gradleak."
        ) from error


def save_pictures(path: Path_, pictures: Pictures) -> None:
    """Write originals and reconstructions: ``originals`` and ``answers/{attack}/{image}``."""
    arrays = {"originals": pictures.originals.astype(np.float32)}
    for attack, answers in pictures.answers.items():
        for image, answer in answers.items():
            arrays[f"answers/{attack}/{image}"] = answer.astype(np.float32)
    write_tensors(str(path), arrays, {})


def read_pictures(path: Path_) -> Pictures:
    """Read images written by `save_pictures`; raise `ArtifactError` if there are none."""
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
    """Write the seconds of a client's step by change, which vary from run to run."""
    write_json(str(path), seconds)


def read_seconds(path: Path_) -> dict[str, float]:
    """Read seconds written by `save_seconds`."""
    with whole(path):
        return TypeAdapter(dict[str, float]).validate_json(Path(path).read_bytes())
