"""Runs on this server: the record that survives a crash, the session with the peers, and the thread it lives in."""
