"""Proofs that what a server sent is what it should have sent, shared between the two others, which learn nothing else.

Every claim is an inner product over F_q, q = 2^61 - 1: of a left vector that the prover and its left verifier know with
a right one that it and its right verifier know; each verifier knows a summand of its value. In reading order: `sizes`
(what is public), `filed` (claims as they come), `kernels`, `field` and `vectors` (arithmetic), `bits`, `chains`,
`words`, `matrices`, `deviations` (how claims become one inner product), `statement`, `protocol` (the proof),
`assembly`.

**The proof** (Boneh et al. 2019; Boyle, Gilboa, Ishai, Nof 2019). A validation has four rounds.

1. Every server tells the others that it has received all that is claimed, by a digest of the sizes of the claims. With
   it the prover sends to the left verifier its shares of the polynomial of the gates (`bits`), which needs no coins:
   with blocks u_l, v_l of vectors, the coefficients of (sum u_l x^l)(sum v_l x^(L-1-l)), but for the middle one, which
   is the claim. Here and later, the right shares are pads from a key in common with the right verifier.
2. Coins are opened: a seed of which every server lacks a component, with a digest by the other holder of it. A server
   opens its part when the others are ready, so all that is claimed was sent before any coin could be known. One of them
   is r, an element of F_q, at which gates are folded.
3. The prover sends to the left verifier, in one message, its shares of carries and of later polynomials' coefficients.
   Challenges, elements of F_{q^2}, come from a hash chain over what the left verifier receives, which begins with the
   coins, the sizes of the statement and the shares of the first round, and has a key that the right verifier lacks. The
   right verifier is sent the challenges.
   - First: the bits of carries (`chains`). The challenge is the weight of equations: equation t counts its t-th power,
     t >= 1, and the folded gates count once.
   - Then deviations are folded as gates are, while all else belongs to the middle coefficient.
   - Then the vectors are halved (L = 2) until one element x, y is left of each.
   - Last, x + A z and y + B z with masks A, B that the prover has in common with one verifier each: the lowest
     coefficient of the product is the claim, the two others are sent.
4. Each verifier tells the other its vector's last value, its share of the product, and a digest of all challenges. Both
   accept if the digests are equal and the product of the values is the sum of the shares.

**Soundness.** If a claim is false, the verifiers accept with probability at most 2^-40:

- Claims modulo 2^k are combined with public coins that are opened after the messages. That all combinations of false
  claims are true has probability at most 2^-48 for words (`words`), 2^-47 for products of matrices and 2^-46 for
  Gram matrices (`matrices`). Of gates and deviations each is checked. Errors in several claims do not help: all of
  them would have to vanish. An equation that holds in F_q holds over the integers (`sizes`).
- The gates' polynomial is sent before the left verifier opens its part of the coins. If a gate is wrong, the middle
  coefficient that is claimed is not that of the product, so what was sent is not the product. The difference has degree
  254 at most, and vanishes at r, which is uniform in F_q, with probability below 2^-53. The prover has one try.
- What the gates are wrong by at r is fixed before carries are sent, and carries before the weight is known. So what is
  wrong is a polynomial in the weight, with the gates' error as its lowest coefficient, and of degree below 2^20 for any
  statement that memory holds: it vanishes at a random point of F_{q^2} with probability below 2^-101. Each later
  challenge adds 2/q^2, for deviations 30/q^2. These challenges are values of a hash, so a prover may try many messages:
  with 2^55 evaluations it succeeds with probability below 2^-46.
- Without the coins in the chain a prover could choose its false message to fit challenges it knows. With them, all
  that the challenges judge was sent before they could be known.

**Zero knowledge.** The left verifier receives words that are uniform, as pads it does not know are subtracted from
them, and from the right verifier y + B z, uniform as B is, and a share that follows from these and from its own. The
right verifier receives challenges, which are values of a function with a key it lacks, x + A z, uniform as A is, and a
share that follows. No verifier chooses a challenge, so none can make another open its vector at a point of its choice:
a server that lies about coins is noticed before anything depends on them. Without a key of its own the chain would let
the right verifier test guesses of the left shares. A failed proof raises one error, whatever failed, that names two
servers.
"""
