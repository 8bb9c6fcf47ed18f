"""Check untrusted pickles, such as CIFAR's batches: unpickling can run arbitrary code.

A pickle that `vet` passes calls nothing else, whoever reads the same bytes afterwards.
"""

import io
import pickle
from typing import Any

# Names in pickled NumPy arrays, under Python 2 and 3 and under NumPy 1 and 2.
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")
        return super().find_class(module, name)


def vet(content: bytes, name: str) -> None:
    """Refuse a pickle that contains more than arrays, numbers, text, lists and dictionaries.

    Raises `pickle.UnpicklingError` if it asks for another name or is incomplete; none of its code
    has run then.
    """
    try:
        _Restricted(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise pickle.UnpicklingError(f"{name} is refused: {error}") from error
    except Exception as error:
        # A damaged pickle may raise anything: index, key, type, codec, memory errors.
        reason = f"{type(error).__name__}: {error}"
        raise pickle.UnpicklingError(f"{name} is no whole pickle ({reason})") from error
