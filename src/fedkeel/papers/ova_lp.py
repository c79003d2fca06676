"""The numbers of OvA-LP, each with its figure or table, and what does not fit together in them.

Park, Yeo, Lee, OvA-LP: A Simple and Efficient Framework for Federated Learning on Non-IID Data, arXiv 2511.05028.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedkeel.papers.claims import Averaged, Claim, Paper, Setting, Source

IID = ("iid",)
NON_IID = ("shard-1", "shard-2", "bernoulli-dirichlet")
"""What the paper's "Non-IID" is a mean over (Section 4.1)."""
DIRICHLET = ("bernoulli-dirichlet",)
SYMMETRIC_CE = "symmetric-ce:alpha=6:beta=0.1"
SOFTMAX, ONE_STAGE, OVA_LP, FFT_MOE, PFPT = "fedavg", "ova-lp:stages=1", "ova-lp", "fft-moe", "pfpt"
CIFAR100, TINY = ("cifar100", "uoft-cs/cifar100"), ("tinyimagenet", "zh-plus/tiny-imagenet")
"""What these datasets are called: as they are downloaded, and on the hub."""

Spread = tuple[float, float | None]
Rows = Mapping[tuple[str, tuple[str, ...]], tuple[Spread, ...]]


def _claims(metrics: tuple[str, ...], rows: Rows) -> tuple[Claim, ...]:
    """A table whose rows are (method, partitions) and whose columns are metrics, column by column."""
    return tuple(
        Claim(metric, *row[column], method=method, partitions=partitions)
        for column, metric in enumerate(metrics)
        for (method, partitions), row in rows.items()
    )


_FIGURE_3 = tuple(
    Claim("retained", value, method=method, partitions=NON_IID)
    for method, value in ((SOFTMAX, 56.3), (ONE_STAGE, 95.4), (OVA_LP, 95.9))
)
_FIGURE_4 = tuple(
    Claim("retained", value, method=method, partitions=NON_IID) for method, value in ((FFT_MOE, 10.1), (PFPT, 34.5))
)
_PARTS = (SOFTMAX, ONE_STAGE, OVA_LP)
_MARKS = {SOFTMAX: ("×", "×"), ONE_STAGE: ("✓", "×"), OVA_LP: ("✓", "✓")}
_TABLE_1 = tuple(
    Claim(
        metric, None, method=method, partitions=partitions, printed=_MARKS[method][k] if partitions == NON_IID else ""
    )
    for k, metric in enumerate(("bias", "deviation"))
    for method in _PARTS
    for partitions in (IID, NON_IID)
)
_TABLE_3: Rows = {
    (SOFTMAX, IID): ((90.13, 0.04), (1, 0), (0.03, 0.00), (0.39, 0.00)),
    (SOFTMAX, NON_IID): ((53.70, 6.79), (27, 9), (0.73, 0.23), (10.71, 3.37)),
    (ONE_STAGE, IID): ((90.03, 0.08), (2, 0), (0.05, 0.00), (0.78, 0.00)),
    (ONE_STAGE, NON_IID): ((85.89, 1.11), (15, 3), (0.37, 0.07), (5.72, 1.02)),
    (OVA_LP, IID): ((90.04, 0.12), (3, 0), (0.05, 0.00), (1.18, 0.00)),
    (OVA_LP, NON_IID): ((86.34, 0.73), (1, 0), (0.02, 0.00), (0.42, 0.10)),
}
_TABLE_4: Rows = {
    (SOFTMAX, IID): ((23.18, 0.17), (2.64, 0.04), (401.20, None), (39.18, None)),
    (SOFTMAX, NON_IID): ((23.78, 0.60), (2.97, 0.11), (401.20, None), (39.18, None)),
    (ONE_STAGE, IID): ((21.67, 0.21), (2.69, 0.06), (401.20, None), (39.18, None)),
    (ONE_STAGE, NON_IID): ((22.27, 0.48), (2.99, 0.03), (401.20, None), (39.18, None)),
    (OVA_LP, IID): ((14.15, 0.22), (1.90, 0.04), (401.20, None), (39.18, None)),
    (OVA_LP, NON_IID): ((14.86, 0.51), (1.91, 0.06), (401.20, None), (39.18, None)),
}
_TABLE_5: Rows = {
    (FFT_MOE, IID): ((96.39, 0.41), (21, 0), (34.58, 0.70), (3.67, 0.08)),
    (FFT_MOE, NON_IID): ((9.83, 7.96), (37, 13), (61.00, 21.59), (6.48, 2.32)),
    (PFPT, IID): ((80.27, 0.41), (13, 1), (432.75, 32.45), (0.22, 0.02)),
    (PFPT, NON_IID): ((33.17, 15.30), (44, 6), (1437.00, 182.03), (0.74, 0.09)),
    (OVA_LP, IID): ((90.04, 0.12), (3, 0), (0.05, 0.00), (0.11, 0.00)),
    (OVA_LP, NON_IID): ((86.34, 0.73), (1, 0), (0.02, 0.00), (0.04, 0.01)),
}
_TABLE_6: Rows = {
    (FFT_MOE, IID): ((1560.27, 10.38), (94.76, 0.42), (1.7703, None), (177.03, None)),
    (FFT_MOE, NON_IID): ((1555.74, 18.46), (95.49, 1.28), (1.7703, None), (177.03, None)),
    (PFPT, IID): ((1860.98, 10.01), (30941.43, 387.65), (1.729, None), (17.29, None)),
    (PFPT, NON_IID): ((1855.49, 39.89), (31002.22, 239.84), (1.729, None), (17.29, None)),
    (OVA_LP, IID): ((14.16, 0.22), (1.90, 0.04), (0.3918, None), (39.18, None)),
    (OVA_LP, NON_IID): ((14.86, 0.51), (1.91, 0.06), (0.3918, None), (39.18, None)),
}
_FIGURE_5 = {
    "shard-1": 96.1, "shard-2": 96.7, "bernoulli-dirichlet": 94.9, "zipf": 97.7, "feature-clusters": 99.7,
}  # fmt: skip
_FIGURE_6 = {
    ("ViT-B/16", "hf:google/vit-base-patch16-224"): (92.9, 93.9),
    ("ViT-L/16", "hf:google/vit-large-patch16-224"): (97.4, 97.3),
    ("DINOv2-L/14", "hf:facebook/dinov2-large"): (98.1, 96.7),
}
_FIGURE_9 = {0.1: 91.4, 0.4: 96.8, 0.7: 97.5, 1.0: 97.7}
_FIGURE_2 = {
    "alignment": ((1.366, 0.006), (1.761, 0.008)),
    "intra": ((0.818, 0.002), (0.917, 0.004)),
    "inter": ((0.840, 0.004), (0.487, 0.008)),
    "ratio": ((0.974, 0.007), (1.885, 0.038)),
}
# Accuracy at the lowest noise, then the decline at the higher ones.
_SYMMETRIC, _ASYMMETRIC = (0.3, 0.4, 0.5, 0.6, 0.7), (0.2, 0.3, 0.4)
_TABLE_2 = {
    "fedavg": ((16.75, 15.70, 23.70, 37.49, 51.46), (18.85, 13.37, 30.93)),
    SYMMETRIC_CE: ((16.99, 17.77, 25.66, 40.79, 49.79), (26.14, 17.71, 36.34)),
    "co-teaching": ((34.21, 8.68, 36.07, 51.04, 66.99), (34.19, 20.10, 33.23)),
    "fedcorr": ((32.15, 13.50, 26.59, 41.65, 62.64), (41.12, 13.47, 30.81)),
    "fednoro": ((38.58, 9.46, 19.57, 35.38, 43.36), (45.42, 9.82, 26.97)),
    "fedltf, stage 2": ((55.23, 3.73, 8.73, 12.18, 21.24), (52.63, 10.94, 26.51)),
    "fedltf": ((58.43, 3.70, 9.24, 14.65, 20.91), (57.78, 8.71, 24.80)),
    "ova-lp": ((88.78, 0.76, 2.35, 4.52, 10.35), (89.28, 0.63, 1.53)),
}


def _noise(kind: str, ratios: tuple[float, ...], column: int) -> tuple[Claim, ...]:
    claims = []
    for place, ratio in enumerate(ratios):
        where = {"shift.noise": kind, "shift.noise_ratio": ratio}
        against = {"shift.noise_ratio": ratios[0]} if place else {}
        metric, setting = "decline" if place else "accuracy", f"{kind} noise {ratio:.2f}"
        for name, row in _TABLE_2.items():
            probe = name == "fedltf, stage 2"  # its linear probe is our softmax head
            claim = Claim(metric, row[column][place], method=SOFTMAX if probe else name, partitions=IID,
                          where=where | ({"method.tune": "head"} if probe else {}), setting=setting,
                          against=against, called=name.partition(":")[0])  # fmt: skip
            claims.append(claim)
    return tuple(claims)


_NO_NUMBERS = "The figure has no printed numbers but those of the tables; ours are drawn."
_SWAPPED = (
    "The abstract and the introduction swap the two baselines: FFT-MoE keeps 10.1 % and PFPT 34.5 %, as Figure 4 and "
    "Table 1 have it (and 9.83 / 96.39 = 10.2 %)."
)
_RATIOS = (
    "R(50) and the accuracies do not fit together everywhere: 85.89 / 90.03 = 95.4 and 86.34 / 90.04 = 95.9 do, but "
    "LP-softmax's 53.70 / 90.13 is 59.6 where 56.3 is reported, and PFPT's 33.17 / 80.27 is 41.3, reported is 34.5."
)
_THREE_VALUES = (
    "The paper has three values for OvA-LP with ViT-L/16 on this Dirichlet split of CIFAR-100: R(50) is 94.9 in "
    "Figure 5, 97.4 in Figure 6 and 97.7 in Figure 9 at participation 1.0."
)

RECIPES: dict[str, tuple[Source, ...]] = {
    "ova-lp/ablation": (
        Source(
            "Figure 3 and Table 1",
            "What each part of OvA-LP adds: R(50)",
            _FIGURE_3,
            (_RATIOS,),
            by="method",
            averaged=Averaged("retained", _PARTS, NON_IID),
        ),
        Source(
            "Table 1",
            "What is left of label bias and of variance",
            _TABLE_1,
            (
                "✓ removed, △ partially, × not: the paper has marks and no numbers. Ours are measured at the heads, "
                "mean over the rounds (run.drift). Bias: how far a typical client's gradient is off the common one, in "
                "lengths of that, less what all classes share. Variance: the deviation of the averaged gradient with "
                "one row per client, in lengths of the common gradient.",
                "The common gradient shortens while heads converge, which lengthens both: compare heads, not splits.",
                "Feature bias, △ for all three, is not measured: all have the same encoder.",
            ),
            wide=True,
        ),
        Source(
            "Figure 7",
            "Accuracy with IID clients, and averaged over the non-IID splits",
            (),
            (_NO_NUMBERS,),
            averaged=Averaged("accuracy", _PARTS, NON_IID),
        ),
        Source(
            "Table 3",
            "Final performance, and what it takes until Acc@95",
            _claims(("accuracy", "acc95", "seconds_until", "client_mb_until"), _TABLE_3),
            (
                "Acc@95 is relative to the run's own final accuracy. Total time is rounds × (client + server), as "
                "clients work side by side; total communication is rounds × the uplink of one client (1 MB = 1024 KB).",
                'The text speaks of "a slight increase in communication due to additional heads": the payload per '
                "round is the same for all three heads; the IID total is larger because it takes 3 rounds.",
            ),
        ),
        Source(
            "Table 4",
            "Cost of one round",
            _claims(("client_ms", "server_ms", "client_kb", "server_mb"), _TABLE_4),
            (
                "Communication is the uplink: 401.20 KB is 1024 × 100 numbers of 4 bytes and about 1 KB around them.",
                "Times are those of the machine: the paper does not name its own.",
            ),
        ),
    ),
    "ova-lp/baselines": (
        Source(
            "Figure 4 and Table 1",
            "OvA-LP, its parts and two baselines: R(50)",
            _FIGURE_4 + _FIGURE_3,
            (_SWAPPED, _RATIOS),
            by="method",
            averaged=Averaged("retained", (FFT_MOE, PFPT, *_PARTS), NON_IID),
        ),
        Source(
            "Figure 8",
            "Accuracy with IID clients, and averaged over the non-IID splits",
            (),
            (_NO_NUMBERS,),
            averaged=Averaged("accuracy", (FFT_MOE, PFPT, OVA_LP), NON_IID),
        ),
        Source(
            "Table 5",
            "Final performance, and what it takes until Acc@95",
            _claims(("accuracy", "acc95", "seconds_until", "server_gb_until"), _TABLE_5),
            (
                "FFT-MoE's 96.39 % on CIFAR-100 with ViT-B/16 is implausibly high: treat it as unverified.",
                "PFPT's Acc@95 is that of accuracies of 33 %: relative to its own final accuracy, as for all methods.",
                'The text\'s "10^2 – 10^4 reductions in time and communication" holds for time only: communication '
                "until Acc@95 falls by 2 to 160 times.",
            ),
        ),
        Source(
            "Table 6",
            "Cost of one round",
            _claims(("client_ms", "server_ms", "client_mb", "server_mb"), _TABLE_6),
            (
                'PFPT "despite using less communication": less per round at the server (17.29 against 39.18 MB, ten '
                "of 100 clients take part), more in all (Table 5).",
            ),
        ),
    ),
    "ova-lp/partitions": (
        Source(
            "Figure 5",
            "OvA-LP on five splits: R(50)",
            tuple(Claim("retained", value, method=OVA_LP, partitions=(name,)) for name, value in _FIGURE_5.items()),
            (_THREE_VALUES,),
            by="partition",
        ),
    ),
    "ova-lp/encoders": (
        Source(
            "Figure 6",
            "OvA-LP with other encoders and data: R(50) on the Dirichlet split",
            tuple(
                Claim("retained", values[k], method=OVA_LP, partitions=DIRICHLET, setting=f"{words} on {data}",
                      where={"data.encoder": encoder, "dataset": names})
                for k, (data, names) in enumerate((("CIFAR-100", CIFAR100), ("TinyImageNet", TINY)))
                for (words, encoder), values in _FIGURE_6.items()
            ),
            (
                _THREE_VALUES,
                "The paper does not say how its ViT encoders were pre-trained: google/vit-*-patch16-224 (ImageNet-21k, "
                "then ImageNet-1k) is our choice.",
            ),
            by="data.encoder",
        ),
    ),
    "ova-lp/noise": (
        Source(
            "Table 2",
            "Label noise: accuracy at the lowest noise, and the decline from there",
            _noise("symmetric", _SYMMETRIC, 0) + _noise("asymmetric", _ASYMMETRIC, 1),
            (
                "The first number of each block is the accuracy at the lowest noise (0.30 symmetric, 0.20 asymmetric), "
                "not with clean labels; the others are relative declines from it, 100 × (reference – accuracy) / "
                "reference.",
                "All rows but OvA-LP's were copied by the paper from FedLTF, whose networks are ResNet-18 trained "
                "without pre-trained weights. Where ours share the frozen encoder, the accuracies of the baselines are "
                "not comparable with the paper's; those of whole networks are, as far as they go (the paper scale).",
                "The paper does not name its split: clients are IID here, as FedLTF's are. FedLTF's stage 2 is a "
                "linear probe, which on a frozen encoder is the softmax head of fedavg; fedltf is its stage 3.",
            ),
        ),
    ),
    "ova-lp/participation": (
        Source(
            "Figure 9",
            "OvA-LP where a share of the clients takes part: R(50)",
            tuple(
                Claim("retained", value, method=OVA_LP, partitions=DIRICHLET,
                      where={"method.participation": share}, setting=f"participation {share}")
                for share, value in _FIGURE_9.items()
            ),
            (
                "The paper does not say whether its IID reference is sampled too: R compares with the IID run in which "
                "all clients take part (our choice).",
                _THREE_VALUES,
                'Section 5 says that "all experiments assume full client participation": this figure is the exception.',
            ),
            by="method.participation",
        ),
    ),
    "ova-lp/geometry": (
        Source(
            "Figure 2",
            "Feature geometry, CIFAR-10 with ViT-L/16, pretrained and with random weights",
            tuple(
                Claim(metric, *values[k], method=OVA_LP, partitions=IID, where={"pretrained": pretrained},
                      setting="pretrained" if pretrained else "random weights")
                for name, values in _FIGURE_2.items()
                for metric in ((name,) if name == "alignment" else (f"{name}_distance", name))
                for k, pretrained in enumerate((True, False))
            ),
            (
                "The printed definitions (squared distances) cannot give the printed numbers on features of unit "
                "length: alignment would be twice intra. They fit if intra and inter are plain distances, alignment is "
                "squared and features are centred and of unit length. Both readings are set beside them.",
            ),
        ),
    ),
}  # fmt: skip

SETTINGS = {
    "Section 4.1": tuple(
        Setting("ova-lp", words, value, key)
        for words, value, key in (
            ("Encoder", "ViT-L/16", "data.encoder"),
            ("Clients", "100", "partition.clients"),
            ("Participation", "1", "method.participation"),
            ("Rounds", "50", "method.rounds"),
            ("Local epochs", "3", "method.epochs"),
            ("Batch size", "50", "method.batch"),
            ("Optimizer", "adamw", "method.optimizer"),
            ("Learning rate", "0.01", "method.lr"),
            ("Weight decay", "0.0001", "method.weight_decay"),
        )
    ),
    "Table 8": tuple(
        Setting(method, words, value, key)
        for words, key, *values in (
            ("Encoder", "data.encoder", "ViT-B/32", "ViT-B/16"),
            ("Participation", "method.participation", "0.1", "1"),
            ("Rounds", "method.rounds", "50", "50"),
            ("Local epochs", "method.epochs", "5", "1"),
            ("Batch size", "method.batch", "16", "128"),
            ("Learning rate", "method.lr", "0.0001", "0.0003"),
        )
        for method, value in zip((PFPT, FFT_MOE), values, strict=True)
    ),
}
PAPER = Paper(
    "OvA-LP: A Simple and Efficient Framework for Federated Learning on Non-IID Data",
    "Park, Yeo, Lee",
    "arXiv 2511.05028",
    "The paper does not say what its own ± is taken over.",
    SETTINGS,
)
