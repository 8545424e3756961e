"""Channels for the engine: `memory` (three parties in one process) and `tls` (the real thing).

Both move bytes for one state machine, `session.Session`, so that they fail alike. `framing` and `hello` are the wire
format without I/O; `proto/frames.md` is the contract. `keeper` keeps a TLS mesh for the life of a process.
"""
