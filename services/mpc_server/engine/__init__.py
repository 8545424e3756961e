"""Replicated secret sharing among three parties, at most one of them corrupted and semi-honest.

To read it top to bottom: `shares` (what a party holds), `context` (what a protocol sees, and how rounds happen),
`registry` (what a protocol declares), `arithmetic` and `kernels` (products), `boolean` (bits), `conversion` (between
both), `comparison`, `randomness`, `fixedpoint` (real functions). Then CaPS itself: `compute`
(COMPUTE ANSWERS), `sampling` (noise), `release` (SELECT and MEASURE on integers), `steps` (the steps of a run, with
noise drawn beforehand), and `paper` (the paper's own variants, not private).

Pure: nothing here opens a socket, reads a clock, logs, or draws randomness of its own.
"""
