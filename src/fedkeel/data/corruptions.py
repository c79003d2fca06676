"""Images made worse in nineteen ways and five severities; the same row always in the same way.

The kinds are those of CIFAR-10-C (Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common
Corruptions and Perturbations, ICLR 2019). How each is done, and how strong, is ours: lengths are for images of 32
pixels and go with their size (down to a half), a higher severity is always further from the original, and frost and
snow are drawn, not pasted from photographs. ``saturate`` cannot change a grey image.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from PIL import Image

from fedkeel.core.errors import FedkeelError, unknown
from fedkeel.core.rng import generator
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest
from fedkeel.data.images import open_image
from fedkeel.data.manifest import Manifest
from fedkeel.data.shifts import Shift

CHUNK = 256
"""Rows corrupted at once."""
BRIGHTNESS = np.array([0.299, 0.587, 0.114], dtype=np.float32)
ICE = np.array([0.84, 0.92, 1.0], dtype=np.float32)
MUD = np.array([0.33, 0.23, 0.13], dtype=np.float32)
WATER = np.array([0.70, 0.86, 0.90], dtype=np.float32)
TINY = 1e-9
"""Instead of nothing as a divisor: images of one pixel have no variation."""
STEPS = 9
"""Copies that a motion or a zoom is made of."""

Draws = Sequence[np.random.Generator]
Family = Literal["noise", "blur", "weather", "digital"]


@dataclass(frozen=True)
class Corruption:
    """``apply`` takes images in [0, 1], one generator per image and the strength of the severity."""

    family: Family
    strengths: tuple[float, float, float, float, float]
    apply: Callable[[np.ndarray, Draws, float], np.ndarray]


def corrupt(images: np.ndarray, kind: str, severity: int, draws: Draws) -> np.ndarray:
    """uint8 images (n, h, w, 3) as they look after a corruption; each image has its own generator in ``draws``."""
    if kind not in CORRUPTIONS:
        raise unknown("corruption", kind, CORRUPTIONS)
    if severity not in range(1, 6):
        raise FedkeelError(f"severity = {severity} of {kind}: expected 1, 2, 3, 4 or 5")
    found = CORRUPTIONS[kind]
    worse = np.empty_like(images)
    for first in range(0, len(images), CHUNK):
        part = slice(first, first + CHUNK)
        changed = found.apply(images[part].astype(np.float32) / 255, draws[part], found.strengths[severity - 1])
        worse[part] = np.round(np.clip(changed, 0, 1) * 255).astype(np.uint8)
    return worse


def corrupted(dataset: Dataset, manifest: Manifest, shift: Shift, seed: int) -> tuple[Dataset, Manifest]:
    """The data after the split with corruption, and the split with the clients' kinds in their names.

    per-client: client k has kind k mod 19 in all its rows, train, validation and test. One kind: everybody has it, and
    where clients have no test rows of their own, the source's test rows too.
    """
    if shift.corruption not in ("none", "per-client", *CORRUPTIONS):
        raise unknown("corruption", shift.corruption, ["none", "per-client", *CORRUPTIONS])
    if shift.corruption == "none":
        return dataset, manifest
    if dataset.kind != "images":
        raise FedkeelError(
            f"shift.corruption = {shift.corruption!r} changes images, and {dataset.name} holds {dataset.kind}: take a "
            "source of images (digits5, cifar10, npz:FILE, images:FOLDER, hf:...) or set shift.corruption=none"
        )
    per_client, own_test = shift.corruption == "per-client", len(manifest.test.rows) > 0
    if per_client and not own_test:
        raise FedkeelError(
            "shift.corruption = 'per-client' without test rows of each client, which have its corruption as well: "
            "set partition.test, e.g. partition.test=0.2"
        )
    kinds = list(CORRUPTIONS)
    kind_of = [kinds[k % len(kinds)] if per_client else shift.corruption for k in range(len(manifest.names))]
    parts = {"train": _as_array(dataset.train, dataset.name), "test": _as_array(dataset.test, dataset.name)}

    def change(part: str, rows: np.ndarray, kind: str) -> None:
        draws = [generator(seed, "corruption", kind, part, row) for row in rows.tolist()]
        parts[part][rows] = corrupt(parts[part][rows], kind, shift.severity, draws)

    for client, kind in enumerate(kind_of):
        for part, owned in (
            ("train", manifest.train),
            ("train", manifest.validation),
            (manifest.test_rows, manifest.test),
        ):
            change(part, owned.of(client), kind)
    if not own_test:
        change("test", np.arange(len(dataset.test)), shift.corruption)
    names = tuple(f"{name}-{kind}" for name, kind in zip(manifest.names, kind_of, strict=True))
    fingerprint = digest([dataset.fingerprint, *parts.values()])
    told = {**manifest.settings, "corruption": shift.corruption, "severity": shift.severity}
    return (
        replace(dataset, train=parts["train"], test=parts["test"], ready={}, fingerprint=fingerprint),
        replace(manifest, names=names if per_client else manifest.names, settings=told),
    )


def _as_array(rows: Sequence[Any] | np.ndarray, source: str) -> np.ndarray:
    """A copy of all images as one array, which they must fit into."""
    if isinstance(rows, np.ndarray):
        return np.array(rows)
    images = [np.asarray(open_image(row, index)) for index, row in enumerate(rows)]
    shapes = sorted({image.shape for image in images})
    if len(shapes) > 1:
        (height, width, _), (taller, wider, _) = shapes[0], shapes[-1]
        raise FedkeelError(
            f"shift.corruption needs images of one size, and {source} holds some of {width} x {height} and some of "
            f"{wider} x {taller} pixels: resize them, or set shift.corruption=none"
        )
    return np.stack(images) if images else np.empty((0, 0, 0, 3), dtype=np.uint8)


def _drawn(draws: Draws, draw: Callable[[np.random.Generator], np.ndarray | float]) -> np.ndarray:
    return np.stack([draw(rng) for rng in draws]).astype(np.float32)


def _normal(images: np.ndarray, draws: Draws) -> np.ndarray:
    return _drawn(draws, lambda rng: rng.standard_normal(images.shape[1:], dtype=np.float32))


def _scale(images: np.ndarray) -> float:
    return max(int(min(images.shape[1:3])) / 32, 0.5)


def _smooth(images: np.ndarray, sigma: float) -> np.ndarray:
    """Each image, or each field (n, h, w), by itself."""
    from scipy.ndimage import gaussian_filter

    smooth: np.ndarray = gaussian_filter(images, (0, sigma, sigma, *[0] * (images.ndim - 3)), mode="nearest")
    return smooth


def _clouds(images: np.ndarray, draws: Draws) -> np.ndarray:
    """Random fields (n, h, w, 1), rough and smooth at once, each running from 0 to 1."""
    noise = _drawn(draws, lambda rng: rng.standard_normal((3, *images.shape[1:3]), dtype=np.float32))
    field = np.zeros(images.shape[:3], dtype=np.float32)
    for octave, sigma in enumerate((6, 3, 1.5)):
        layer = _smooth(noise[:, octave], sigma * _scale(images))
        field += layer / np.maximum(layer.std((1, 2), keepdims=True), TINY) / 2**octave
    low, high = field.min((1, 2), keepdims=True), field.max((1, 2), keepdims=True)
    clouds: np.ndarray = ((field - low) / np.maximum(high - low, TINY))[..., None]
    return clouds


def _warp(images: np.ndarray, down: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Each pixel taken from so many pixels further down and right; between pixels linear, beyond the edge the edge."""
    count, height, width = images.shape[:3]
    y = np.clip(np.arange(height)[:, None] + down, 0, height - 1)
    x = np.clip(np.arange(width) + right, 0, width - 1)
    y, x = np.broadcast_to(y, (count, height, width)), np.broadcast_to(x, (count, height, width))
    top, left = np.minimum(y.astype(int), max(height - 2, 0)), np.minimum(x.astype(int), max(width - 2, 0))
    below, beside = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    v, u = (y - top)[..., None].astype(np.float32), (x - left)[..., None].astype(np.float32)
    which = np.arange(count)[:, None, None]
    upper = images[which, top, left] * (1 - u) + images[which, top, beside] * u
    lower = images[which, below, left] * (1 - u) + images[which, below, beside] * u
    warped: np.ndarray = upper * (1 - v) + lower * v
    return warped


def _along(images: np.ndarray, angles: np.ndarray, length: float) -> np.ndarray:
    """The mean of each image over a straight movement."""
    angles = angles[:, None, None]
    moved = (_warp(images, np.sin(angles) * t, np.cos(angles) * t) for t in np.linspace(-length / 2, length / 2, STEPS))
    return np.asarray(sum(moved) / STEPS)


def _angles(draws: Draws) -> np.ndarray:
    return _drawn(draws, lambda rng: rng.uniform(0, np.pi))


def gaussian_noise(images: np.ndarray, draws: Draws, sigma: float) -> np.ndarray:
    return images + sigma * _normal(images, draws)


def shot_noise(images: np.ndarray, draws: Draws, photons: float) -> np.ndarray:
    """As if the brightest pixel had counted so many photons."""
    return np.stack([rng.poisson(image * photons) for image, rng in zip(images, draws, strict=True)]) / photons


def impulse_noise(images: np.ndarray, draws: Draws, share: float) -> np.ndarray:
    """Pixels that are black or white."""
    lot = _drawn(draws, lambda rng: rng.random(images.shape[1:3]))[..., None]
    return np.where(lot < share / 2, 0, np.where(lot > 1 - share / 2, 1, images))


def speckle_noise(images: np.ndarray, draws: Draws, sigma: float) -> np.ndarray:
    return images * (1 + sigma * _normal(images, draws))


def gaussian_blur(images: np.ndarray, draws: Draws, sigma: float) -> np.ndarray:
    return _smooth(images, sigma * _scale(images))


def defocus_blur(images: np.ndarray, draws: Draws, radius: float) -> np.ndarray:
    """The mean over a disc; pixels at its rim count in part."""
    from scipy.ndimage import convolve

    radius *= _scale(images)
    reach = np.arange(-int(radius + 1), int(radius + 1) + 1)
    disc = np.clip(radius + 0.5 - np.hypot(*np.meshgrid(reach, reach)), 0, 1)
    return np.asarray(convolve(images, (disc / disc.sum())[None, :, :, None], mode="nearest"))


def glass_blur(images: np.ndarray, draws: Draws, reach: float) -> np.ndarray:
    """Every pixel comes from somewhere near it."""
    lot = _drawn(draws, lambda rng: rng.uniform(-1, 1, (2, *images.shape[1:3]))) * reach * _scale(images)
    return _warp(images, lot[:, 0], lot[:, 1])


def motion_blur(images: np.ndarray, draws: Draws, length: float) -> np.ndarray:
    return _along(images, _angles(draws), length * _scale(images))


def zoom_blur(images: np.ndarray, draws: Draws, zoom: float) -> np.ndarray:
    """The mean of copies that are up to 1 + zoom times larger."""
    y, x = (np.arange(length) - (length - 1) / 2 for length in images.shape[1:3])
    inward = (1 / factor - 1 for factor in np.linspace(1, 1 + zoom, STEPS))
    return np.asarray(sum(_warp(images, y[:, None] * t, x * t) for t in inward) / STEPS)


def fog(images: np.ndarray, draws: Draws, density: float) -> np.ndarray:
    """Clouds of light grey over a picture that fades."""
    return images * (1 - density) + density * (0.45 + 0.55 * _clouds(images, draws))


def frost(images: np.ndarray, draws: Draws, density: float) -> np.ndarray:
    """Crystals along the level lines of clouds, cold white."""
    ice = 1 - np.abs(2 * _clouds(images, draws) - 1)
    ice = density * (0.25 + 0.75 * ice**2)
    return np.asarray(images * (1 - ice) + ice * ICE)


def snow(images: np.ndarray, draws: Draws, share: float) -> np.ndarray:
    """Flakes that fall aslant, before a picture that turns white."""
    lot = _drawn(draws, lambda rng: rng.random(images.shape[1:3]))[..., None]
    slant = _drawn(draws, lambda rng: rng.uniform(np.pi / 4, 3 * np.pi / 4))
    flakes = _along(np.where(lot < share, 1, 0).astype(np.float32), slant, 3 * _scale(images))
    return np.asarray(images + 2 * share * (1 - images) + 2 * flakes)


def spatter(images: np.ndarray, draws: Draws, share: float) -> np.ndarray:
    """Drops of mud or of water that cover a share of the picture."""
    clouds = _clouds(images, draws)
    colour = np.where(_drawn(draws, lambda rng: rng.random(1)) < 0.5, MUD, WATER)[:, None, None]
    covered = clouds > np.quantile(clouds, 1 - share, axis=(1, 2), keepdims=True)
    return np.where(covered, 0.1 * images + 0.9 * colour, images)


def brightness(images: np.ndarray, draws: Draws, more: float) -> np.ndarray:
    return images + more


def contrast(images: np.ndarray, draws: Draws, left: float) -> np.ndarray:
    mean = images.mean((1, 2, 3), keepdims=True)
    return np.asarray(mean + left * (images - mean))


def elastic(images: np.ndarray, draws: Draws, reach: float) -> np.ndarray:
    """The picture as if drawn on rubber: neighbours move together, by ``reach`` pixels on average."""
    lot = _drawn(draws, lambda rng: rng.standard_normal((2, *images.shape[1:3]), dtype=np.float32))
    down, right = (_smooth(lot[:, axis], 3 * _scale(images)) for axis in range(2))
    length = np.maximum(np.hypot(down, right).mean((1, 2), keepdims=True), TINY)
    return _warp(images, reach * _scale(images) * down / length, reach * _scale(images) * right / length)


def pixelate(images: np.ndarray, draws: Draws, left: float) -> np.ndarray:
    """As if there were only this share of the rows and columns."""
    height, width = images.shape[1:3]
    few = max(1, round(width * left)), max(1, round(height * left))

    def coarse(image: Image.Image) -> Image.Image:
        return image.resize(few, Image.Resampling.BOX).resize((width, height), Image.Resampling.NEAREST)

    return _each(images, coarse)


def jpeg(images: np.ndarray, draws: Draws, quality: float) -> np.ndarray:
    def stored(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=int(quality))
        return Image.open(file)

    return _each(images, stored)


def _each(images: np.ndarray, change: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    pictures = np.round(images * 255).astype(np.uint8)
    return np.stack([np.asarray(change(Image.fromarray(picture))) for picture in pictures]).astype(np.float32) / 255


def saturate(images: np.ndarray, draws: Draws, factor: float) -> np.ndarray:
    grey = (images @ BRIGHTNESS)[..., None]
    return np.asarray(grey + factor * (images - grey))


CORRUPTIONS: dict[str, Corruption] = {  # one of each family in turn, so that few clients already differ much
    "gaussian-noise": Corruption("noise", (0.04, 0.08, 0.12, 0.18, 0.26), gaussian_noise),
    "gaussian-blur": Corruption("blur", (0.5, 0.8, 1.1, 1.5, 2.0), gaussian_blur),
    "fog": Corruption("weather", (0.25, 0.4, 0.53, 0.64, 0.75), fog),
    "contrast": Corruption("digital", (0.7, 0.5, 0.36, 0.24, 0.14), contrast),
    "shot-noise": Corruption("noise", (80, 40, 20, 10, 5), shot_noise),
    "motion-blur": Corruption("blur", (3, 4.5, 6, 8, 10), motion_blur),
    "frost": Corruption("weather", (0.3, 0.45, 0.6, 0.75, 0.9), frost),
    "pixelate": Corruption("digital", (0.75, 0.6, 0.5, 0.4, 0.3), pixelate),
    "impulse-noise": Corruption("noise", (0.02, 0.05, 0.09, 0.14, 0.22), impulse_noise),
    "defocus-blur": Corruption("blur", (0.8, 1.2, 1.7, 2.3, 3.0), defocus_blur),
    "snow": Corruption("weather", (0.015, 0.03, 0.05, 0.075, 0.11), snow),
    "jpeg": Corruption("digital", (50, 30, 18, 11, 6), jpeg),
    "speckle-noise": Corruption("noise", (0.15, 0.25, 0.35, 0.48, 0.65), speckle_noise),
    "zoom-blur": Corruption("blur", (0.12, 0.22, 0.34, 0.48, 0.65), zoom_blur),
    "brightness": Corruption("weather", (0.1, 0.2, 0.3, 0.4, 0.5), brightness),
    "elastic": Corruption("digital", (0.5, 0.9, 1.3, 1.8, 2.4), elastic),
    "glass-blur": Corruption("blur", (0.6, 1.0, 1.5, 2.0, 2.7), glass_blur),
    "spatter": Corruption("weather", (0.06, 0.12, 0.19, 0.27, 0.36), spatter),
    "saturate": Corruption("digital", (1.6, 2.2, 3.0, 4.2, 6.0), saturate),
}
