"""Networks that attacks can walk from the last layer to the first by inverting activations."""

from gradleak.models.activations import INVERTIBLE
from gradleak.models.chain import Chain, ConvLayer

# Unknowns of layers that are solved whatever their shape.
SMALL = 10_000


def inapplicable(chain: Chain, hidden: tuple[str, ...] = INVERTIBLE) -> str | None:
    """Return why a walk that inverts activations `hidden` cannot run on `chain`, or None."""
    for layer in chain.layers:
        name = f"{chain.name}: {layer.name}"
        if isinstance(layer, ConvLayer) and layer.skip:
            return (
                f"{name} has a skip connection, which the closed form does not walk; use dlg or "
                "inverting_gradients."
            )
        if isinstance(layer, ConvLayer) and not layer.is_plain:
            return (
                f"{name} has a pool, a norm or replicated padding, which the closed form does not "
                "walk; use dlg, inverting_gradients or mkor."
            )
        allowed = INVERTIBLE if layer is chain.layers[-1] else hidden
        if layer.activation.name not in allowed:
            return (
                f"{name} is followed by '{layer.activation.name}', which has no inverse; choose "
                f"one of {', '.join(allowed)}."
            )
    return None


def too_large(chain: Chain, layers: int | None = None) -> str | None:
    """Return why the first `layers` convolutions, by default all, are not solved, or None."""
    if all(layer.shape.unknowns <= SMALL for layer in chain.convolutions[:layers]):
        return None
    from gradleak.operators import limits

    for layer in chain.convolutions[:layers]:
        masked = layer.activation.name == "relu"
        if why := limits.too_large(layer.shape, masked):
            return f"{chain.name}: {layer.name} {why}."
    return None
