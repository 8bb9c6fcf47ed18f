"""FedKL (Ren, Deng & Xie)."""
