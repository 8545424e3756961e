"""One run of another package's mechanism, in its environment: `packages_tasks.py TASK GIVEN.npz MADE.npz`.

Imports nothing from CaPS. Every column is categorical with public categories, so nothing is spent on learning them.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any


def opendp(task: dict[str, Any], codes: Any, sizes: list[int]) -> Any:
    """opendp's AIM or MST with all pairs of columns."""
    import polars as pl
    from opendp import prelude

    dp: Any = prelude

    dp.enable_features("contrib")
    names = [f"c{i}" for i in range(len(sizes))]
    frame = pl.DataFrame({name: codes[:, i] for i, name in enumerate(names)}).lazy()
    algorithm = {"aim": dp.mbi.AIM, "mst": dp.mbi.MST}[task["algorithm"]]()
    context = dp.Context.compositor(
        data=frame, privacy_unit=dp.unit_of(contributions=1), privacy_loss=dp.loss_of(rho=task["rho"])
    )
    keys = {name: list(range(size)) for name, size in zip(names, sizes, strict=True)}
    table = context.query(rho=task["rho"]).select(*names).contingency_table(keys=keys, algorithm=algorithm).release()
    return table.synthesize().select(names).to_numpy()


def smartnoise(task: dict[str, Any], codes: Any, sizes: list[int]) -> Any:
    """smartnoise-synth's AIM, MST or MWEM. It draws as many rows as it was given: their number is not protected."""
    import pandas as pd  # type: ignore[import-untyped]
    from snsynth.transform import LabelTransformer, TableTransformer

    module = __import__(f"snsynth.{task['algorithm']}", fromlist=["*"])
    kind = {"aim": "AIMSynthesizer", "mst": "MSTSynthesizer", "mwem": "MWEMSynthesizer"}[task["algorithm"]]
    epsilon = float(task["epsilon"])
    given = {} if task["algorithm"] == "mwem" else {"delta": float(task["delta"])}
    synthesizer = getattr(module, kind)(epsilon=epsilon, **given)
    names = [f"c{i}" for i in range(len(sizes))]
    labels = []
    for size in sizes:
        one = LabelTransformer(nullable=False)
        for value in range(size):
            one._fit(value)
        one._fit_finish()
        labels.append(one)
    frame = pd.DataFrame({name: codes[:, i] for i, name in enumerate(names)})
    synthesizer.fit(frame, transformer=TableTransformer(labels), preprocessor_eps=0.0)
    return pd.DataFrame(synthesizer.sample(len(codes)), columns=names).to_numpy()


def main(text: str, given: str, made: str) -> None:
    """Run it, and write the rows with wall and processor time."""
    import numpy as np

    task = json.loads(text)
    with np.load(given, allow_pickle=False) as found:
        codes, sizes = found["codes"], found["sizes"].tolist()
    perform = {"opendp": opendp, "smartnoise": smartnoise}[task["package"]]
    began, processor = time.perf_counter(), _cpu()
    rows = perform(task, codes, sizes)
    times = time.perf_counter() - began, _cpu() - processor
    np.savez(made, codes=np.asarray(rows, np.int64), times=np.array(times))


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main(*sys.argv[1:])
