"""Threat models of gradient inversion by their letters in the literature.

Carletti et al., "SoK: Gradient Inversion Attacks in Federated Learning" (USENIX Security 2025),
order what an attacker has: the client's updates (A), and basic knowledge (B), details of the
client's training (C), other data of its kind (D), statistics of its own data (E); F to H send
weights of their own making, with the knowledge of C, of D, or of D and a choice of clients.
"""

from typing import Literal

Letter = Literal["A", "B", "C", "D", "E", "F", "G", "H"]
NAMES: dict[Letter, str] = {
    "A": "eavesdropper",
    "B": "informed eavesdropper",
    "C": "parameter-aware eavesdropper",
    "D": "data-enhanced eavesdropper",
    "E": "statistically informed eavesdropper",
    "F": "active manipulator",
    "G": "data-enhanced manipulator",
    "H": "manipulator that selects clients",
}
# Of an attacker that knows how often and at which rate a client trained; and of one whose server
# sends malicious weights.
OF_UPDATES: Letter = "C"
OF_SERVERS: Letter = "F"


def under(letter: Letter, *, server: bool = False, update: bool = False) -> Letter:
    """Return the letter of an attack under a malicious server, or on an update of several steps."""
    if server:
        return "G" if letter in ("D", "E") else max(letter, OF_SERVERS)
    return max(letter, OF_UPDATES) if update else letter


def named(letter: Letter) -> str:
    """Return letter and name, for pages."""
    return f"{letter}, {NAMES[letter]}"
