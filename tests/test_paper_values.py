"""The paper scale of every recipe has the values that its paper prints or, where it has none, its released code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import fedkeel as fk
from fedkeel.core.method import from_settings
from fedkeel.core.optim import SGD, AdamW
from fedkeel.personal.strategy import STRATEGIES
from fedkeel.study.grid import Cell
from fedkeel.study.recipe import Grid

PLANS = {name: recipe.scales["paper"] for name, recipe in fk.recipes().items()}
GRIDS = {f"{name}/{grid.name}": grid for name, plan in PLANS.items() for grid in plan.grids}
VITS = {"16": "hf:google/vit-large-patch16-224", "b16": "hf:google/vit-base-patch16-224"}


def cells(*starts: str) -> Iterator[tuple[str, Grid, Cell]]:
    for name, grid in GRIDS.items():
        if name.startswith(starts):
            yield from ((name, grid, cell) for cell in grid.cells([0]))


def of(cell: Cell) -> Mapping[str, Any]:
    return cell.experiment.method


def test_ova_lp_section_4_1() -> None:
    """100 clients, all of them in 50 rounds of 3 epochs, batches of 50, AdamW 0.01 with decay 1e-4, ViT-L/16."""
    found = [(name, grid, cell) for name, grid, cell in cells("ova-lp/") if cell.method.name == "ova-lp"]
    assert {name.rpartition("/")[0] for name, *_ in found} == {
        f"ova-lp/{part}"
        for part in ("ablation", "baselines", "encoders", "geometry", "noise", "participation", "partitions")
    }
    for name, _, cell in found:
        exp, method = cell.experiment, of(cell)
        assert (method["epochs"], method["batch"], method["lr"], method["weight_decay"]) == (3, 50, 0.01, 1e-4), name
        assert isinstance(from_settings(method).optim, AdamW)
        assert exp.partition.clients == (20 if "/noise/" in name else 100), "FedLTF's table has 20"
        if "geometry" not in name:
            assert method["rounds"] == 50
            assert exp.data.features == ("centred" if name.endswith("-centred") else "raw")
        if "participation" not in name:
            assert method["participation"] == 1.0
        if not name.startswith(("ova-lp/encoders", "ova-lp/geometry")):
            assert exp.data.encoder == VITS["16"], name
    kinds = {cell.partition.name: cell.experiment.partition for _, _, cell in cells("ova-lp/partitions")}
    assert (kinds["bernoulli-dirichlet"].p, kinds["bernoulli-dirichlet"].alpha) == (0.1, 0.001)  # type: ignore[attr-defined]
    assert kinds["zipf"].exponent == 2.0  # type: ignore[attr-defined]
    assert {"shard-1", "shard-2", "feature-clusters"} < kinds.keys()
    shares = {of(cell)["participation"] for _, _, cell in cells("ova-lp/participation") if cell.partition.name != "iid"}
    assert shares == {0.1, 0.4, 0.7, 1.0}


@pytest.mark.parametrize("part", ["ablation", "partitions", "participation"])
def test_a_centred_grid_stands_beside_ova_lp_as_published(part: str) -> None:
    raw, centred = (GRIDS[f"ova-lp/{part}/cifar100{end}"] for end in ("", "-centred"))
    for one, other in zip(raw.cells([0]), centred.cells([0]), strict=True):
        assert one.experiment.data.features == "raw"
        assert one.experiment.with_values({"data.features": "centred"}) == other.experiment


def test_ova_lp_table_8() -> None:
    pfpt, moe = (GRIDS[f"ova-lp/baselines/{name}"].cells([0])[0].experiment for name in ("pfpt", "fft-moe"))
    assert {key: pfpt.method[key] for key in ("batch", "lr", "epochs", "rounds", "participation", "prompts")} == {
        "batch": 16, "lr": 1e-4, "epochs": 5, "rounds": 50, "participation": 0.1, "prompts": 10,
    }  # fmt: skip
    assert from_settings(pfpt.method).optim == AdamW(1e-4, 0.0, beta1=0.9, beta2=0.98, eps=1e-6)
    assert from_settings(pfpt.method).sample(100, 64) == 10, "ten of all 100, however many hold rows"
    assert pfpt.data.encoder == "hf:google/vit-base-patch32-224-in21k"
    keys = ("batch", "lr", "epochs", "rounds", "participation", "weight_decay", "experts", "rank", "top", "balance")
    assert [moe.method[key] for key in keys] == [128, 3e-4, 1, 50, 1.0, 1e-2, 8, 2, 1, 1e-5]
    assert moe.data.encoder == VITS["b16"]


def test_ova_lp_s_table_of_noise() -> None:
    """FedLTF's ratios and maps; Symmetric CE's pair for CIFAR-100; co-teaching forgets as many as are wrong."""
    ratios: dict[str, set[float]] = {}
    for _, _, cell in cells("ova-lp/noise"):
        shift = cell.experiment.shift
        ratios.setdefault(shift.noise, set()).add(shift.noise_ratio)
        assert shift.noise_map == {"symmetric": "", "asymmetric": "blocks"}[shift.noise]
        if cell.method.name == "symmetric-ce":
            assert (of(cell)["alpha"], of(cell)["beta"]) == (6, 0.1)
        if cell.method.name == "co-teaching":
            assert of(cell)["forget"] == shift.noise_ratio
        assert cell.partition.name == "iid"
    for kind in ("symmetric", "asymmetric"):
        networks = GRIDS[f"ova-lp/noise/cifar100-{kind}-networks"].cells([0])
        assert {cell.method.name for cell in networks} == {"fedavg", "fedcorr", "fednoro", "fedltf"}
        assert {(of(cell)["tune"], cell.experiment.data.encoder) for cell in networks} == {
            ("network", "resnet18-small")
        }
    assert ratios == {"symmetric": {0.3, 0.4, 0.5, 0.6, 0.7}, "asymmetric": {0.2, 0.3, 0.4}}


def test_lp_ft_appendix_c_1() -> None:
    """100 rounds of one epoch, Adam 1e-3, batches of 128, the best global model; then 15 epochs."""
    for name, grid, cell in cells("lp-ft/"):
        method = of(cell)
        assert (method["rounds"], method["epochs"], method["batch"]) == (100, 1, 128), name
        if cell.method.name != "fednova":  # which is for SGD
            assert from_settings(method).optim == AdamW(1e-3, 0.0), name
        for variant in grid.strategies():
            strategy = STRATEGIES[variant.name](**variant.settings)
            assert cell.experiment.run.keep == "best"
            if "overfitting" not in name and variant.name != "lp":
                assert strategy.epochs == 15
            said = {"proximal-ft": ("mu", 0.01), "soup-ft": ("models", 5), "lss-ft": ("models", 3)}.get(variant.name)
            if said and not variant.settings:
                assert getattr(strategy, said[0]) == said[1]
    peft = [str(variant) for variant in GRIDS["lp-ft/peft/domainnet"].strategies()]
    assert {"lora-ft:lr=0.001", "lora-ft:lr=0.0001", "adapter-ft:lr=0.001", "adapter-ft:lr=0.0001"} < {*peft}


def test_lp_ft_table_6() -> None:
    """Datasets, clients and networks."""
    found = {
        name: (exp.partition.kind, exp.data.encoder, getattr(exp.partition, "correlation", None))
        for name, exp in ((name, cell.experiment) for name, _, cell in cells("lp-ft/main", "lp-ft/label-shift"))
    }
    assert found == {
        "lp-ft/main/digit5": ("column", "resnet18", None),
        "lp-ft/main/domainnet": ("column", "hf:microsoft/resnet-50", None),
        "lp-ft/main/cifar10-c": ("column", "resnet18-small", None),
        "lp-ft/main/cifar100-c": ("column", "resnet18-small", None),
        "lp-ft/main/celeba": ("spurious", "hf:microsoft/resnet-50", 0.9),
        "lp-ft/main/chexpert": ("spurious", "hf:microsoft/resnet-50", 0.9),
        "lp-ft/label-shift/cifar10": ("dirichlet", "resnet18-small", None),
    }
    clients = {name: cell.experiment.partition.clients for name, _, cell in cells("lp-ft/")}
    assert (clients["lp-ft/main/celeba"], clients["lp-ft/main/chexpert"]) == (4, 2)
    assert clients["lp-ft/label-shift/cifar10"] == 20
    (shift,) = GRIDS["lp-ft/label-shift/cifar10"].cells([0])
    assert shift.experiment.partition.alpha == 0.1  # type: ignore[attr-defined]
    assert {cell.experiment.shift.flip for _, _, cell in cells("lp-ft/label-flip")} == {0.2, 0.3, 0.4, 0.5}


TEMPLATES = {
    "food101-lt": "a type of food, a photo of {}.", "oxford-pets-lt": "a type of pet, a photo of a {}.",
    "fgvc-aircraft-lt": "a type of aircraft, a photo of a {}.", "dtd-lt": "a photo of a {} pattern.",
}  # fmt: skip
"""As released; "auto" is "a photo of a {}." for images."""


def test_fedpurel_s_released_code() -> None:
    """20 clients, 0.4 of them in 100 rounds of one epoch, batches of 32, SGD 1e-3, momentum 0.9, decay 5e-4."""
    for name, _, cell in cells("fedpurel/"):
        exp, method, grid = cell.experiment, of(cell), name.rpartition("/")[2]
        assert exp.data.encoder == "hf:openai/clip-vit-base-patch16"
        assert exp.partition.clients == 20
        assert method["template"] == TEMPLATES.get(grid, "auto"), name
        assert exp.shift.long_tail == (1.0 if grid in ("imagenet-lt", "places-lt", "balanced") else 100.0)
        if cell.method.name == "zero-shot":
            continue
        assert [method[key] for key in ("rounds", "participation", "epochs", "batch")] == [100, 0.4, 1, 32]
        assert from_settings(method).optim == SGD(1e-3, 0.9, 5e-4)
        if cell.method.name == "fedpurel" and "lambda" not in name:
            assert method["lam"] == 0.9
        if "tokens" in method:
            assert method["tokens"] == 4
        assert exp.partition.kind == ("pachinko" if exp.data.source == "cifar100:cifar100" else "dirichlet")
    alphas = {cell.experiment.partition.alpha for _, _, cell in cells("fedpurel/heterogeneity/prompt")}  # type: ignore[attr-defined]
    assert alphas == {0.1, 0.5, 1, 5}
    lambdas = {of(cell)["lam"] for _, _, cell in cells("fedpurel/lambda")}
    assert 0.9 in lambdas
    assert len(lambdas) == 7
    splits = {name.rpartition("/")[2]: cell.experiment.partition for name, _, cell in cells("fedpurel/heterogeneity")}
    dealt = {name: (split.test_split, split.balance) for name, split in splits.items() if split.kind == "dirichlet"}  # type: ignore[attr-defined]
    assert dealt == {
        "imagenet-lt": ("even", False), "places-lt": ("own", False),
        **dict.fromkeys((*TEMPLATES, "stanford-dogs-lt"), ("same", True)),
    }  # fmt: skip
