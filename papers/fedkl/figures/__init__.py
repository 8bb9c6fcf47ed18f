"""FedKL's figures."""
