"""How much a network of one's own would leak: structure, attacks, changes that help, one page."""
