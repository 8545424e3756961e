"""Replicated secret sharing among three parties, of which one may be malicious: `rep3` with proofs of every message.

Shares and messages are those of `engine.rep3`. Of what party i, the prover, sends, each of the others knows a part of
what it follows from: the previous party, the left verifier, has component i in common with it, and the next one, the
right verifier, component i + 1. So every message is a *claim* of one form: a sum of products of numbers known on the
left with numbers known on the right, plus a number e known on the left and a number f known on the right, is zero. Each
party files what it knows of a claim (`claims`), and before anything is opened the provers prove all claims at once
(`proof`), telling nothing else (Boyle, Gilboa, Ishai and Nof 2019).

What is not a claim: openings, in which the second copy's digest is compared, and the shuffle, which checks tags.
"""

from __future__ import annotations

from services.mpc_server.engine.rep3_active import arithmetic, boolean, conversion, local, opening, shuffle, signs

__all__ = ["arithmetic", "boolean", "conversion", "local", "opening", "shuffle", "signs"]
