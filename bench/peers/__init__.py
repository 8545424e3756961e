"""The alternatives a Python team would pick instead of CaPS, each measured at its best.

Its mechanisms: `published` and `baselines` are loops on our estimators; `packages` runs those of other packages, each
in an environment of its own, where `packages_tasks` imports nothing from CaPS.

Its engine: `measure` is the interface. `spu_tasks` and `mpyc_tasks` run in `.venv-peers`, a virtual environment of
their own (SPU needs NumPy 1), so they, `tasks` and `worker` import nothing from CaPS and nothing from the main
environment.
"""
