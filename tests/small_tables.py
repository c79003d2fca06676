"""Tiny copies of datasets that come with tables, in the official layout."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

from fedkeel.core.rng import generator

FINDINGS = (
    "No Finding", "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion", "Edema", "Consolidation",
    "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion", "Pleural Other", "Fracture", "Support Devices",
)  # fmt: skip
CHEXPERT = "CheXpert-v1.0-small"
CELEBA = (
    "5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose Black_Hair Blond_Hair "
    "Blurry Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses Goatee Gray_Hair Heavy_Makeup High_Cheekbones Male "
    "Mouth_Slightly_Open Mustache Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose Receding_Hairline Rosy_Cheeks "
    "Sideburns Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick Wearing_Necklace "
    "Wearing_Necktie Young"
)
"""The line of names in list_attr_celeba.txt."""


def picture(path: Path, key: int, *bright: bool, size: tuple[int, int] = (16, 16)) -> None:
    """Noise in grey, of which some quarters are bright."""
    width, height = size
    values = generator(key, "picture", path.stem).normal(80, 20, (height, width))
    for quarter, here in enumerate(bright):
        values[: height // 2, quarter * width // 3 : (quarter + 1) * width // 3] += 120 * here
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.clip(values, 0, 255).astype(np.uint8)).save(path)


def xray(patient: int, part: str, sex: str, **findings: str) -> list[str]:
    """A line of train.csv or valid.csv."""
    path = f"{CHEXPERT}/{part}/patient{patient:05d}/study1/view1_frontal.jpg"
    cells = dict.fromkeys(FINDINGS, "") | {name.replace("_", " "): cell for name, cell in findings.items()}
    return [path, sex, "63", "Frontal", "AP", *(cells[name] for name in FINDINGS)]


def chexpert(folder: Path, each: int = 10) -> Path:
    """``folder``/CheXpert-v1.0-small: as many patients of either sex with edema as without any finding.

    In train.csv there are besides two with uncertain edema, one with another finding, one of unknown sex.
    """
    home = folder / CHEXPERT
    for part, count in (("train", each), ("valid", each // 2)):
        rest = {"No Finding": "0.0", "Edema": "0.0"} if part == "valid" else {}
        rows = []
        for number, (sex, finding, _) in enumerate(product(("Male", "Female"), ("Edema", "No Finding"), range(count))):
            rows.append(xray(number + 1, part, sex, **{**rest, finding: "1.0"}))
            picture(folder / rows[-1][0], number, sex == "Male", finding == "Edema")
        if part == "train":
            rows += [xray(9001, part, "Male", Edema="-1.0"), xray(9002, part, "Female", Edema="-1.0")]
            rows += [xray(9003, part, "Male", Fracture="1.0"), xray(9004, part, "Unknown", Edema="1.0")]
            for row in rows[-4:]:
                picture(folder / row[0], 9000)
        header = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *FINDINGS]
        (home / f"{part}.csv").write_text("\n".join(map(",".join, [header, *rows])) + "\n")
    return home


def celeba(folder: Path, each: int = 10) -> Path:
    """``folder``/celeba: as many faces of each sex, blond and not, smiling and not, in the parts 0, 1 and 2."""
    home, lines, parts = folder / "celeba", [], []
    sizes = (each, 2, each // 2)
    groups = product((True, False), repeat=3)
    faces = [(part, group) for group in groups for part, size in enumerate(sizes) for _ in range(size)]
    for number, (part, (male, blond, smiling)) in enumerate(faces, 1):
        says = {"Male": male, "Blond_Hair": blond, "Smiling": smiling, "Black_Hair": not blond and number % 3 > 0}
        lines.append(f"{number:06d}.jpg " + " ".join(" 1" if says.get(name) else "-1" for name in CELEBA.split()))
        parts.append(f"{number:06d}.jpg {part}")
        picture(home / "img_align_celeba" / f"{number:06d}.jpg", number, male, blond, smiling, size=(18, 22))
    (home / "list_attr_celeba.txt").write_text("\n".join([str(len(lines)), CELEBA + " ", *lines]) + "\n")
    (home / "list_eval_partition.txt").write_text("\n".join(parts) + "\n")
    return home


def table(folder: Path, rows: int = 24) -> Path:
    """``folder``/patients.csv with images in scans/, of two sites, with a split."""
    lines = ["image,label,client,attribute,split"]
    for row in range(rows):
        name = f"scans/{row:02d}.png"
        picture(folder / name, row, bool(row % 2))
        part = ("train", "train", "train", "test")[row // 2 % 4]
        lines.append(
            f"{name},{('healthy', 'ill')[row % 2]},{('bern', 'oslo')[row % 5 > 1]},{('f', 'm')[row % 3 > 0]},{part}"
        )
    (folder / "patients.csv").write_text("\n".join(lines) + "\n")
    return folder / "patients.csv"
