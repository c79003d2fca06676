"""What a site says of itself before its first round, as an ``Up``: how many rows it has, and of which classes.

The server needs the rows of each site, which weigh its updates, and of everything else the sums. It sees the classes of
each site all the same, as it would from the first head that the site sends: docs/deploy.md says so.
"""

from __future__ import annotations

import numpy as np
import torch

from fedkeel.core.errors import BadMessage
from fedkeel.core.message import Up, decode, encode
from fedkeel.core.roster import Enrolment
from fedkeel.engines.gate import addressed, misfits

PHASE = "enrol"
MOST_ROWS = 10**9
CLASS_ROWS, TEST_ROWS, VALIDATION = "enrol.class_rows", "enrol.test_rows", "enrol.validation_rows"


def told(enrolment: Enrolment, run: str) -> bytes:
    """The bytes in which one site enrols."""
    (name,), (rows,) = enrolment.names, enrolment.rows
    arrays = {
        CLASS_ROWS: torch.from_numpy(enrolment.class_rows.astype(np.int64)),
        TEST_ROWS: torch.from_numpy(enrolment.test_rows.astype(np.int64)),
        VALIDATION: torch.tensor([enrolment.validation_rows]),
    }
    return encode(Up(run, 0, PHASE, name, float(rows), arrays))


def heard(data: bytes, run: str, name: str, classes: int) -> Enrolment:
    """What the site of that name enrolled with; a BadMessage says why it cannot have."""
    message = decode(data)
    weight = message.weight if isinstance(message, Up) else 0.0
    counts = torch.zeros(classes, dtype=torch.int64)
    expected = {CLASS_ROWS: counts, TEST_ROWS: counts, VALIDATION: counts[:1]}
    reason = addressed(message, Up(run, 0, PHASE, name, weight, {})) or misfits(message.arrays, expected)
    if reason is not None:
        raise BadMessage(f"site {name} cannot enrol: {reason}")
    for array, value in message.arrays.items():
        if int(value.min()) < 0 or int(value.max()) > MOST_ROWS:
            raise BadMessage(f"site {name} cannot enrol: {array} is outside of 0 .. {MOST_ROWS:,}")
    class_rows = message.arrays[CLASS_ROWS].numpy()
    if float(class_rows.sum()) != weight:
        raise BadMessage(f"site {name} cannot enrol: it says {weight:g} rows, and {class_rows.sum()} over its classes")
    tested = message.arrays[TEST_ROWS].numpy()
    return Enrolment.of_counts([name], class_rows[None], int(message.arrays[VALIDATION]), tested)
