"""Numerical tests of FedKL's propositions, in the networks of its proofs."""
