"""FedKL's tables."""
