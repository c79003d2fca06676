"""What a server starts a network from: the encoder of the contract, without a single row."""

from __future__ import annotations

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.core.watch import Watch
from fedkeel.data.dataset import Dataset
from fedkeel.deploy.settings import Member
from fedkeel.runs.opening import open_rows


def reader_of(member: Member, watch: Watch) -> object:
    """None for heads on features, which need no encoder to start from."""
    terms = member.terms
    method, agreed = terms.trains, terms.encoder
    if method.reads == "features":
        return None
    nothing = np.empty(0, dtype=np.int64)
    rows: list[str] | np.ndarray = np.empty((0, 32, 32, 3), dtype=np.uint8) if agreed.rows == "images" else []
    empty = Dataset(
        terms.name, agreed.rows, rows, nothing, rows, nothing, terms.classes, f"nobody's rows {terms.id}", agreed.name
    )
    data = terms.experiment().data.model_copy(update={"encoder": member.encoder_here})
    opened = open_rows(data, empty, method, watch)
    if (opened.weights, opened.transform) != (agreed.weights, agreed.transform):
        raise FedkeelError(
            f"the encoder {opened.encoder} is not the one of the contract (weights or preparation): install that one"
        )
    return opened.train.reader
