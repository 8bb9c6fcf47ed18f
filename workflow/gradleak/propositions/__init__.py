"""FedKL's propositions put to the test: what gradients tell in the networks of its proofs."""
