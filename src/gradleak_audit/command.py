"""Audit a network for what its shared gradients reveal about the training images.

    gradleak audit mynet.py:Net --input 3,32,32

writes report.html and audit.json into a folder, and prints the verdict. The code in the file is
run. The exit status is 1 if the network leaks more than --limit or --baseline allow, and 2 if the
input is wrong or no attack gave a reconstruction to hold against them.
"""

import argparse
import ast
import shlex
import sys
from pathlib import Path
from typing import Any

from gradleak.errors import ConfigError
from gradleak.runtime.artifacts import no_folder

# Keys of an entry of `audit` in config.yaml as options, with their words for --help. Their values
# are checked, and have defaults, where those of config.yaml do.
OPTIONS = {
    "input": ("C,H,W", "shape of one image; C is 1 or 3"),
    "weights": ("FILE", "safetensors, or a state dict (default: the network's own initial ones)"),
    "images": ("FOLDER", "images to attack, sub-folders as classes (default: embedded photos)"),
    "classes": ("N", "number of outputs, to be checked"),
    "loss": ("LOSS", "cross_entropy (default), raw_logits, logistic, exponential or hinge"),
    "mode": ("MODE", "of batch norms and dropout: auto (default), training or evaluation"),
    "batches": ("N,N", "batch sizes: the one to audit, then larger ones to try (default: 1,4)"),
    "count": (
        "N",
        "gradients to attack (default: by scale; changes need count × seeds of 8 or more)",
    ),
    "seeds": ("N", "initializations (default: by scale)"),
    "seed": ("N", "of the initial weights (default: 0)"),
    "offset": ("X", "inputs are (pixels / 255 + offset) / std (default: 0)"),
    "std": ("X", "(default: 1)"),
    "limit": ("X", "exit with 1 if a larger share of gradients leaks, 0 to 1"),
    "baseline": ("FILE", "earlier audit.json; exit with 1 if a larger share leaks than in it"),
    "counts": ("GRADE", "what counts as a leak: partly (read at least in part, default) or read"),
}
LISTS = ("input", "batches")
IMAGES = "images"  # `samples: {folder: …}` of config.yaml


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``gradleak audit``."""
    words = "a file with a function or class that returns the torch.nn.Module, or torchvision:NAME"
    parser.add_argument("network", metavar="FILE.py:NAME", help=words)
    for key, (value, words) in OPTIONS.items():
        parser.add_argument(f"--{key}", metavar=value, required=key == "input", help=words)
    words = "arguments of the function, as Python writes them: --arguments classes=10"
    parser.add_argument("--arguments", metavar="KEY=VALUE", nargs="+", default=[], help=words)
    words = "amounts: smoke, laptop (default, minutes) or paper"
    parser.add_argument("--scale", default="laptop", help=words)
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, mps or auto")
    parser.add_argument("--name", help="title on the page (default: that of the network)")
    words = "folder to write to (default: audit)"
    parser.add_argument("--output", metavar="FOLDER", default="audit", help=words)


def run(given: argparse.Namespace) -> int:
    """Audit, write the page, print the verdict and where the page is; return the exit status."""
    settings = _settings(given)
    _check_output(Path(given.output))
    from gradleak_audit import from_config
    from gradleak_audit.api import Report
    from gradleak_audit.report import ci_gate, files
    from gradleak_audit.result import QUICK

    # It may lie where this audit writes its own.
    baseline = files.read(settings["baseline"]) if settings["baseline"] else None
    name = given.name or given.network.rpartition(":")[2]
    found = from_config.run_entry(name, settings, None, given.scale, given.device)
    report = Report(found.timed, found.pictures)
    page = report.save(given.output, command=shlex.join(["gradleak", *given.argv]))
    print(report.verdict)
    if given.scale == QUICK:
        print(f"At scale {QUICK} this is a quick look, and no evidence; leave --scale out for one.")
    print(f"Page: {page}")
    if settings["limit"] is not None or baseline is not None:
        try:
            limits = settings["limit"], baseline, settings["counts"]
            print(ci_gate.check(found.audit, *limits))
        except ci_gate.LeaksTooMuch as error:
            print(f"{given.prog}: {str(error).removeprefix('audit.')}", file=sys.stderr)
            return 1
    return 0


def _settings(given: argparse.Namespace) -> dict[str, Any]:
    """Validate the options as an entry of `audit` in config.yaml; `ConfigError` at a wrong one."""
    from pydantic import ValidationError

    from gradleak.config.audit import AuditConfig
    from gradleak.settings.validation_messages import sentence

    entry = {key: own for key in OPTIONS if (own := getattr(given, key)) is not None}
    entry |= {key: entry[key].split(",") for key in LISTS if key in entry}
    if len(entry["input"]) != 3:
        raise ConfigError(f"input: give C,H,W of one image, as in 3,32,32, not {given.input}.")
    if IMAGES in entry:
        entry["samples"] = {"folder": entry.pop(IMAGES)}
    try:
        return AuditConfig.model_validate(entry | {"network": _network(given)}).model_dump()
    except ValidationError as error:
        raise ConfigError(sentence(error, AuditConfig)) from error


def _network(given: argparse.Namespace) -> dict[str, Any]:
    place, _, name = given.network.rpartition(":")
    if not place or not name:
        raise ConfigError(
            f"network: {given.network} names none; give a file and a name in it, as in "
            "mynet.py:Net, or torchvision:resnet18."
        )
    arguments = dict(map(_argument, given.arguments))
    if place == "torchvision":
        return {place: name, "arguments": arguments}
    return {"file": place, "factory": name, "arguments": arguments}


def _argument(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ConfigError(f"arguments: {text} is not KEY=VALUE; give for example classes=10.")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def _check_output(folder: Path) -> None:
    """Raise `ConfigError` before the audit, which takes minutes, if it could not be written."""
    if reason := no_folder(folder):
        raise ConfigError(f"output: {folder} {reason}; give another folder.")
