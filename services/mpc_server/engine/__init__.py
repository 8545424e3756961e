"""Protocols on secret shares: the part of the MPC server that computes.

In reading order: `shares` (what a party holds), `context` (what a protocol sees, and how rounds happen), `cost`
and `registry` (what a protocol declares), `verbs` (what a secret-sharing scheme must be able to do), `guard` (what
checks messages before anything is opened), and the schemes: `rep3`, `rep3_active` with proofs of every message, and
`rep4` with four servers.
Everything else is written on the verbs, once for all schemes: `kernels` (products of public matrices), `boolean`
(bits), `conversion`, `comparison`. Then CaPS itself: `recipe`, `validity`, `counting`, `compute` (COMPUTE ANSWERS),
`aes` and `join` (the same on rows without a common order), `sampling` (noise), `release` (SELECT and MEASURE on
integers), `steps` (the steps of a run, with noise drawn ahead). `paper` stands apart: it holds the paper's own
variants, which are not private.

Importing the engine loads its schemes. Pure: nothing here opens a socket, reads a clock or logs.
"""

from __future__ import annotations

from services.mpc_server.engine import rep3, rep3_active, rep4

__all__ = ["rep3", "rep3_active", "rep4"]
