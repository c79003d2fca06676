"""Personal models at home and abroad: by hand on a 3 x 3 matrix, and against the arithmetic of the paper's tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedkeel.core.errors import FedkeelError
from fedkeel.metrics.personal import Personal
from fedkeel.runs.events import Log, personalised, read

MATRIX = [[0.9, 0.6, 0.3], [0.2, 0.8, 0.5], [0.7, 0.6, 1.0]]
METRICS = (
    "local", "global_incl", "global_excl", "worst", "worst_text", "c_std", "c_std_text", "average_lgw", "average_lg",
)  # fmt: skip


def numbers(personal: Personal) -> dict[str, float | None]:
    return {name: getattr(personal, name) for name in METRICS}


def test_every_metric_of_a_matrix_by_hand() -> None:
    """Own: 0.9, 0.8, 1.0, mean 0.9, lowest 0.8, deviation sqrt((0 + 0.01 + 0.01) / 3) = 0.0816497.
    Means of the rows: 0.6, 0.5, 2.3 / 3, mean 0.6222222; without the own: 0.45, 0.35, 0.65, mean 0.4833333.
    Lowest other: 0.3, 0.2, 0.6, mean 0.3666667. Deviations of the rows: sqrt(0.18 / 3) twice, and of 0.7, 0.6, 1.0
    sqrt((0.0044444 + 0.0277778 + 0.0544444) / 3) = 0.1699673: mean 0.2199551.
    Averages: (0.9 + 0.6222222 + 0.3666667) / 3 and (0.9 + 0.4833333) / 2."""
    personal = Personal.of_matrix(MATRIX, before=[0.6, 0.7, 0.8], distortions=[1.0, 2.5, None])
    assert numbers(personal) == pytest.approx(
        {
            "local": 0.9, "global_incl": 0.6222222, "global_excl": 0.4833333, "worst": 0.3666667, "worst_text": 0.8,
            "c_std": 0.2199551, "c_std_text": 0.0816497, "average_lgw": 0.6296296, "average_lg": 0.6916667,
        },
        abs=1e-7,
    )  # fmt: skip
    assert personal.local_before == personal.global_before == pytest.approx(0.7)
    assert personal.drop_in_global == pytest.approx(0.7 - 0.6222222, abs=1e-7)
    assert personal.distortion_mean == pytest.approx(1.75)


def test_the_global_model_as_everybody_s_own() -> None:
    """0.6, 0.7, 0.8 for all: Local = Global = 0.7; the lowest others are 0.7, 0.6, 0.6: mean 0.6333333; the deviation
    over the test sets is that over the clients, sqrt(0.02 / 3)."""
    before = Personal.of_matrix(MATRIX, before=[0.6, 0.7, 0.8]).unchanged
    assert before is not None
    assert (before.local, before.global_incl) == (pytest.approx(0.7), pytest.approx(0.7))
    assert before.worst == pytest.approx(0.6333333, abs=1e-7)
    assert before.c_std == before.c_std_text == pytest.approx(0.0816497, abs=1e-7)
    assert (before.drop_in_global, before.distortion_mean) == (pytest.approx(0), 0)
    alone = Personal.of_matrix(MATRIX)
    assert (alone.unchanged, alone.local_before, alone.drop_in_global, alone.distortion_mean) == (None,) * 4


def test_clients_without_test_rows_or_without_a_model() -> None:
    """Client 1 has no test rows, client 2 no model. Model 0: own 0.9, other 0.3. Model 1: no own, others 0.2 and 0.5.
    Local is that of model 0 alone, Global (0.6 + 0.35) / 2, abroad (0.3 + 0.35) / 2, Worst (0.3 + 0.2) / 2. The global
    model at home is that at client 0: client 1 has no test rows, and client 2 no model to compare it with."""
    personal = Personal.of_matrix(
        [[0.9, None, 0.3], [0.2, None, 0.5]], clients=[0, 1], before=[0.6, None, 0.8], names=["a", "b", "c"]
    )
    assert personal.local == personal.worst_text == pytest.approx(0.9)
    assert personal.global_incl == pytest.approx(0.475)
    assert personal.global_excl == pytest.approx(0.325)
    assert personal.worst == pytest.approx(0.25)
    assert personal.c_std == pytest.approx((0.3 + 0.15) / 2)
    assert personal.c_std_text is None, "one known number does not deviate"
    assert (personal.local_before, personal.global_before) == (pytest.approx(0.6), pytest.approx(0.7))
    moved = Personal.of_matrix(np.array([[0.2, 0.5, 0.9]]), clients=[2])
    assert (moved.local, moved.worst) == (pytest.approx(0.9), pytest.approx(0.2))


def test_one_client_has_no_others() -> None:
    found = numbers(Personal.of_matrix([[0.8]]))
    assert {name for name, value in found.items() if value is not None} == {"local", "global_incl", "worst_text"}
    assert found["local"] == found["global_incl"] == 0.8
    assert not any(numbers(Personal.of_matrix([[None]])).values())


# --- the paper's tables -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("local", "worst", "printed"),
    [(76.18, 76.31, 76.25), (76.44, 76.81, 76.63), (77.51, 77.46, 77.49), (77.29, 77.11, 77.20), (77.49, 77.53, 77.51),
     (77.64, 77.43, 77.54)],
)  # fmt: skip
def test_with_two_clients_the_paper_s_global_includes_the_own_test_set(
    local: float, worst: float, printed: float
) -> None:
    """CheXpert of Table 2, FT to LP-FT. With two clients a model has one other test set, which is its worst: abroad it
    has Worst, and with its own (Local + Worst) / 2, to the last digit (0.01 for two rounded numbers). Worst is above
    Local in three rows, so the own test set is not among those that Worst looks at."""
    personal = Personal.of_matrix([[local, worst], [worst, local]])
    assert personal.global_incl == pytest.approx(printed, abs=0.0101)
    assert personal.worst == personal.global_excl == pytest.approx(worst)


@pytest.mark.parametrize(
    ("clients", "local", "whole", "worst", "printed"),
    [(50, 54.50, 44.16, 19.83, 39.50), (50, 63.55, 55.35, 26.33, 48.41), (50, 32.60, 25.44, 5.92, 21.32),
     (5, 91.17, 67.87, 42.03, 67.02), (5, 91.20, 82.78, 65.80, 79.92), (6, 68.50, 57.52, 34.53, 53.52),
     (4, 93.74, 81.11, 67.50, 80.78), (20, 87.20, 16.67, 0.01, 34.62)],
)  # fmt: skip
def test_the_paper_s_average_is_of_three_numbers(
    clients: int, local: float, whole: float, worst: float, printed: float
) -> None:
    """Rows of Tables 2 and 3 (CIFAR10-C, CIFAR100-C, Digit5, DomainNet, CelebA, label shift). Each model has Local at
    home, Worst at one other client, and elsewhere what makes its mean Global: (C G - L - W) / (C - 2). Average is the
    mean of Local, Global and Worst to the last digit, and never that of Local and Global, which the text says."""
    rest = (clients * whole - local - worst) / (clients - 2)
    row = [local, worst, *[rest] * (clients - 2)]
    personal = Personal.of_matrix([np.roll(row, client) for client in range(clients)])
    assert (personal.local, personal.worst) == (pytest.approx(local), pytest.approx(worst))
    assert personal.global_incl == pytest.approx(whole)
    assert personal.average_lgw == pytest.approx(printed, abs=0.0101)
    assert personal.average_lg is not None
    assert personal.average_lg > printed + 4


# --- events -----------------------------------------------------------------------------------------------------------


def write(folder: Path, *, models: int = 3, ended: bool = True) -> None:
    folder.mkdir(parents=True)
    with Log(folder / "events.jsonl") as log:
        config = {"method": {"name": "lp-ft"}, "partition": {"kind": "iid"}, "run": {"seed": 3}}
        log.write("start", version="0.1.0", config=config, data={}, clients={})
        test = {"names": ["a", "b", "c"], "rows": [5, 6, 0], "before": [0.5, 0.6, None]}
        log.write("personal_test", basis="own test rows", **test)
        for client in (2, 0, 1)[:models]:
            on = [0.1 * (client + 1), 0.2, None]
            about = {"rows": 10, "on": on, "distortion": float(client), "seconds": {"tune": 1.0}, "flops": {"tune": 9}}
            log.write("personal", client=client, name="abc"[client], **about)
        if ended:
            log.write("end", digest="00")


def test_events_become_a_matrix(tmp_path: Path) -> None:
    write(tmp_path / "run")
    record = read(tmp_path / "run")
    assert record.end is not None
    assert [event["name"] for event in record.personal] == ["a", "b", "c"]
    personal = Personal.of(record)
    assert personal.clients == (0, 1, 2)
    assert np.allclose(personal.matrix, [[0.1, 0.2, np.nan], [0.2, 0.2, np.nan], [0.3, 0.2, np.nan]], equal_nan=True)
    assert (personal.basis, personal.names) == ("own test rows", ("a", "b", "c"))
    assert personal.distortion_mean == pytest.approx(1)
    assert personal.global_before == pytest.approx(0.55)


def test_a_part_of_the_models_is_a_matrix_of_fewer_rows(tmp_path: Path) -> None:
    write(tmp_path / "run", models=2, ended=False)
    personal = Personal.of(read(tmp_path / "run"))
    assert personal.clients == (0, 2)
    assert personal.local == pytest.approx(0.1)
    write(tmp_path / "none", models=0, ended=False)
    with pytest.raises(FedkeelError, match="none has no personal models: make some with fedkeel personalize"):
        Personal.of(read(tmp_path / "none"))


def test_what_a_run_was_personalised_with(tmp_path: Path) -> None:
    assert personalised(tmp_path) == []
    for name in ("lp-ft_lr=0.1", "ft"):
        write(tmp_path / "personal" / name, ended=name == "ft")
    (tmp_path / "personal" / "begun").mkdir()
    (tmp_path / "personal" / "begun" / "events.jsonl").write_text('{"event":"st')
    (tmp_path / "personal" / "empty").mkdir()
    found = personalised(tmp_path)
    assert [(record.folder.name, record.end is not None) for record in found] == [("ft", True), ("lp-ft_lr=0.1", False)]
