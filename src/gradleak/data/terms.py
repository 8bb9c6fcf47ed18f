"""Terms under which images of each data set may be redistributed, as pictures in a supplement.

Apart from `catalogue`, on which all results depend: rewording here reruns nothing.
"""

from typing import NamedTuple

from gradleak.data import catalogue


class Terms(NamedTuple):
    """Permission to redistribute pictures of a data set, and the reason."""

    shareable: bool  # whether an archive may show them
    reason: str  # the licence, or what is known of it


_CIFAR = Terms(
    False, "no licence is given; the images were collected from the web (80 Million Tiny Images)"
)
# As stated by scikit-image and scikit-learn beside their files.
_PHOTOS = Terms(
    True,
    "scikit-image's photos: CC0 or public domain, but for the motorcycle, which it distributes "
    "without naming a licence (Middlebury stereo data 2014, D. Scharstein and others); "
    "scikit-learn's pagoda (danielbuechele, flickr) and flower (vultilion, flickr): CC BY 2.0",
)
TERMS = {
    "mnist": Terms(True, "CC BY-SA 3.0, Y. LeCun and C. Cortes"),
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
    "imagenet": Terms(
        False, "its terms of access allow non-commercial research and no redistribution"
    ),
    "digits": Terms(True, "CC BY 4.0, E. Alpaydin and C. Kaynak (UCI, handwritten digits)"),
    **dict.fromkeys(("photos10", "photos100", "photos224"), _PHOTOS),
}


def of(dataset: str) -> Terms:
    """Terms of a data set; one that is not listed is not shareable. `ConfigError` if unknown."""
    catalogue.info(dataset)
    return TERMS.get(dataset, Terms(False, "its terms are not listed in gradleak.data.terms"))
