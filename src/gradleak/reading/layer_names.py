"""Reasons in the user's terms, with the layer names of the user's network."""

import re
from collections.abc import Sequence

from gradleak.models.chain import Chain, ConvSpec

# A chain's names of layers and their parts, with the words in front of them.
LAYER = re.compile(
    r"\b(conv|fc)(\d+)(_skip_norm|_skip|_norm)?\b|\b(convolution|fully connected layer) (\d+)\b"
)
PARTS = {
    None: "",
    "_norm": "the norm of ",
    "_skip": "the skip's convolution at ",
    "_skip_norm": "the norm of the skip's convolution at ",
}


def told(reason: str, chain: Chain, names: Sequence[str]) -> str:
    """Use the user's layer names in a reason, and drop advice on this project's settings."""
    first = reason.removeprefix(f"models.{chain.name}: ").removeprefix(f"{chain.name}: ")
    first = first.split("; ")[0].rstrip(".")
    convolutions = [isinstance(spec, ConvSpec) for spec in chain.specs]
    if not any(convolutions) and "convolution" in first:
        return "There is no convolution."
    if first.startswith(f"{chain.name} "):
        first = f"The network{first.removeprefix(chain.name)}"
    first = re.sub(rf"\b(of|but) {re.escape(chain.name)}(?='s|[ ,]|$)", r"\1 the network", first)
    # From the specs, since layers may not fit each other.
    own = [
        [name for name, conv in zip(names, convolutions, strict=False) if conv is kind]
        for kind in (False, True)
    ]

    def named(found: re.Match[str]) -> str:
        kind, number, part = found[1] or found[4], int(found[2] or found[5]), found[3]
        known = own[kind.startswith("conv")]
        if not 0 < number <= len(known):
            return found[0]
        return f"{PARTS[part]}{spoken(known[number - 1])}"

    first = LAYER.sub(named, first)
    # Layer names keep the user's capitalisation.
    if not first.startswith(tuple(names)) or first.startswith("layer "):
        first = first[:1].upper() + first[1:]
    return f"{first}." if first else ""


def spoken(name: str) -> str:
    """Layer name for use in a sentence; layers of a sequence are numbered."""
    return f"layer {name}" if name.isdigit() else name
