"""The alternatives a Python team would pick instead of CaPS's engine, each measured at its best.

`bench.peers.measure` is the interface. `spu_tasks` and `mpyc_tasks` run in `.venv-peers`, a virtual environment of
their own (SPU needs NumPy 1), so they, `tasks` and `worker` import nothing from CaPS and nothing from the main
environment.
"""
