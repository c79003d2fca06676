"""The numbers of FedPuReL, each with its figure or table, and what does not fit together in them.

Hou, Shang, Yang, Yang, Shang, Gao, Zhang, Lu, Fine-Tuning Impairs the Balancedness of Foundation Models in Long-tailed
Personalized Federated Learning, CVPR 2026, arXiv 2605.02247. They are those of its supplement: the main paper could
not be had.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedkeel.papers.claims import Claim, Paper, Setting, Source

ALPHAS = (0.1, 0.5, 1, 5)
Row = tuple[float, float, float, float, float, float, float, float]
"""GM and PM at each alpha"""

_ZERO_SHOT: Row = (64.82, 64.79, 64.82, 64.79, 64.82, 64.79, 64.82, 64.79)
TABLE_7: Mapping[str, Mapping[str, tuple[str, Row]]] = {
    "prompt": {
        "Zero-shot": ("zero-shot:rounds=1", _ZERO_SHOT),
        "PromptFL": ("promptfl", (63.72, 72.18, 65.25, 71.97, 61.98, 70.52, 64.95, 71.38)),
        "PromptFolio": ("promptfolio", (64.32, 72.83, 64.79, 72.19, 64.10, 70.54, 65.68, 71.10)),
        "FedOTP": ("fedotp", (57.27, 70.87, 55.75, 68.28, 58.02, 65.23, 54.88, 65.77)),
        "FedPGP": ("fedpgp", (61.66, 73.10, 62.12, 72.56, 62.96, 67.83, 63.41, 70.41)),
        "PromptFolio + Fed-GraB": (
            "promptfolio:balance=grab", (64.97, 75.13, 65.43, 73.26, 65.14, 71.79, 66.23, 72.18),
        ),
        "FedPuReL": ("fedpurel:peft=prompt", (68.88, 77.72, 69.05, 74.97, 69.77, 73.37, 70.54, 73.71)),
    },
    "lora": {
        "CLIPLoRA": ("clip-lora", (74.83, 78.53, 75.50, 78.75, 75.02, 77.80, 76.12, 79.12)),
        "FedSA-LoRA": ("fedsa-clip-lora", (73.53, 80.47, 73.41, 79.16, 74.48, 81.68, 73.03, 76.91)),
        "CLIPLoRA + Fed-GraB": ("clip-lora:balance=grab", (75.30, 79.12, 76.43, 78.97, 76.35, 77.91, 77.31, 79.62)),
        "FedPuReL": ("fedpurel:peft=lora", (76.71, 81.76, 76.74, 80.29, 77.56, 84.62, 78.20, 80.27)),
    },
    "adapter": {
        "FedClip": ("fedclip", (63.92, 68.02, 64.54, 68.64, 64.09, 66.87, 64.35, 68.19)),
        "FedClip + Fed-GraB": ("fedclip:balance=grab", (64.69, 68.18, 65.72, 68.98, 65.40, 67.20, 66.02, 68.49)),
        "FedPuReL": ("fedpurel:peft=adapter", (66.58, 68.98, 66.83, 69.38, 67.54, 68.42, 67.81, 69.05)),
    },
}  # fmt: skip
TABLE_6 = {"kl": (67.92, 71.62, 25.03, 27.84), "tkl": (69.77, 73.37, 27.87, 30.02)}
"""GM and PM, then their balancedness, at alpha 1."""


CIFAR100 = ("cifar100", "uoft-cs/cifar100")
"""What it is called as it is downloaded, and on the hub."""


def _where(alpha: float) -> dict[str, object]:
    """Whatever the split is called: at the paper's scale it is Pachinko allocation, on a laptop a Dirichlet one.

    The paper's other datasets have no numbers that a run could be set beside.
    """
    return {"partition.alpha": alpha, "dataset": ("newsgroups20", *CIFAR100)}


_ANALYSED = {
    "promptfl": "PromptFL", "promptfolio": "PromptFolio", "fedpurel:peft=prompt": "FedPuReL, prompt",
    "clip-lora": "CLIPLoRA", "fedpurel:peft=lora": "FedPuReL, LoRA",
    "fedclip": "FedClip", "fedpurel:peft=adapter": "FedPuReL, adapter",
}  # fmt: skip


def _table_7(family: str) -> tuple[Claim, ...]:
    """Alpha by alpha, first all of GM and then all of PM."""
    return tuple(
        Claim(metric, row[2 * place + k], method=method, partitions=(), where=_where(alpha),
              setting=f"α = {alpha:g}", called=called)
        for k, metric in enumerate(("gm", "pm"))
        for place, alpha in enumerate(ALPHAS)
        for called, (method, row) in TABLE_7[family].items()
    )  # fmt: skip


_MEASURES = (
    "GM: the global model on the whole, balanced test set. PM: each personal model on the test rows of its own client, "
    "mean over the clients, each counted once. The released script reports the mean over the last ten rounds; "
    "ours are of the finished models."
)
_SAME = (
    "Zero-shot's PM is 64.79 at every alpha, although clients' test rows change with it: it cannot be measured as the "
    "other rows are."
)
_LAPTOP = "At a laptop's scale the data and the encoder are stand-ins: compare the order of the rows, not the numbers."
_SPLIT = (
    "The text calls alpha the parameter of a Dirichlet split. The released code deals CIFAR-100-LT out by Pachinko "
    "allocation over its superclasses, training and test rows together; so do we at the paper's scale."
)
_BASELINES = (
    "What a personal model is of a method that has none (PromptFL, CLIPLoRA, FedClip) is not said: ours is the shared "
    "module after more passes over the client's own rows (our choice). How Fed-GraB was combined with them is not said "
    "either: ours scales the gradient at the logits, class by class."
)
_CODE = (
    "The released code differs from the paper: lambda is 0.99 (paper: 0.9), both phases run in every round (Algorithm "
    "1: one after the other), projection is tensor by tensor (Algorithm 1 reads as one vector), and the adapter is "
    "aligned by soft cross-entropy instead of TKL, with the fusion loss only. Ours follow the paper, with projection "
    "tensor by tensor; schedule, project and lam are settings."
)
_NOT_MONOTONE = "FedPuReL's PM with LoRA is not monotone in alpha: 84.62 at 1, and about 80.3 on both sides of it."
_NO_NUMBERS = "The figure has no printed numbers; ours are drawn with the runs below."
_NOTES = {
    "prompt": (_MEASURES, _SAME, _SPLIT, _BASELINES, _CODE, _LAPTOP),
    "lora": (_NOT_MONOTONE, "The paper tunes q, k and v of all blocks of the image tower.", _LAPTOP),
    "adapter": ("The gains are the smallest of the three families: 0.4 to 1.2 points of PM.", _LAPTOP),
}

RECIPES: dict[str, tuple[Source, ...]] = {
    "fedpurel/heterogeneity": tuple(
        Source(f"Table 7, {words}", "Accuracy by heterogeneity", _table_7(family), _NOTES[family], wide=True)
        for family, words in (("prompt", "prompt-based"), ("lora", "LoRA-based"), ("adapter", "adapter-based"))
    ),
    "fedpurel/tkl": (
        Source(
            "Table 6",
            "Purified with KL or with TKL",
            tuple(
                Claim(
                    metric,
                    row[k],
                    method=f"fedpurel:peft=prompt:alignment={kind}",
                    partitions=(),
                    where=_where(1),
                    called=kind.upper(),
                )
                for k, metric in enumerate(("gm", "pm", "gm_balance", "pm_balance"))
                for kind, row in TABLE_6.items()
            ),
            (
                "The table does not say of which PEFT and alpha it is: TKL's accuracies are those of Table 7 with a "
                "prompt at alpha 1.",
                "Balancedness is 1/C² times the sum of exp(-10 |a_i - a_j|) over all pairs of class accuracies: our "
                "reading, since the definition is in the part of the paper that could not be had. Ours can be compared "
                "with each other; with the paper's only as far as that reading is right.",
                _MEASURES,
                _LAPTOP,
            ),
            wide=True,
        ),
        Source(
            "Section D",
            "TKL and KL of plain prompt tuning, on balanced data and on a long tail",
            tuple(
                Claim(
                    metric,
                    None,
                    method="promptfl",
                    partitions=(),
                    where={**_where(1), "shift.long_tail": tail},
                    setting=words,
                    printed="large" if (metric, tail) == ("kl", 1.0) else "",
                )
                for metric in ("kl", "tkl")
                for words, tail in (("balanced", 1.0), ("long tail", 100.0))
            ),
            (
                "Figure 6 of the main paper, which could not be had. The supplement says of it that KL shows large "
                "values even on balanced data due to confidence shifts, and that TKL tells balanced adaptation from "
                "biased divergence; no numbers are given.",
                "Ours: divergence of zero-shot from the global model after the last round, mean over the test rows. "
                "The balanced data have as many rows as the long tail (our choice), so that clients take as many "
                "steps.",
            ),
            wide=True,
        ),
    ),
    "fedpurel/lambda": (
        Source(
            "Figure 8",
            "The weight of the personal loss, by class frequency",
            (),
            (
                f"{_NO_NUMBERS} The paper finds lambda 0.9 best overall and on tail classes, moderate values best on "
                "head and mid classes, and head classes hardly moved by it.",
                "Which model the figure is of is not said: lambda acts on the personal one only, so ours is that.",
                "The released code has 0.99 as its default, the paper 0.9.",
            ),
        ),
    ),
    "fedpurel/convergence": (
        Source(
            "Figure 9",
            "Accuracy over the rounds, of all classes and of rare ones",
            (),
            (
                f"{_NO_NUMBERS} The paper finds FedPuReL stable throughout, and baselines fluctuating, with a tail "
                "that degrades.",
                "Personal models have a curve only where they are trained in every round: these runs have the schedule "
                "of the released code (interleaved), not that of Algorithm 1.",
            ),
        ),
    ),
    "fedpurel/angles": (
        Source(
            "Figure 7",
            "The angle between the gradients of task and alignment",
            (),
            (
                f"{_NO_NUMBERS} The paper finds about 90° for baselines and more than that for FedPuReL throughout; "
                'its text has lost a sign and says "obtuse angles (90°)".',
                "Ours is measured before projection, by all shared tensors as one vector, with TKL for all methods.",
            ),
        ),
        Source(
            "Section E",
            "Distance from zero-shot and client drift",
            tuple(
                Claim(metric, None, method=method, partitions=(), where=_where(1), called=called)
                for metric in ("tkl", "client_drift")
                for method, called in _ANALYSED.items()
            ),
            (
                "The supplement says that FedPuReL reduces distributional divergence and client drift (Analyses 2 and"
                " 3 of the main paper, which could not be had) and gives no numbers.",
                "Client drift, our reading: the deviation of the clients' steps on the shared module from their mean,"
                " in lengths of that, on one batch of each of ten clients, mean over the rounds. A step is the "
                "gradient that the method steps along, after projection where there is one.",
            ),
            wide=True,
        ),
    ),
    "fedpurel/branches": (
        Source(
            "Figure 5b",
            "Which branch right answers are due to, by class frequency",
            (),
            (
                f"{_NO_NUMBERS} The text: from head to tail the personal branch's share grows, and on tail classes the "
                "global branch keeps 20 to 25 %.",
                "A right answer is put down to the branch with the higher logit of the true class, so a branch that is "
                "more confident gets more, whether it decided or not.",
            ),
        ),
    ),
}

_METHODS = ("fedpurel", "promptfl", "promptfolio", "fedotp", "fedpgp", "clip-lora", "fedsa-clip-lora", "fedclip")
PAPER = Paper(
    "Fine-Tuning Impairs the Balancedness of Foundation Models in Long-tailed Personalized Federated Learning",
    "Hou, Shang, Yang, Yang, Shang, Gao, Zhang, Lu",
    "CVPR 2026, arXiv 2605.02247",
    "The paper gives no ± for these numbers.",
    {
        "Supplement D": (Setting("fedpurel", "lambda", "0.9", "method.lam"),),
        "Released code": tuple(
            Setting(method, words, value, key)
            for method in _METHODS
            for words, value, key in (
                ("Encoder", "CLIP ViT-B/16", "data.encoder"),
                ("Imbalance factor", "100", "shift.long_tail"),
                ("Clients", "20", "partition.clients"),
                ("Participation", "0.4", "method.participation"),
                ("Rounds", "100", "method.rounds"),
                ("Local epochs", "1", "method.epochs"),
                ("Batch size", "32", "method.batch"),
                ("Learning rate", "0.001", "method.lr"),
            )
            if method == "fedpurel" or key in ("method.rounds", "method.lr")
        ),
    },
)
