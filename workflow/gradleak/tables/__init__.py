"""Tables that need more than a claims file: the index of networks, many images."""
