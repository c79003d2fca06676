"""The sections of a configuration that say what the clients hold: rows, shifts and the split."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedkeel.core.settings import Section


class Data(Section):
    source: str = "newsgroups20"
    """newsgroups20, digits, digits5, coloured-digits, cifar10, npz:FILE, csv:FILE, images:FOLDER or hf:ID-or-folder"""
    encoder: str = "auto"
    """auto (what the source names), none, pixels, minilm, efficientnet-lite0, hf:ID-or-folder or random:NAME"""
    pooling: Literal["auto", "cls", "mean", "pooled"] = "auto"
    """which output of an hf: encoder is the feature"""
    features: Literal["centred", "l2", "raw"] = "centred"
    """centred: minus the federation's mean, then unit length; l2: unit length; raw: as encoded"""
    dtype: Literal["float16", "float32"] = "float16"
    """how the cache stores features"""
    limit: int | None = Field(None, ge=1)
    """use at most this many training rows (a stratified, keyed sample) and as large a share of the test rows"""
    holdout: float = Field(0.2, gt=0, lt=1)
    """share of rows kept for testing where the source brings no test rows"""
    label_column: str = "label"
    text_column: str = "text"
    client_column: str = "client"
    attribute_column: str = "attribute"
    """what else is known of a row, for partition.kind = spurious"""
    superclass_column: str = "superclass"
    """the group that a row's class belongs to, for partition.kind = pachinko"""
    cache: str | None = None
    """folder of the feature cache; by default the user's cache folder"""


class Shift(Section):
    long_tail: float = Field(1.0, ge=1)
    """imbalance factor: rows of the largest class over rows of the smallest; 1 = off"""
    order: Literal["label", "random"] = "label"
    """which class is the largest of the long tail and which the next: by label, or in an order that the seed draws"""
    noise: Literal["none", "symmetric", "asymmetric"] = "none"
    noise_ratio: float = Field(0.0, ge=0, le=1)
    """share of each client's training labels that the noise is applied to"""
    flip: float = Field(0.0, ge=0, le=1)
    """share of the classes whose labels each client exchanges among one another, in all its rows; 0 = off"""
    corruption: str = "none"
    """of images: none, per-client (each client has one kind) or the kind that everybody has, such as fog"""
    severity: int = Field(3, ge=1, le=5)
    """of the corruption"""


class Partition(Section):
    kind: str = "bernoulli-dirichlet"
    clients: int = Field(100, ge=1)
    classes_per_client: int = Field(1, ge=1)
    """shards: how many classes a client holds"""
    alpha: float = Field(0.001, gt=0)
    """dirichlet, bernoulli-dirichlet, pachinko: concentration; small = skewed"""
    balance: bool = False
    """dirichlet: clients that hold their even share of all rows get no further class, and nobody stays empty"""
    p: float = Field(0.1, gt=0, le=1)
    """bernoulli-dirichlet: chance that a client may hold a class"""
    exponent: float = Field(2.0, ge=0)
    """zipf: rows of client k are proportional to k ** -exponent"""
    correlation: float = Field(0.9, ge=0, le=1)
    """spurious: share of a client's rows of a class that have the attribute value it connects with the class"""
    validation: float = Field(0.0, ge=0, lt=1)
    test: float = Field(0.0, ge=0, lt=1)
    """shares of each client's rows kept for its own validation and test"""
    test_split: Literal["none", "same", "even", "own"] = "none"
    """how the source's test rows are dealt: not, by the clients' Dirichlet shares, evenly, or by a draw of their own"""
