"""Networks under attack, described as chains of linear layers and activations."""
