"""Counts and ranks of a network's layers, as audits write them to JSON."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


def doc(text: str) -> Any:
    """Return a field with this description in the schema."""
    return Field(description=text)


class Part(BaseModel):
    """Base of all parts: closed and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LayerRow(Part):
    """A row of the table of layers."""

    layer: str = doc("Path of its module, or the name that torch.fx gave the step.")
    kind: str = doc("Sort of step, as of `gradleak.reading.fx_graph.Layer`.")
    detail: str = doc("The step as PyTorch prints it.")
    input: tuple[int, ...] = doc("Shape of its input for one image.")
    output: tuple[int, ...] = doc("Shape of its output for one image.")
    parameters: int = doc("All parameters of the layer.")
    unknowns: int | None = doc("|x| with what is carried past it; null where nothing is counted.")
    own_unknowns: int | None = doc("|x| of the layer alone: columns of U.")
    weights: int | None = doc("|W|: numbers in its weight.")
    outputs: int | None = doc("|z| with what is carried on behind it.")
    carried: int | None = doc("How many of `unknowns` are carried past the layer.")
    virtual: int | None = doc("|V|: constraints that earlier layers leave over.")
    index: int | None = doc("RA-i = |x| − |W| − |z| − |V|.")
    rank: int | None = doc("rank U, or a bound of it.")
    rank_kind: str = doc("How it is known: exact, measured, at most; empty where there is none.")
    free: int | None = doc("Unknowns that U leaves free, at least: own_unknowns − rank.")
    condition: float | None = doc("Condition number of U; null where it was not computed.")
    critical: bool = doc("Whether its RA-i is the network's.")
    readable: bool = doc("Whether a linear system describes it, or none is needed.")
    note: str = doc("What the row leaves out; why an unreadable layer is one.")


class Obstacle(Part):
    """A reason why a network is not a chain, and the layers that it concerns."""

    layers: tuple[str, ...] = doc("Names of these layers; empty if it concerns the whole network.")
    reason: str = doc("What stands in the way; behind a layer's name, a sentence.")


class StructurePart(Part):
    """Counts and ranks of layers."""

    layers: tuple[LayerRow, ...] = doc("Layers with parameters, and unreadable ones, as they run.")
    index: int | None = doc("RA-i, the largest of its layers'; null without a readable layer.")
    critical: str = doc("Layer of that RA-i; empty without one.")
    security: float | None = doc("c(M) of COPA, at most 0; null where it is not defined.")
    security_kind: str = doc("How the least sure of its ranks is known; empty if not defined.")
    security_note: str = doc("Why c(M) is not defined.")
    obstacles: tuple[Obstacle, ...] = doc("Why the network is not a chain; empty if it is one.")
