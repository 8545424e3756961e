"""All queries on the tables, by subject: `studies`, `contributions`, `matching`, `pairs`, `runs`.

Functions take the transaction they belong to, and decide nothing: who may do what, and when, is decided by their
callers and by the tables of `storage.states`, without which no state is changed. The ledger, and what a run writes down
step by step, have modules of their own (`storage.ledger`, `runs.record`).
"""
