"""What a server starts a network from: the encoder of the contract, with no row but a made-up one."""

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
    count = int(method.reads == "inputs")  # towers encode what there is, and need not
    width, height = agreed.image or (32, 32)
    images, labels = np.zeros((count, height, width, 3), dtype=np.uint8), np.zeros(count, dtype=np.int64)
    rows: list[str] | np.ndarray = images if agreed.rows == "images" else ["a"] * count
    nobody = f"nobody's rows {terms.id}"
    made_up = Dataset(terms.name, agreed.rows, rows, labels, rows, labels, terms.classes, nobody, agreed.name)
    data = terms.experiment().data.model_copy(update={"encoder": member.encoder_here})
    opened = open_rows(data, made_up, method, watch)
    if (opened.weights, opened.transform) != (agreed.weights, agreed.transform):
        raise FedkeelError(
            f"the encoder {opened.encoder} is not the one of the contract (weights or preparation): install that one"
        )
    return opened.train.reader
