"""Where checkpoints of agents are kept: the contract in `base`, one module per store."""
