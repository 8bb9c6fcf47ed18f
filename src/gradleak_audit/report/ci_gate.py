"""Gate for continuous integration: fail if a network leaks more than allowed."""

from typing import Literal

from gradleak.errors import GradleakError
from gradleak_audit.result import NONE, QUICK, Audit

# The lowest grade of a gradient that counts as a leak.
Counts = Literal["read", "partly"]


class LeaksTooMuch(GradleakError):
    """Raised if a network leaks more than allowed; the message says what and by how much."""


def leak(audit: Audit, counts: Counts = "partly") -> float | None:
    """Share of gradients that honest servers' attacks read; None if every attack failed.

    With ``partly``, gradients count that were read in part, and those whose images were matched
    where matches are beyond chance.
    """
    (own,) = [change for change in audit.changes if change.id == NONE]
    if own.leak is None or counts == "partly":
        matched = audit.verdict.matched / max(own.gradients, 1)
        return None if own.leak is None else max(own.leak, matched)
    return own.read / own.gradients


def check(
    audit: Audit, limit: float | None, baseline: Audit | None, counts: Counts = "partly"
) -> str:
    """Return why a network's leak is within `limit` and that of an earlier result `baseline`.

    `counts` is as in `leak`. Raises `LeaksTooMuch` if it is not, `GradleakError` if there is
    nothing to compare.
    """
    where, against, exceeded = f"audit.{audit.name}", [], ""
    if limit is None and baseline is None:
        raise GradleakError(
            f"{where} has neither limit nor baseline, so there is nothing to pass; give one of "
            "them."
        )
    found, part = _measured(audit, where, counts), ""
    if counts == "partly":
        part = f" at least in part{', or matched' if audit.verdict.matched else ''}"
    read = f"{audit.name}: {found:.0%} of gradients could be read{part}"
    if limit is not None:
        against.append(f"limit {limit:.0%}")
        exceeded = f"more than limit: {limit:g} allows" if found > limit else ""
    if baseline is not None and not exceeded:
        _comparable(audit, baseline)
        before = _measured(baseline, f"{where}.baseline", counts)
        against.append(f"baseline {before:.0%}")
        exceeded = f"and {before:.0%} in the baseline" if found > before else ""
    if exceeded:
        raise LeaksTooMuch(f"audit.{read}, {exceeded}; see report.html for what would help.")
    quick = " A quick look at scale smoke, and no evidence." if audit.setting.scale == QUICK else ""
    return f"{read}; {', '.join(against)}.{quick}"


def _measured(audit: Audit, where: str, counts: Counts) -> float:
    if (found := leak(audit, counts)) is None:
        nothing = "no attack gave a reconstruction, so nothing was measured that could pass"
        raise GradleakError(f"{where}: {nothing}; see the reasons in report.html.")
    return found


def _comparable(audit: Audit, baseline: Audit) -> None:
    here, there = ({"name": one.name} | dict(one.setting) for one in (audit, baseline))
    for key, now in here.items():
        if now != (before := there[key]):
            raise GradleakError(
                f"audit.{audit.name}.baseline: its {key} is {before}, and {now} here, so the two "
                "cannot be compared; make it again with these settings."
            )
