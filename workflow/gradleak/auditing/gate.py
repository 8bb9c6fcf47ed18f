"""Whether a network may pass: a build can fail when a change of the network makes it leak more."""

from __future__ import annotations

from gradleak.auditing.result import Audit
from gradleak.errors import GradleakError


class LeaksTooMuch(GradleakError):
    """The network leaks more than it may; the message says what and how much."""


# Change of an audit that changes nothing.
NONE = "none"


def leak(audit: Audit) -> tuple[float, str]:
    """Largest share of gradients that an honest server's attack read, and its attack.

    0 and no attack where none applied.
    """
    own = [change for change in audit.changes if change.id == NONE and change.leak is not None]
    if not own:
        return 0.0, ""
    assert own[0].leak is not None
    return own[0].leak, own[0].attack


def check(audit: Audit, limit: float | None, baseline: Audit | None) -> str:
    """One sentence on why a network passes.

    Parameters
    ----------
    audit
        What was found.
    limit
        Largest share that passes; None for no such limit.
    baseline
        An earlier result, which it must not exceed; None for none.

    Raises
    ------
    LeaksTooMuch
        If it does not pass.
    GradleakError
        If there is neither a limit nor a baseline.
    """
    if limit is None and baseline is None:
        raise GradleakError(
            f"audit.{audit.name} has neither limit nor baseline, so there is nothing to pass; give "
            "one of them."
        )
    found, attack = leak(audit)
    by = f" ({attack})" if attack else ""
    if limit is not None and found > limit:
        raise LeaksTooMuch(
            f"audit.{audit.name}: {found:.0%} of gradients could be read{by}, more than limit: "
            f"{limit:g} allows; see report.html for what would help."
        )
    if baseline is not None and found > leak(baseline)[0]:
        raise LeaksTooMuch(
            f"audit.{audit.name}: {found:.0%} of gradients could be read{by}, and "
            f"{leak(baseline)[0]:.0%} in the baseline; see report.html for what would help."
        )
    against = [f"limit {limit:.0%}"] if limit is not None else []
    against += [f"baseline {leak(baseline)[0]:.0%}"] if baseline is not None else []
    return f"{audit.name}: {found:.0%} of gradients could be read; {', '.join(against)}."
