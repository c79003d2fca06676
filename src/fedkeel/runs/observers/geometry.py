"""How well the encoder keeps classes together and apart, once, before round 1. For simulations: it looks at rows."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import torch

from fedkeel.core.method import State
from fedkeel.metrics.geometry import geometry
from fedkeel.runs.observers.base import Observer, Running, observer


@observer("geometry")
class Geometry(Observer):
    order = 10

    @classmethod
    def wanted(cls, run: Running) -> bool:
        there = run.simulation is not None and run.simulated.engine.sites.x.tensor is not None
        return there and (run.known is None or run.known.geometry is None)

    def started(self, state: State) -> None:
        seen = self.run.simulated
        labels = torch.from_numpy(seen.federation.dataset.train_labels.astype(np.int64))  # true, whatever clients see
        features, rows = seen.engine.sites.x.tensor, torch.from_numpy(seen.engine.sites.owned.rows)
        assert features is not None
        self.run.log.write("geometry", **asdict(geometry(features, labels, rows)))
