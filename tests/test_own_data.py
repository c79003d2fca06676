"""Whole runs on data as users bring them: image folders, CSV files, and hub-style folders with their own encoder."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedkeel as fk
from fedkeel.core.rng import generator

COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}


def picture(colour: str, key: int) -> Image.Image:
    """A noisy square of one colour."""
    noise = generator(key, "picture", colour).normal(0, 25, (24, 24, 3))
    return Image.fromarray(np.clip(np.array(COLOURS[colour]) + noise, 0, 255).astype(np.uint8))


def test_an_image_folder_of_clients(tmp_path: Path) -> None:
    """FOLDER/client/class/*.png with the embedded EfficientNet: two sites, three colours, real encoding."""
    for key in range(8):
        for site in ("north", "south"):
            for colour in COLOURS:
                folder = tmp_path / "photos" / site / colour
                folder.mkdir(parents=True, exist_ok=True)
                picture(colour, key + 100 * (site == "south")).save(folder / f"{key}.png")
    result = fk.run(
        out=tmp_path / "run",
        data={"source": f"images:{tmp_path / 'photos'}", "cache": str(tmp_path / "cache")},
        partition={"kind": "column"},
        method={"rounds": 3},
    )
    assert result.summary["clients"] == 2
    assert result.record.start["clients"]["names"] == ["north", "south"]
    assert result.accuracy > 0.8
    new = tmp_path / "new"
    new.mkdir()
    picture("blue", 7).save(new / "sky.png")
    text = fk.predict(result.folder, input=new)
    assert [row["class"] for row in csv.DictReader(text.splitlines())] == ["blue"]


def test_a_csv_of_texts_with_clients_and_a_split(tmp_path: Path) -> None:
    texts = {
        "sport": ["The team won the cup final", "A late goal decided the match", "She ran the marathon in record time"],
        "cooking": ["Simmer the onions in butter", "Bake the bread for an hour", "Add salt and pepper to the soup"],
    }
    with (tmp_path / "posts.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "client", "split"])
        for label, lines in texts.items():
            for number, line in enumerate(lines * 4):
                writer.writerow(
                    [f"{line} ({number}).", label, f"site {number % 3}", "test" if number >= 9 else "train"]
                )
    result = fk.run(
        out=tmp_path / "run",
        data={"source": f"csv:{tmp_path / 'posts.csv'}", "cache": str(tmp_path / "cache")},
        partition={"kind": "column"},
        method={"rounds": 3},
    )
    assert result.accuracy == 1.0
    assert result.record.end is not None
    assert result.record.end["per_client_basis"] == "own test rows"
    assert result.predict(["The goalkeeper saved a penalty", "Fry the garlic in olive oil"])[0] == ["sport", "cooking"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_hub_dataset_and_a_vision_transformer_from_folders(tmp_path: Path) -> None:
    """The path of real users, with a dataset and a tiny ViT saved here instead of downloaded."""
    import datasets
    import transformers
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    names = list(COLOURS)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    parts = {}
    for part, rows in (("train", 90), ("test", 30)):
        images = [picture(names[row % 3], row + 1000 * (part == "test")) for row in range(rows)]
        table = {"image": images, "label": [row % 3 for row in range(rows)]}
        parts[part] = datasets.Dataset.from_dict(table, features=features)
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "dataset"))
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=16, patch_size=8
    )
    transformers.ViTModel(config).save_pretrained(str(tmp_path / "vit"))
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(str(tmp_path / "vit"))
    result = fk.run(
        out=tmp_path / "run",
        data={
            "source": f"hf:{tmp_path / 'dataset'}",
            "encoder": f"hf:{tmp_path / 'vit'}",
            "cache": str(tmp_path / "cache"),
        },
        partition={"kind": "shards", "clients": 6, "classes_per_client": 1},
        method={"rounds": 5},
    )
    assert result.record.start["data"]["classes"] == names
    assert result.record.start["data"]["dim"] == 32
    assert result.accuracy > 0.9, "colours are easy even for random weights"
    assert result.predict([np.asarray(picture("green", 5))])[0] == ["green"]
    tuned = fk.run(
        out=tmp_path / "tuned",
        data={"source": f"hf:{tmp_path / 'dataset'}", "encoder": f"hf:{tmp_path / 'vit'}"},
        partition={"kind": "iid", "clients": 3},
        method={"name": "fft-moe", "rounds": 4, "lr": 0.01, "batch": 8},
    )
    assert tuned.accuracy > 0.9
    assert tuned.record.start["data"]["mean_energy"] is None, "no features were made"
    assert tuned.predict([np.asarray(picture("green", 5))])[0] == ["green"]
