"""What a server knows: rows of each client, sums of everything else."""

from __future__ import annotations

import numpy as np

from fedkeel.core.roster import Enrolment

COUNTS = np.array([[3, 0, 2], [0, 4, 0], [0, 0, 0]])


def test_counts_of_one_client_are_rows_and_one_or_several_classes() -> None:
    enrolment = Enrolment.of_counts(["a", "b", "c"], COUNTS, validation=5, test=np.array([1, 0, 2]))
    assert enrolment.rows.tolist() == [5, 4, 0]
    assert enrolment.kinds.tolist() == [2, 1, 0]
    assert enrolment.class_rows.tolist() == [3, 4, 2]
    roster = enrolment.roster("run", 7, ["x", "y", "z"], longest=1.0)
    assert roster.able == [0, 1], "who has no rows never takes part"
    assert (roster.run, roster.seed, roster.classes, roster.longest) == ("run", 7, 3, 1.0)


def test_sites_that_enrol_one_by_one_join_to_the_same() -> None:
    whole = Enrolment.of_counts(["a", "b", "c"], COUNTS, validation=6, test=np.array([3, 0, 6]))
    one, *others = (
        Enrolment.of_counts([name], COUNTS[k : k + 1], validation=2, test=np.array([1, 0, 2]))
        for k, name in enumerate("abc")
    )
    for other in others:
        one = one.joined(other)
    assert one.names == whole.names
    assert one.validation_rows == whole.validation_rows
    for key in ("rows", "kinds", "class_rows", "test_rows"):
        assert getattr(one, key).tolist() == getattr(whole, key).tolist()
