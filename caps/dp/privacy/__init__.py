"""Privacy accounting: what each release costs, what is left, what may be claimed. See docs/privacy.md."""

from caps.dp.privacy.allowance import ALLOWANCE, ETA_MAX, NOTHING, NU_MAX, Allowance
from caps.dp.privacy.filter import BudgetExceeded, Entry, Filter
from caps.dp.privacy.mechanisms import (
    AnyMechanism,
    Charged,
    Gaussian,
    GaussianOverlaps,
    Laplace,
    LaplaceOverlaps,
    Mechanism,
    NoisyMax,
    Overlaps,
    PermuteAndFlip,
)
from caps.dp.privacy.neighbouring import BOUNDED, UNBOUNDED, Neighbouring, Relation
from caps.dp.privacy.population import PopulationBudget, Reservation, together
from caps.dp.privacy.schedule import AimSchedule, Choice, MstSchedule, MwemSchedule, Role, Schedule, Step
from caps.dp.privacy.statement import ASSUMPTIONS, RELEASE, UNIT, PrivacyStatement, Releases, server_premise
from caps.dp.privacy.zcdp import (
    calibrate,
    cdp_delta,
    cdp_eps,
    cdp_rho,
    folded_epsilon,
    pure_rho,
    satisfies,
)

__all__ = [
    "ALLOWANCE",
    "ASSUMPTIONS",
    "BOUNDED",
    "ETA_MAX",
    "NOTHING",
    "NU_MAX",
    "RELEASE",
    "UNBOUNDED",
    "UNIT",
    "AimSchedule",
    "Allowance",
    "AnyMechanism",
    "BudgetExceeded",
    "Charged",
    "Choice",
    "Entry",
    "Filter",
    "Gaussian",
    "GaussianOverlaps",
    "Laplace",
    "LaplaceOverlaps",
    "Mechanism",
    "MstSchedule",
    "MwemSchedule",
    "Neighbouring",
    "NoisyMax",
    "Overlaps",
    "PermuteAndFlip",
    "PopulationBudget",
    "PrivacyStatement",
    "Relation",
    "Releases",
    "Reservation",
    "Role",
    "Schedule",
    "Step",
    "calibrate",
    "cdp_delta",
    "cdp_eps",
    "cdp_rho",
    "folded_epsilon",
    "pure_rho",
    "satisfies",
    "server_premise",
    "together",
]
