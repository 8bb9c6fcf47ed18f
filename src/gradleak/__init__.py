"""gradleak: gradient leakage, four papers replicated as one pipeline."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradleak.runtime.version import __version__

if TYPE_CHECKING:
    from gradleak_audit.api import audit as audit

__all__ = ["__version__", "audit"]


def __getattr__(name: str) -> Any:
    """Import `gradleak.audit`, and with it PyTorch, on first use.

    By name: an import statement would put the code of audits into every code hash.
    """
    if name == "audit":
        return import_module("gradleak_audit.api").audit
    raise AttributeError(f"module 'gradleak' has no attribute '{name}'")
