"""The numbers of LP-FT, each with its figure or table, and what does not fit together in them.

Chen, Ghoukasian, Jin, Wang, Karimireddy, Li, A Closer Look at Personalized Fine-Tuning in Heterogeneous Federated
Learning, arXiv 2511.12695.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedkeel.papers.claims import Claim, Paper, Setting, Source

METRICS = ("local", "global_incl", "c_std", "worst", "average_lgw")
"""The columns of Tables 2 and 3, by what they hold: see ``reporting.personal_numbers``."""
THREE = ("local", "global_incl", "average_lgw")
"""Those of Tables 4, 7 and 8."""
Row = tuple[float | tuple[float, float], ...]
Rows = Mapping[str, Row]


@dataclass(frozen=True)
class Federation:
    """One of the paper's datasets, and the runs that stand beside it: the split, and any of the datasets."""

    partition: str | None
    """None: whatever it is called at either scale"""
    datasets: tuple[str, ...]
    """by name; that of a laptop first, where it has one"""


FEDERATIONS = {
    "Digit5": Federation("column", ("digits5", "digit5")),
    "CIFAR10-C": Federation(None, ("cifar10", "cifar10-c")),
    "CelebA": Federation("spurious", ("coloured-digits", "celeba", "flwrlabs/celeba")),
    "CheXpert": Federation("spurious", ("chexpert",)),
    "CIFAR100-C": Federation(None, ("cifar100", "cifar100-c", "uoft-cs/cifar100")),
    "DomainNet": Federation("column", ("domainnet",)),
}

_TABLE_2: dict[str, Rows] = {
    "CIFAR10-C": {
        "ft": ((54.50, 0.64), (44.16, 0.13), (10.04, 0.06), (19.83, 0.18), (39.50, 0.33)),
        "proximal-ft": ((61.76, 0.13), (53.58, 0.14), (11.61, 0.08), (25.82, 0.12), (47.05, 0.07)),
        "soup-ft": ((56.36, 0.23), (44.94, 0.06), (10.22, 0.06), (20.47, 0.35), (40.59, 0.09)),
        "sparse-ft": ((61.31, 0.01), (50.21, 0.17), (11.10, 0.11), (24.56, 0.09), (45.36, 0.04)),
        "lss-ft": ((56.21, 0.33), (46.81, 0.04), (10.05, 0.08), (21.61, 0.37), (43.67, 0.08)),
        "lp-ft": ((63.55, 0.04), (55.35, 0.01), (12.45, 0.01), (26.33, 0.06), (48.41, 0.03)),
    },
    "CIFAR100-C": {
        "ft": ((20.05, 0.05), (14.45, 0.04), (5.37, 0.02), (3.37, 0.06), (12.62, 0.03)),
        "proximal-ft": ((27.38, 0.15), (19.96, 0.11), (6.90, 0.04), (4.84, 0.04), (17.41, 0.05)),
        "soup-ft": ((20.99, 0.24), (14.81, 0.04), (5.48, 0.03), (3.56, 0.01), (13.12, 0.06)),
        "sparse-ft": ((28.93, 0.04), (20.66, 0.02), (7.75, 0.02), (5.05, 0.09), (18.15, 0.10)),
        "lss-ft": ((20.54, 0.19), (15.42, 0.03), (5.32, 0.03), (3.62, 0.01), (14.22, 0.06)),
        "lp-ft": ((32.60, 0.14), (25.44, 0.10), (9.66, 0.04), (5.92, 0.06), (21.32, 0.04)),
    },
    "Digit5": {
        "ft": ((91.17, 0.90), (67.87, 0.74), (22.93, 0.28), (42.03, 0.48), (67.02, 0.70)),
        "proximal-ft": ((92.09, 0.18), (81.40, 0.03), (15.04, 0.15), (61.71, 0.16), (78.40, 0.09)),
        "soup-ft": ((91.82, 0.34), (70.82, 0.43), (21.99, 0.67), (45.10, 1.27), (69.02, 0.65)),
        "sparse-ft": ((91.43, 0.31), (76.89, 0.72), (17.90, 0.38), (54.21, 0.56), (74.21, 0.35)),
        "lss-ft": ((91.59, 0.28), (73.13, 0.30), (22.04, 0.53), (45.32, 1.13), (71.15, 0.53)),
        "lp-ft": ((91.20, 0.04), (82.78, 0.05), (13.75, 0.02), (65.80, 0.02), (79.92, 0.02)),
    },
    "DomainNet": {
        "ft": ((64.90, 1.18), (42.48, 0.58), (17.49, 0.75), (22.31, 0.93), (43.23, 0.52)),
        "proximal-ft": ((67.20, 1.39), (56.05, 0.27), (16.68, 0.36), (33.20, 1.79), (52.60, 0.35)),
        "soup-ft": ((67.48, 0.61), (44.27, 0.46), (18.44, 0.42), (23.73, 1.24), (44.49, 0.54)),
        "sparse-ft": ((69.62, 0.53), (50.24, 0.44), (18.14, 0.17), (27.89, 0.15), (49.14, 0.45)),
        "lss-ft": ((66.37, 0.53), (45.34, 0.40), (18.02, 0.38), (22.63, 1.05), (45.75, 0.42)),
        "lp-ft": ((68.50, 0.19), (57.52, 0.20), (17.36, 0.21), (34.53, 0.44), (53.52, 0.19)),
    },
    "CheXpert": {
        "ft": ((76.18, 0.41), (76.25, 0.56), (0.35, 0.13), (76.31, 0.76), (76.25, 0.44)),
        "proximal-ft": ((76.44, 0.07), (76.63, 0.09), (0.71, 0.09), (76.81, 0.07), (76.63, 0.07)),
        "soup-ft": ((77.51, 0.15), (77.49, 0.31), (0.48, 0.07), (77.46, 0.43), (77.49, 0.26)),
        "sparse-ft": ((77.29, 0.13), (77.20, 0.14), (0.31, 0.11), (77.11, 0.25), (77.20, 0.14)),
        "lss-ft": ((77.49, 0.14), (77.51, 0.28), (0.52, 0.08), (77.53, 0.37), (77.52, 0.24)),
        "lp-ft": ((77.64, 0.37), (77.54, 0.37), (0.53, 0.41), (77.43, 0.71), (77.54, 0.37)),
    },
    "CelebA": {
        "ft": ((90.55, 1.20), (73.76, 2.15), (18.79, 3.64), (53.52, 5.51), (72.39, 2.84)),
        "proximal-ft": ((93.74, 0.59), (81.11, 0.82), (13.39, 1.14), (67.50, 2.10), (80.78, 0.90)),
        "soup-ft": ((89.42, 2.16), (75.28, 1.11), (16.29, 1.19), (57.79, 2.90), (74.17, 1.50)),
        "sparse-ft": ((91.43, 0.48), (77.32, 1.46), (14.16, 2.57), (62.94, 4.34), (77.65, 1.65)),
        "lss-ft": ((89.17, 2.05), (77.35, 1.03), (16.23, 1.28), (59.64, 2.86), (76.74, 1.46)),
        "lp-ft": ((93.24, 0.17), (83.32, 0.31), (11.18, 0.14), (71.89, 0.75), (82.82, 0.64)),
    },
}
_TABLE_3: Rows = {
    "ft": ((87.20, 0.24), (16.67, 0.14), (26.81, 1.47), (0.01, 0.00), (34.62, 0.09)),
    "proximal-ft": ((89.80, 1.21), (17.42, 1.46), (27.31, 0.08), (0.01, 0.00), (35.75, 0.09)),
    "soup-ft": ((88.16, 0.15), (16.94, 0.05), (27.07, 0.11), (0.01, 0.00), (35.04, 0.04)),
    "sparse-ft": ((89.16, 0.00), (17.54, 0.14), (27.27, 0.02), (0.01, 0.00), (35.57, 0.04)),
    "lp-ft": ((90.15, 0.43), (17.73, 0.16), (27.37, 0.09), (0.01, 0.00), (35.96, 0.10)),
}
_TABLE_4: dict[float, Rows] = {
    0.2: {"ft": (91.32, 68.76, 67.73), "lp-ft": (91.23, 83.08, 79.83)},
    0.3: {"ft": (91.12, 55.18, 60.04), "lp-ft": (89.20, 72.75, 72.95)},
    0.4: {"ft": (90.84, 53.70, 58.27), "lp-ft": (90.02, 69.89, 71.55)},
    0.5: {"ft": (91.88, 56.17, 60.06), "lp-ft": (90.87, 72.32, 73.26)},
}
_TABLE_7: Rows = {
    "lora-ft:lr=0.001": (41.54, 26.75, 26.87),
    "lora-ft:lr=0.0001": (42.01, 26.41, 27.18),
    "adapter-ft:lr=0.001": (48.35, 39.28, 38.08),
    "adapter-ft:lr=0.0001": (49.07, 39.83, 38.36),
    "lp-ft": (68.50, 57.52, 53.52),
}
_TABLE_8: Rows = {
    "fedbn": (88.68, 61.35, 61.00),
    "per-fedavg": (87.06, 67.26, 66.66),
    "fednova": (88.68, 54.26, 53.41),
    "fedrep": (86.94, 52.99, 52.57),
    "fedsoup": (90.30, 75.62, 75.21),
    "pfedfda": (90.41, 76.56, 76.63),
    "fedl2g": (92.46, 79.27, 78.82),
    "lp-ft": (93.03, 82.46, 82.17),
}


def _claims(
    metrics: tuple[str, ...],
    rows: Rows,
    partition: str | None,
    where: Mapping[str, Any] | None = None,
    setting: str = "",
) -> tuple[Claim, ...]:
    """A table whose rows are strategies and whose columns are metrics, column by column."""
    splits = () if partition is None else (partition,)
    return tuple(
        Claim(metric, *_spread(row[k]), method=method, partitions=splits, where=where or {}, setting=setting)
        for k, metric in enumerate(metrics)
        for method, row in rows.items()
    )  # fmt: skip


def _spread(number: float | tuple[float, float]) -> tuple[float, float | None]:
    return number if isinstance(number, tuple) else (number, None)


_COLUMNS = (
    "The columns are what the table holds, not what the text defines. Global includes the own test set (text: other "
    "clients' only). Worst is each model's lowest accuracy on another client's test set, mean over models (text: the "
    "lowest test accuracy among all clients). C-Std is the deviation of one model over all test sets, mean over models "
    "(text: of the local accuracies). Average is (Local + Global + Worst) / 3 (text: of Local and Global). Reports "
    "hold the printed definitions too, in a table of their own."
)
_AVERAGE = (
    "Of the 41 rows of Tables 2 and 3, 28 have (Local + Global + Worst) / 3 as Average within 0.02. LSS FT is 1.0 to "
    "2.1 above it on all datasets but CheXpert, which no simple formula explains; the other six that differ by more "
    "than 0.1 stay within 0.7."
)
_SPLIT_OF_15 = (
    "Fifteen epochs of fine-tuning; the paper does not say how LP-FT divides them between linear probing and "
    "fine-tuning, nor whether they are the sum: ours are the sum (our choice)."
)
_SOUP = (
    'Soup FT averages five models with "different initializations" (Section 3.2) or "random initializations or data '
    'shuffling" (Appendix B.2): all start at the global model, so ours differ in shuffling only. The "regularization '
    'coefficient 0.001" of Sparse FT is not explained.'
)
_LAPTOP = "At a laptop's scale the data and the network are stand-ins: compare the order of the rows, not the numbers."
_ABOUT: dict[str, tuple[str, ...]] = {
    "Digit5": (_COLUMNS, _AVERAGE, _SPLIT_OF_15, _SOUP, _LAPTOP),
    "CIFAR10-C": (
        "Fifty clients with one kind of corruption each: 19 of CIFAR-10-C, 30 of Mintun et al., one of Chen et al. "
        "Ours have fedkeel's 19 kinds at a laptop's scale, and at the paper's those of the official files.",
        "LP-FT has the best Local, Global and Worst, and the largest C-Std of the six.",
    ),
    "CelebA": (
        "The paper calls CheXpert and CelebA concept shift (Section 3.2) and output-level shift (Appendix C); both "
        "are a spurious correlation that differs between clients.",
        "Table 6 has four clients, one each for male, female, blond and not blond, and names no label. Ours is whether "
        "somebody smiles (our choice): with the label blond two of the four attributes would be the label itself.",
        "Table 8 has other numbers for the same row: LP-FT 93.03, 82.46, 82.17.",
    ),
    "CheXpert": (
        "With two clients Global is (Local + Worst) / 2 in all six rows: it includes the own test set. Worst is above "
        "Local in three of them: it does not.",
    ),
    "CIFAR100-C": ("The same fifty kinds of corruption. LP-FT has the largest C-Std here too.",),
    "DomainNet": (
        'The text says that Sparse FT performs well "especially in Digits5 and DomainNet": on both, Proximal FT has '
        "the higher Global and Average.",
    ),
}

RECIPES: dict[str, tuple[Source, ...]] = {
    "lp-ft/main": tuple(
        Source(
            f"Table 2, {name}",
            "Personal models by strategy",
            _claims(METRICS, _TABLE_2[name], of.partition, {"dataset": of.datasets}, name),
            _ABOUT[name],
            wide=True,
        )
        for name, of in FEDERATIONS.items()
    ),
    "lp-ft/label-shift": (
        Source(
            "Table 3",
            "Label shift: CIFAR-10, Dirichlet(0.1) over 20 clients",
            _claims(METRICS, _TABLE_3, "dirichlet", {"partition.alpha": 0.1}),
            (
                _COLUMNS,
                "Worst is 0.01 in all rows: a model that has seen few classes meets a client that holds others only. "
                'LSS FT was not run. The text calls C-Std "robustness to corruption": no image is corrupted here.',
                _SPLIT_OF_15,
            ),
            wide=True,
        ),
    ),
    "lp-ft/label-flip": (
        Source(
            "Table 4",
            "Labels flipped, differently at each client: Digit5",
            tuple(
                claim
                for ratio, rows in _TABLE_4.items()
                for claim in _claims(THREE, rows, "column", {"shift.flip": ratio}, f"{100 * ratio:.0f} % flipped")
            ),
            (
                "Average fits (Local + Global + Worst) / 3 with a Worst that is not printed (43.1 for FT at 20 %); the "
                "mean of Local and Global would be 80.0 there.",
                "More flipped labels are not always worse: at 50 % Global and Average are above those at 40 %, and at "
                "20 % Global is above that of Table 2 without any flipped labels (67.87 and 82.78).",
            ),
            wide=True,
        ),
    ),
    "lp-ft/peft": (
        Source(
            "Table 7",
            "LoRA and adapters: DomainNet with a vision transformer",
            _claims(THREE, _TABLE_7, "column"),
            (
                "The row of LP-FT is that of Table 2, which is of a ResNet-50: the caption says ViT.",
                'The text grants the PEFT methods "strong local accuracy": in the table their Local is 19 to 27 points '
                "below LP-FT's. Their ranks are not given.",
                _LAPTOP,
            ),
            wide=True,
        ),
    ),
    "lp-ft/pfl": (
        Source(
            "Table 8",
            "Methods that personalise while they train: CelebA",
            _claims(THREE, _TABLE_8, "spurious"),
            (
                "FedNova trains one global model and is no personalised method, though the paper lists it as one; ours "
                "is that model in the place of every personal one. The paper's has the same Local as FedBN to the last "
                "digit (88.68).",
                "LP-FT differs from its row in Table 2: 93.24, 83.32, 82.82 there.",
                "FedL2G never averages models; what its Global is measured with is not said. Ours is the mean of the "
                "personal models over all test sets, as for all rows.",
                _LAPTOP,
            ),
            wide=True,
        ),
    ),
    "lp-ft/overfitting": (
        Source(
            "Figure 2",
            "Local and global accuracy over the epochs of fine-tuning",
            (),
            (
                "The figure has no printed numbers; ours are drawn with the runs below. It sweeps the learning "
                "rate of FT, the sparsity of Sparse FT and the strength of Proximal FT on CIFAR100-C, Digit5 and "
                "CheXpert: global accuracy falls from epoch to epoch while local accuracy rises or stays. Which values "
                "are swept is in the figure only.",
                "Our global accuracy is on all test sets, as in the tables; Section 3.3 defines it on the other "
                "clients' test sets.",
            ),
        ),
    ),
    "lp-ft/distortion": (
        Source(
            "Figure 3",
            "Feature distortion against the loss of global accuracy, and loss flooding",
            (),
            (
                "The figure has no printed numbers; ours are drawn with the runs below. (a) FT distorts features most "
                "and loses most global accuracy, LP-FT least. (b) At the same flooding level (0.1, 0.5, 1.0) LP-FT has "
                "the higher global accuracy.",
                'Distortion is over "all data points across all clients" in the text of Section 3.6; its formula has '
                "client c's own points only, and so do we.",
            ),
        ),
    ),
}

STRATEGIES = tuple(_TABLE_2["Digit5"])
PAPER = Paper(
    "A Closer Look at Personalized Fine-Tuning in Heterogeneous Federated Learning",
    "Chen, Ghoukasian, Jin, Wang, Karimireddy, Li",
    "arXiv 2511.12695",
    "The paper's own ± is the standard deviation over three seeds.",
    {
        "Appendix C.1": tuple(
            Setting("fedavg", words, value, key)
            for words, value, key in (
                ("Network", "ResNet-18 or ResNet-50", "data.encoder"),
                ("Rounds", "100", "method.rounds"),
                ("Local epochs", "1", "method.epochs"),
                ("Batch size", "128", "method.batch"),
                ("Optimizer", "adam", "method.optimizer"),
                ("Learning rate", "0.001", "method.lr"),
            )
        ),
        "Section 3.4": tuple(Setting(name, "Epochs", "15", "method.epochs") for name in STRATEGIES),
        "Appendix B": (
            Setting("proximal-ft", "Proximal coefficient", "0.01", "method.mu"),
            Setting("soup-ft", "Models", "5", "method.models"),
            Setting("lss-ft", "Models", "3", "method.models"),
        ),
    },
)
