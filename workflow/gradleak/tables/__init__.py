"""Tables that need more than a claims file, such as the index of networks."""
