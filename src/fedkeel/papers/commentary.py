"""What the papers have to say of runs, for every page that shows some."""

from __future__ import annotations

from fedkeel.papers import fedpurel_verdicts, lp_ft_verdicts
from fedkeel.reporting.commentary import Commentary

COMMENTARY = Commentary(
    on_balance=fedpurel_verdicts.verdicts,
    balance_figures=fedpurel_verdicts.sweeps,
    on_personal=lp_ft_verdicts.verdicts,
)
