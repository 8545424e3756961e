"""Channels for the engine: `memory` (all parties in one process) and `tls` (the real thing).

Both move bytes for one state machine, `session.Session`, so they fail in the same way. `framing` and `hello` are the
wire format without I/O; `proto/frames.md` is the contract. In `tls`, `link` is one connection to one peer (frames,
heartbeats), `mesh` all peers as one, and `dialling` listens, connects and identifies. `keeper` keeps a mesh for the
life of a process.
"""
