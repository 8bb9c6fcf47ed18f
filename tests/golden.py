"""The golden run: what every file of the smoke run holds, as checksums that a refactoring keeps.

    python tests/golden.py record FOLDER           write golden.csv from a tree where `all` was made
    python tests/golden.py compare FOLDER [OTHER]  against golden.csv, or against another such tree

The run is `python tests/kernels.py run Haswell snakemake --config scale=smoke -- all`: under
one kernel the same numbers come out on any CPU of the same vendor that has AVX2, and that trains in
bfloat16 or float32 as the recording one did. A checksum is taken over content: the arrays of a
safetensors file, the pixels of a PNG, the text of a table. PDFs show what PNGs show, and metadata
of arrays are not numbers; both are left out.
"""

import csv
import hashlib
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import kernels
from gradleak.runtime.artifacts import read_tensors
from gradleak.runtime.provenance import software
from gradleak.training.recipe import arithmetic
from pipeline_trees import result_paths

KERNEL = "Haswell"
GOLDEN = Path(__file__).with_name("golden.csv")
# First line of the list: under what it holds.
UNDER = "# "


def digest(path):
    """Checksum (16 hex digits) of what a file holds; None for a kind that does not count."""
    found = hashlib.sha256()
    if path.suffix == ".safetensors":
        for name, array in sorted(read_tensors(path)[0].items()):
            found.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
            found.update(np.ascontiguousarray(array))
    elif path.suffix == ".png":
        with Image.open(path) as image:
            found.update(f"{image.mode}:{image.size};".encode() + image.tobytes())
    elif path.suffix == ".csv":
        found.update(path.read_bytes())
    else:
        return None
    return found.hexdigest()[:16]


def sums(folder):
    """Checksum of every file of a tree that counts, by its path."""
    found = {name: digest(path) for name, path in sorted(result_paths(folder).items())}
    return {name: value for name, value in found.items() if value is not None}


def conditions():
    """What the checksums hold under: versions, the CPU that MKL chooses by, how it trains."""
    told = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    named = (line.partition(":")[2].strip() for line in told.splitlines() if "vendor_id" in line)
    vendor = next(named, platform.processor() or "other")
    own = {"kernel": KERNEL, "machine": platform.machine(), "vendor": vendor}
    # No choice of kernels changes this.
    own["training"] = arithmetic("auto", torch.device("cpu"))
    return {**own, **software(), "matplotlib": version("matplotlib")}


def recorded():
    head, *rows = GOLDEN.read_text(encoding="utf-8").splitlines()
    return json.loads(head.removeprefix(UNDER)), dict(csv.reader(rows[1:]))


def record(folder):
    """Write the list from a tree."""
    with GOLDEN.open("w", encoding="utf-8", newline="") as file:
        file.write(f"{UNDER}{json.dumps(conditions(), sort_keys=True)}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("path", "sum"), *sums(folder).items()])


def differences(expected, found):
    """Say of each file that is not as expected whether it is missing, new or another."""

    def word(name):
        return "missing" if name not in found else "new" if name not in expected else "another"

    names = sorted(name for name, _ in expected.items() ^ found.items())
    return [f"{name}: {word(name)}" for name in dict.fromkeys(names)]


def reason_to_skip():
    """Say why the list cannot hold here; None where it does.

    Other libraries are no such reason: whoever changes the lock makes the list again.
    """
    before, here = recorded()[0], conditions()
    for key in ("machine", "vendor", "python", "training"):
        if before.get(key) != here[key]:
            words = f"recorded with {key} {before.get(key)}, here it is {here[key]}"
            return f"{words}; compare two own runs"
    if kernels.KERNELS[KERNEL][0] not in kernels.probe()["features"]:
        return f"this CPU has no {kernels.KERNELS[KERNEL][0]}"
    return None


def compare(folder, other=None):
    """Print how a tree differs from the list or from another tree; ends with 1 if it does."""
    expected = sums(Path(other)) if other else recorded()[1]
    found = sums(Path(folder))
    lines = differences(expected, found)
    print("\n".join([*lines, f"{len(lines)} of {len(expected | found)} files differ"]))
    return bool(lines)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record", folder]:
            record(Path(folder))
        case ["compare", *folders] if 1 <= len(folders) <= 2:
            sys.exit(compare(*folders))
        case _:
            sys.exit(__doc__)
