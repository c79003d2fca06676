"""LSS FT: local superior soups, models that are trained so that their mixtures are good.

Chen et al., Local Superior Soups, NeurIPS 2024 (arXiv 2410.23660); LP-FT (arXiv 2511.12695), Appendix B.4: three
models. The first is trained as usual. Each further one starts at the mean of those before it, which stay; its loss is
that of random mixtures of all, with weights uniform on the simplex, two mixtures per batch:
    mean_m CE(sum_i c_mi v_i) - diversity Vol(v_1 .. v_n) + affinity |v_n - start|^2
Vol is the squared volume of the simplex that the models span (by the determinant of Cayley and Menger, which is that of
the edges' inner products over ((n - 1)!)^2). The first has the affinity to the global model. The personal model is the
mean of all three.

Our choices: the epochs of all models add up to ``epochs``, each further one has an eighth of them (the authors' code:
8 and 1); mixtures are averaged, not added; statistics of batch norms belong to each model and are averaged at the end.
"""

from __future__ import annotations

from dataclasses import replace
from math import factorial

import torch
from pydantic import Field

from fedkeel.core.method import Batch, Phase, Visit
from fedkeel.core.tree import STATS, Tensor, Tree, learnt, put, select, take
from fedkeel.personal.strategy import Strategy, register
from fedkeel.rows.inputs import Inputs

MIXTURES = 2


@register("lss-ft", paper="three models trained so that their mixtures are good (Local Superior Soups, NeurIPS 2024)")
class LssFT(Strategy):
    models: int = Field(3, ge=2)
    affinity: float = Field(1e-3, ge=0)
    diversity: float = Field(1e-3, ge=0)

    def plan(self, round: int) -> list[Phase]:
        further = max(1, self.epochs // 8)
        first = max(1, self.epochs - further * (self.models - 1))
        stages = [self.stage("model-1", self.full, first)]
        for number in range(2, self.models + 1):
            stages.append(replace(self.stage(f"model-{number}", self.full, further), draws=True))
        return stages

    def begin(self, visit: Visit) -> Tree:
        before = models_of(visit)
        return mean(before) if before else select(visit.down, visit.phase.trains)

    def loss(self, params: Tree, batch: Batch[Tensor | Inputs], visit: Visit) -> Tensor:
        before, start = models_of(visit), self.begin(visit)
        near = self.affinity * squared_distance(params, start)
        if not before:
            return self.flooded(self.network.cross_entropy({**visit.down, **params}, batch)) + near
        models = [*before, params]
        losses = [
            self.network.cross_entropy({**visit.down, **select(params, (STATS,)), **mixed(models, weights)}, batch)
            for weights in simplex(batch.u, len(models))
        ]
        return self.flooded(torch.stack(losses).mean()) - self.diversity * squared_volume(models) + near

    def end(self, params: Tree, steps: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        models = [*models_of(visit), params]
        if len(models) == self.models:
            return {}, mean(models)
        return {}, {**visit.mine, **put(f"{visit.phase.name}/", params)}


def models_of(visit: Visit) -> list[Tree]:
    """The models that were trained before."""
    names = sorted({name.partition("/")[0] for name in visit.mine})
    return [take(f"{name}/", visit.mine) for name in names]


def mean(models: list[Tree]) -> Tree:
    return {name: torch.stack([model[name] for model in models]).mean(0) for name in models[0]}


def mixed(models: list[Tree], weights: Tensor) -> Tree:
    """The weighted sum of what optimizers move."""
    return {
        name: torch.stack([w * model[name] for w, model in zip(weights, models, strict=True)]).sum(0)
        for name in learnt(models[0])
    }


def simplex(u: Tensor, corners: int) -> Tensor:
    """Points drawn uniformly on the simplex, one per mixture; a batch of fewer rows uses its numbers again."""
    drawn = u[torch.arange(MIXTURES * corners) % len(u)].reshape(MIXTURES, corners)
    exponential = -torch.log1p(-drawn.clamp(max=1 - 1e-6)) + 1e-6
    return exponential / exponential.sum(1, keepdim=True)


def squared_distance(one: Tree, other: Tree) -> Tensor:
    return torch.stack([(value - other[name]).square().sum() for name, value in learnt(one).items()]).sum()


def squared_volume(models: list[Tree]) -> Tensor:
    """Of the simplex whose corners are the models."""
    first, *others = models
    edges = [torch.cat([(model[name] - first[name]).flatten() for name in learnt(first)]) for model in others]
    matrix = torch.stack(edges)
    volume: Tensor = torch.linalg.det(matrix @ matrix.mT).abs() / factorial(len(others)) ** 2
    return volume
