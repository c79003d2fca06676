"""Clients that hold rows which look alike.

Park, Yeo, Lee, OvA-LP: A Simple and Efficient Framework for Federated Learning on Non-IID Data, arXiv 2511.05028.
"""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.splits.base import Pool, Split, register


@register("per class k-means on the features, a cluster per client (Park et al. 2025, OvA-LP)")
class FeatureClusters(Split):
    kind: Literal["feature-clusters"] = "feature-clusters"

    def owners(self, pool: Pool) -> np.ndarray:
        """Per class: k-means with one cluster per client; clusters go to clients in a random order of their own.

        The paper does not say how the clusters of different classes are joined; a keyed order per class is our choice.
        """
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        if pool.features is None:
            raise FedkeelError(
                "partition.kind = 'feature-clusters' needs features: set data.encoder to one that gives them"
            )
        features = np.asarray(pool.features(), dtype=np.float32)
        if not np.isfinite(features).all():
            raise FedkeelError(
                "partition.kind = 'feature-clusters': the features hold NaN or infinity; check the source"
            )
        owner = np.empty(len(pool.labels), dtype=np.int64)
        # One thread: sums in a fixed order, so the same split on every machine with the same libraries.
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # equal rows make fewer clusters; that is fine here
            for label, rows in pool.by_class():
                rng = pool.rng("class", label)
                means = KMeans(
                    min(self.clients, len(rows)), n_init=1, max_iter=50, random_state=int(rng.integers(2**31))
                )
                owner[rows] = rng.permutation(self.clients)[means.fit_predict(features[rows])]
        return owner
