"""Gate for continuous integration: fail if a network leaks more than allowed."""

from __future__ import annotations

from gradleak.errors import GradleakError
from gradleak_audit.result import NONE, Audit


class LeaksTooMuch(GradleakError):
    """Raised if a network leaks more than allowed; the message says what and by how much."""


def leak(audit: Audit) -> float | None:
    """Share of gradients that an honest server's attack reconstructed readably under any seed.

    None if every attack failed, so that nothing was measured.
    """
    (own,) = [change for change in audit.changes if change.id == NONE]
    return own.leak


def check(audit: Audit, limit: float | None, baseline: Audit | None) -> str:
    """Return one sentence on why a network passes.

    Its leak must exceed neither `limit` nor the leak of `baseline`, an earlier result.

    Raises `LeaksTooMuch` if the network does not pass, and `GradleakError` if neither limit nor
    baseline is given, nothing was measured, or the baseline has another network or other settings.
    """
    if limit is None and baseline is None:
        raise GradleakError(
            f"audit.{audit.name} has neither limit nor baseline, so there is nothing to pass; give "
            "one of them."
        )
    found = _measured(audit, f"audit.{audit.name}")
    if limit is not None and found > limit:
        raise LeaksTooMuch(
            f"audit.{audit.name}: {found:.0%} of gradients could be read, more than limit: "
            f"{limit:g} allows; see report.html for what would help."
        )
    against = [f"limit {limit:.0%}"] if limit is not None else []
    if baseline is not None:
        _comparable(audit, baseline)
        before = _measured(baseline, f"audit.{audit.name}.baseline")
        if found > before:
            raise LeaksTooMuch(
                f"audit.{audit.name}: {found:.0%} of gradients could be read, and {before:.0%} in "
                "the baseline; see report.html for what would help."
            )
        against.append(f"baseline {before:.0%}")
    return f"{audit.name}: {found:.0%} of gradients could be read; {', '.join(against)}."


def _measured(audit: Audit, where: str) -> float:
    found = leak(audit)
    if found is None:
        raise GradleakError(
            f"{where}: no attack gave an answer, so nothing was measured that could pass; see the "
            "reasons in report.html."
        )
    return found


def _comparable(audit: Audit, baseline: Audit) -> None:
    """Refuse a baseline with another network or other settings."""
    pairs = {"name": (audit.name, baseline.name)} | {
        key: (getattr(audit.setting, key), getattr(baseline.setting, key))
        for key in type(audit.setting).model_fields
    }
    for key, (now, before) in pairs.items():
        if now != before:
            raise GradleakError(
                f"audit.{audit.name}.baseline: its {key} is {before}, and {now} here, so the two "
                "cannot be compared; make it again with these settings."
            )
