"""A whole federation on one machine, for trying things out: keys and homes of all parties, their processes, a sample.

One machine sees every key here, so the servers' non-collusion is NOT met. Real parties run one service each.
"""
