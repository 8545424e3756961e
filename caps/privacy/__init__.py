"""Privacy accounting: what each release costs, what is left, what may be claimed. See docs/privacy.md."""

from caps.privacy.allowance import ALLOWANCE, ETA_MAX, NOTHING, NU_MAX, Allowance
from caps.privacy.filter import BudgetExceeded, Entry, Filter
from caps.privacy.mechanisms import (
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
from caps.privacy.neighbouring import BOUNDED, UNBOUNDED, Neighbouring, Relation
from caps.privacy.population import PopulationBudget, Reservation, together
from caps.privacy.schedule import AimSchedule, MstSchedule, MwemSchedule, Role, Schedule, Step
from caps.privacy.statement import ASSUMPTIONS, RELEASE, UNIT, PrivacyStatement, Releases
from caps.privacy.zcdp import (
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
    "together",
]
