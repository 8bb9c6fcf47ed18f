"""Numbers, shapes and words as pages show them."""

from math import floor, isfinite, isinf, isnan, log10

from markupsafe import Markup, escape

MINUS, DASH, TIMES, NARROW = "−", "–", "×", "\u202f"
# Numbers below the first and from the second on are written with a power of ten.
SMALL, LARGE = 1e-3, 1e6


def absent(why: str) -> Markup:
    """Dash in place of a missing number, with the reason: never a 0."""
    return Markup(
        '<span class="absent" title="{why}"><span aria-hidden="true">{dash}</span>'
        '<span class="unseen">{why}</span></span>'
    ).format(why=why, dash=DASH)


def whole(value: int | None, why: str = "not counted") -> Markup:
    """Integer with commas between thousands."""
    return absent(why) if value is None else escape(f"{value:,}".replace("-", MINUS))


def _unusual(value: float | None, why: str) -> Markup:
    """Text of a missing or an infinite number."""
    if value is None or isnan(value):
        return absent(why if value is None else "not a number")
    return escape(f"{MINUS if value < 0 else ''}∞")


def number(value: float | None, why: str = "not measured", digits: int = 3) -> Markup:
    """Number with `digits` significant digits; all digits before the point are kept."""
    if value is None or not isfinite(value):
        return _unusual(value, why)
    if value == 0:
        return escape("0")
    text = f"{abs(value):.{digits - 1}e}"
    sign = MINUS if value < 0 else ""
    if SMALL <= float(text) < LARGE:
        decimals = max(digits - 1 - floor(log10(float(text))), 0)
        return escape(f"{sign}{abs(value):,.{decimals}f}")
    mantissa, exponent = text.split("e")
    power = str(int(exponent)).replace("-", MINUS)
    return Markup("{} {} 10<sup>{}</sup>").format(f"{sign}{mantissa}", TIMES, power)


def fixed(value: float | None, decimals: int, why: str = "no reconstruction") -> Markup:
    """Number with fixed decimals, used for PSNR (1) and SSIM (2)."""
    if value is None or not isfinite(value):
        return _unusual(value, why)
    text = f"{abs(value):,.{decimals}f}"
    return escape(f"{MINUS if value < 0 and float(text.replace(',', '')) else ''}{text}")


def ratio(value: float | None, why: str = "not measured") -> Markup:
    """Ratio to the unchanged network, as in 0.5×."""
    return number(value, why) if value is None else number(value, digits=2) + TIMES


def percent(value: float | None, why: str = "not measured") -> Markup:
    """Share as a percentage."""
    return number(value, why) if value is None else fixed(100 * value, 0) + f"{NARROW}%"


def accuracy(value: float | None, why: str = "no data set with labels was given") -> Markup:
    """Share as a percentage with one decimal."""
    return number(value, why) if value is None else fixed(100 * value, 1) + f"{NARROW}%"


def sort_key(value: float | None) -> str:
    """Sort key of a column, as JavaScript's Number reads it; empty for a missing value."""
    if value is None or isnan(value):
        return ""
    return f"{'-' if value < 0 else ''}Infinity" if isinf(value) else repr(value)


def shape(sides: tuple[int, ...]) -> Markup:
    """Shape such as 3×32×32; 1 if it has no sides."""
    return escape(TIMES.join(f"{side}" for side in sides) or "1")


def capital(text: str) -> str:
    """Text with its first letter in upper case, the rest unchanged."""
    return text[:1].upper() + text[1:]


def breakable(text: str) -> Markup:
    """Identifier that may break behind its underscores, for narrow columns."""
    return Markup("_<wbr>").join(escape(part) for part in text.split("_"))


def counted(count: int, word: str, many: str = "") -> str:
    """Number and word, as in "1 image" and "4 images"."""
    return f"{count:,} {word if count == 1 else many or word + 's'}"


FILTERS = {
    made.__name__: made
    for made in (
        absent, whole, number, fixed, ratio, percent, accuracy, shape, sort_key, capital, counted,
        breakable,
    )
}  # fmt: skip
