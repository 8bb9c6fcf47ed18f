"""Gate for continuous integration: fail if a network leaks more than allowed."""

from gradleak.errors import GradleakError
from gradleak_audit.result import NONE, Audit


class LeaksTooMuch(GradleakError):
    """Raised if a network leaks more than allowed; the message says what and by how much."""


def leak(audit: Audit) -> float | None:
    """Share of gradients that an honest server's attack read; None if every attack failed."""
    (own,) = [change for change in audit.changes if change.id == NONE]
    return own.leak


def check(audit: Audit, limit: float | None, baseline: Audit | None) -> str:
    """Return why a network's leak is within `limit` and that of an earlier result `baseline`.

    Raises `LeaksTooMuch` if it is not, `GradleakError` if there is nothing to compare.
    """
    where, against, exceeded = f"audit.{audit.name}", [], ""
    if limit is None and baseline is None:
        raise GradleakError(
            f"{where} has neither limit nor baseline, so there is nothing to pass; give one of "
            "them."
        )
    found = _measured(audit, where)
    read = f"{audit.name}: {found:.0%} of gradients could be read"
    if limit is not None:
        against.append(f"limit {limit:.0%}")
        exceeded = f"more than limit: {limit:g} allows" if found > limit else ""
    if baseline is not None and not exceeded:
        _comparable(audit, baseline)
        before = _measured(baseline, f"{where}.baseline")
        against.append(f"baseline {before:.0%}")
        exceeded = f"and {before:.0%} in the baseline" if found > before else ""
    if exceeded:
        raise LeaksTooMuch(f"audit.{read}, {exceeded}; see report.html for what would help.")
    return f"{read}; {', '.join(against)}."


def _measured(audit: Audit, where: str) -> float:
    if (found := leak(audit)) is None:
        nothing = "no attack gave an answer, so nothing was measured that could pass"
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
