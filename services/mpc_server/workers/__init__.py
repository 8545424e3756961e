"""The workers of one party: processes that compute ranges of rows of its large local work (`engine.jobs`).

They belong to the party and see what it sees of the rows they are given: its own components. They have no key that it
shares with a peer, draw no randomness and speak with nobody but the leader, the process that is the party's server.
"""
