"""Personalising finished runs, from the command line and from Python: what is written, continued, used and refused."""

from __future__ import annotations

import csv
import io
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedkeel import api, cli
from fedkeel.commands.run import carry_out
from fedkeel.core.errors import FedkeelError, Stopped
from fedkeel.core.rng import generator
from fedkeel.data.loading import load
from fedkeel.personal.models import strategy_of
from fedkeel.personal.work import Work
from fedkeel.reporting.grouping import groups
from fedkeel.reporting.personalised import ways
from fedkeel.rows.inputs import inputs as inputs_of
from fedkeel.runs.events import Record, begun, read
from fedkeel.runs.federation import SILENT, Watch, assemble
from fedkeel.runs.folder import stored
from fedkeel.runs.model import Model, load_client
from fedkeel.runs.variant import Variant
from worlds import CLIENT, same, trained

NETWORK = {"name": "fedavg", "tune": "network", "rounds": 1, "epochs": 1, "batch": 16, "lr": 0.003}
SPLIT = {"kind": "dirichlet", "alpha": 1.0, "clients": 4, "test": 0.3}
QUICK = ("method.epochs=2",)


def finished(folder: Path, **sections: Any) -> Path:
    """A finished run, without the page that would take longer than the run."""
    digits = {"source": "digits", "limit": 200, "cache": str(folder.parent / "cache"), "dtype": "float32"}
    sections["data"] = {**digits, **sections.get("data", {})}
    exp = api.experiment(**{"partition": SPLIT, "method": NETWORK, "run": {"threads": 1}, **sections})
    carry_out(exp, folder, False, SILENT, lambda: load(exp.data), False)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network that was trained end to end; tests work on copies of it."""
    return finished(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head on features of four named clients: two with all classes, one with a single class, one with few rows."""
    folder = tmp_path_factory.mktemp("columns")
    draw = generator(0, "columns")
    client = np.repeat(["east", "north", "south", "west"], [40, 40, 20, 4])
    y = np.arange(104) % 3
    y[client == "south"] = 1
    x = (draw.normal(size=(104, 5)) + 3 * np.eye(5)[y]).astype(np.float32)
    np.savez(folder / "rows.npz", x=x, y=y, client=client)
    data = {"source": f"npz:{folder / 'rows.npz'}", "limit": None}
    method = {"name": "fedavg", "rounds": 1, "batch": 16}
    return finished(folder / "run", data=data, partition={"kind": "column", "test": 0.2}, method=method)


def personalised(run: Path, method: str = "ft", *settings: str, **more: Any) -> Record:
    return api.personalize(run, method=method, set=settings or QUICK, page=False, **more)


def values(record: Record) -> list[dict[str, Any]]:
    """What the events say, without how long it took."""
    events = [record.personal_test or {}, *record.personal, record.end or {}]
    return [{key: value for key, value in event.items() if key != "seconds"} for event in events]


def opened(run: Path, method: str, **settings: Any) -> Work:
    exp, model = stored(run), Model.load(run / "model.safetensors")
    strategy = strategy_of(Variant(method, settings), model)
    return Work.on(strategy, model, assemble(exp, load(exp.data)), exp)


Say = Any

pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked")  # cli.main reads sys.argv


@pytest.fixture
def fedkeel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """The command line in this process: (exit code, what it printed, what it told)."""

    def call(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedkeel", *map(str, words)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return call


# ---- what is made, and how it is used


def test_the_command_makes_a_model_of_each_client_and_predict_uses_it(run: Path, fedkeel: Say, tmp_path: Path) -> None:
    """The folder, the table, and predictions that are those of the model in memory."""
    settings = ("method.epochs=3", "method.probe=1", "method.batch_norm=train")
    code, out, _ = fedkeel("personalize", run, "--method", "lp-ft", "--set", *settings)
    folder = run / "personal" / "lp-ft_epochs=3_probe=1_batch_norm=train"
    assert code == 0
    assert f"models: {folder / 'clients'}" in out
    assert "lp-ft" in out
    names = read(run).start["clients"]["names"]
    assert sorted(path.name for path in folder.iterdir()) == ["clients", "config.toml", "events.jsonl"]
    assert sorted(path.stem for path in (folder / "clients").iterdir()) == sorted(names)
    assert "lp-ft" in (run / "report.html").read_text()
    record = read(folder)
    assert record.personal_test is not None
    assert record.personal_test["basis"] == "own test rows"
    assert record.personal_test["before"] == (read(run).end or {})["per_client"], (
        "the global model as the run tested it"
    )
    assert [event["name"] for event in record.personal] == names
    assert all(set(event["seconds"]) == set(event["flops"]) == {"probe", "tune"} for event in record.personal)
    assert all(event["flops"]["tune"] > event["flops"]["probe"] > 0 for event in record.personal)

    work = opened(run, "lp-ft", epochs=3, probe=1, batch_norm="train")
    mine, shared = trained(work), Model.load(run / "model.safetensors").shared
    assert work.on_test_sets(mine) == record.personal[CLIENT]["on"]
    moved = load_client(folder / "clients" / f"{names[CLIENT]}.safetensors")
    same({name: shared[name] + value for name, value in moved.items()}, mine)
    assert set(moved) == set(shared), "statistics too"
    images = np.asarray(load(stored(run).data).test)[:8]
    for number, image in enumerate(images):
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / "images" / f"{number}.png")
    scores = work.strategy.predict(work.state, mine, inputs_of(work.tests.x.backbone, images, 0)).softmax(1).detach()
    code, out, _ = fedkeel("predict", run, "--input", tmp_path / "images", "--client", names[CLIENT])
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["row"] for row in rows] == [f"{number}.png" for number in range(8)]
    assert [int(row["class"]) for row in rows] == scores.argmax(1).tolist()
    np.testing.assert_allclose([float(row["score"]) for row in rows], scores.max(1).values, atol=2e-6)
    assert out != api.predict(run, input=tmp_path / "images"), "the global model says something else"


def test_a_run_personalised_in_two_ways_needs_to_be_told_which(run: Path, made: Path, fedkeel: Say) -> None:
    for method in ("ft", "lp"):
        personalised(run, method)
    np.savez(run.parent / "x.npz", x=np.asarray(load(stored(made).data).test)[:5])
    name = read(run).start["clients"]["names"][0]
    use = ("predict", run, "--input", run.parent / "x.npz", "--client", name)
    says(fedkeel(*use), "was personalised in 2 ways: say which with --personal")
    says(fedkeel(*use, "--personal", "lq_epochs=2"), "did you mean 'lp_epochs=2'?")
    says(fedkeel(*use[:-2], "--personal", "lp_epochs=2"), "--personal lp_epochs=2: whose model? Add --client NAME")
    results = {way: fedkeel(*use, "--personal", f"{way}_epochs=2") for way in ("ft", "lp")}
    assert all(code == 0 for code, _, _ in results.values())
    assert results["ft"][1] != results["lp"][1]
    says(fedkeel(*use[:-1], "client-9", "--personal", "ft_epochs=2"), "unknown client 'client-9'")


# ---- going on


def test_an_interrupted_one_goes_on_to_the_same_models(run: Path, made: Path, tmp_path: Path) -> None:
    """Stopped after the first client, and again with half a line in the record, as a crash leaves it."""
    whole = personalised(Path(shutil.copytree(made, tmp_path / "whole")))

    def stop(done: int, total: int, accuracy: float | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(
        Stopped, match=r"stopped: fedkeel personalize .*run --method ft --set method.epochs=2 continues"
    ):
        personalised(run, watch=Watch(client=stop))
    events = run / "personal" / "ft_epochs=2" / "events.jsonl"
    assert len(read(events.parent).personal) == 1
    events.write_bytes(events.read_bytes() + b'{"event":"pers')
    first = events.parent / "clients" / f"{whole.personal[0]['name']}.safetensors"
    written = first.stat().st_mtime_ns
    assert values(personalised(run)) == values(whole)
    assert first.stat().st_mtime_ns == written, "a finished client is not trained again"


def test_ctrl_c_three_times_in_a_real_process(run: Path, tmp_path: Path) -> None:
    """In the midst of an epoch that would take days: one line that names the very command, and no traceback."""
    some = ",".join(read(run).start["clients"]["names"][:2])
    given = ["--method", "ft", "--set", "method.epochs=1000000", "--engine", "wire", "--clients", some]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedkeel", "personalize", "run", *given],
        cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    folder, deadline = run / "personal" / "ft_epochs=1000000", time.monotonic() + 120
    while (record := begun(folder)) is None or record.personal_test is None:  # the file is there before its first line
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        time.sleep(0.1)
        process.send_signal(number)
    _, told = process.communicate(timeout=20)
    assert process.returncode == 2
    assert told.splitlines()[-1] == f"fedkeel: stopped: fedkeel personalize run {' '.join(given)} continues"
    assert "Traceback" not in told
    assert read(folder).end is None


def test_an_unfinished_one_does_not_count(run: Path, fedkeel: Say, tmp_path: Path) -> None:
    """Not for predict, not on the page; beside a finished one nobody is asked which; and the command ends it."""

    def stop(done: int, total: int, accuracy: float | None) -> None:
        raise KeyboardInterrupt

    np.savez(tmp_path / "x.npz", x=np.zeros((1, 8, 8, 3), dtype=np.uint8))
    name = read(run).start["clients"]["names"][0]
    use = ("predict", run, "--input", tmp_path / "x.npz", "--client", name)
    with pytest.raises(Stopped):
        personalised(run, watch=Watch(client=stop))
    assert (run / "personal/ft_epochs=2/clients" / f"{name}.safetensors").exists()
    again = f"fedkeel personalize {run} --method ft --set method.epochs=2 continues"
    line = f"{run / 'personal/ft_epochs=2'} is not finished: 1 of 4 clients are done, {again}"
    says(fedkeel(*use), line)
    says(fedkeel(*use, "--personal", "ft_epochs=2"), line)
    assert not ways(groups([read(run)]))
    personalised(run, "lp")
    assert fedkeel(*use)[0] == 0, "lp is the only one that there is"
    assert [way.name for way in ways(groups([read(run)]))] == ["lp"]
    personalised(run)
    says(fedkeel(*use), "was personalised in 2 ways")


def test_some_clients_that_were_asked_for_are_whole_until_more_is_asked_for(
    run: Path, fedkeel: Say, tmp_path: Path
) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 8, 8, 3), dtype=np.uint8))
    first, other, *_ = read(run).start["clients"]["names"]
    record = personalised(run, clients=[first])
    assert record.end is not None
    assert [way.label for way in ways(groups([read(run)]))] == ["ft, epochs=2, of 1 clients"]
    use = ("predict", run, "--input", tmp_path / "x.npz", "--client")
    assert fedkeel(*use, first)[0] == 0
    words = f"{run} --method ft --set method.epochs=2 --clients {other}"
    says(fedkeel(*use, other), f"client {other} has no model", f"not asked for; fedkeel personalize {words} makes it")

    def stop(done: int, total: int, accuracy: float | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Stopped):
        personalised(run, watch=Watch(client=stop))
    assert read(record.folder).end is None, "the end of the first command is not that of the second"
    personalised(run, clients=[first, other])
    assert read(record.folder).end is not None, "both were done"


def test_without_a_method_it_does_what_the_run_did(run: Path, columns: Path, fedkeel: Say, tmp_path: Path) -> None:
    """A head alone after a run that trained one, which ends soon; a network after a network. It is said before."""
    heads = Path(shutil.copytree(columns, tmp_path / "heads"))
    for folder, name, part in (
        (heads, "lp", "lp-ft trains the encoder, too"),
        (run, "lp-ft", "--method lp ends after"),
    ):
        told: list[str] = []
        record = api.personalize(folder, set=QUICK, page=False, watch=Watch(notice=told.append))
        assert record.method == name
        assert told[0].startswith(f"personalising with {name}: ")
        assert part in told[0]
    assert told[-1] == "lp-ft: 4 clients; each trains 1 epoch of 1,290 weights, then 1 epoch of 69,186 weights"
    api.personalize(run, set=QUICK, page=False, watch=Watch(notice=told.append))
    assert "lp-ft: 4 clients, 4 of them done; " in told[-1]


def test_what_is_told_of_the_work_is_what_is_done(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows that go through the network are foreseen: at the end all is done, neither more nor less."""
    monkeypatch.setattr("fedkeel.core.watch.TELL_SECONDS", 0.0)
    for method in ("lp-ft", "soup-ft:models=2", "sparse-ft", "lp"):
        shares: list[float] = []
        personalised(run, method, watch=Watch(share=lambda share, left, to=shares: to.append(share)))
        assert shares == sorted(shares)
        assert len(shares) > 8, "inside of a client, too"
        assert shares[-1] == pytest.approx(1.0, abs=0.02)
        assert sum(share == 1.0 for share in shares) <= 3


def test_one_that_was_stopped_before_the_first_test_has_its_test(run: Path) -> None:
    whole = personalised(run)
    events = whole.folder / "events.jsonl"
    events.write_text(events.read_text().splitlines(keepends=True)[0])
    assert values(personalised(run)) == values(whole)


def test_a_killed_command_goes_on_to_the_same_models(run: Path, made: Path, tmp_path: Path) -> None:
    settings = ("method.epochs=10",)
    words = ["personalize", str(run), "--method", "ft", "--set", *settings]
    process = subprocess.Popen([sys.executable, "-m", "fedkeel", *words], stdout=subprocess.DEVNULL)
    folder, deadline = run / "personal" / "ft_epochs=10", time.monotonic() + 120
    while not list((folder / "clients").glob("[!.]*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -9
    assert len(read(folder).personal) < 4
    whole = personalised(Path(shutil.copytree(made, tmp_path / "whole")), "ft", *settings)
    assert values(personalised(run, "ft", *settings)) == values(whole)


def test_the_same_command_again_does_nothing_new(run: Path) -> None:
    record = personalised(run)
    clients, events = record.folder / "clients", record.folder / "events.jsonl"
    before = {path: path.stat().st_mtime_ns for path in clients.iterdir()}, events.read_bytes()
    assert values(personalised(run)) == values(record)
    assert ({path: path.stat().st_mtime_ns for path in clients.iterdir()}, events.read_bytes()) == before


def test_some_clients_first_and_the_others_later(run: Path, made: Path, tmp_path: Path) -> None:
    whole = personalised(Path(shutil.copytree(made, tmp_path / "whole")))
    names = [event["name"] for event in whole.personal]
    assert [event["name"] for event in personalised(run, clients=[names[2]]).personal] == [names[2]]
    assert values(personalised(run)) == values(whole)


def test_a_damaged_client_file(run: Path, fedkeel: Say) -> None:
    whole = personalised(run)
    path = whole.folder / "clients" / f"{whole.personal[1]['name']}.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    again = ("personalize", run, "--method", "ft", "--set", *QUICK)
    says(
        fedkeel(*again),
        f"{path} is damaged: delete it, and fedkeel personalize {run} with the same --method makes",
    )
    path.unlink()
    assert values(personalised(run)) == values(whole)


def test_another_model_in_the_run_folder_is_refused(run: Path, fedkeel: Say) -> None:
    """Differences to one model mean nothing on another."""
    name = personalised(run).personal[0]["name"]
    model = Model.load(run / "model.safetensors")
    model.shared["head.bias"] += 1
    model.save(run / "model.safetensors")
    says(fedkeel("personalize", run), f"model.safetensors is not the one that {run} ended with: fedkeel run --out")
    (run / "summary.json").unlink()
    folder = run / "personal" / "ft_epochs=2"
    line = f"{folder} was made from another model than the run has now: delete it"
    says(fedkeel("personalize", run, "--method", "ft", "--set", *QUICK), line)
    np.savez(run.parent / "x.npz", x=np.zeros((1, 8, 8, 3), dtype=np.uint8))
    says(fedkeel("predict", run, "--input", run.parent / "x.npz", "--client", name), line)


# ---- runs of other kinds


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny ViT in a folder, as save_pretrained writes it."""
    import transformers
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(1)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.ViTConfig(image_size=16, patch_size=8, **shape)
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(str(folder))
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(str(folder))
    return f"hf:{folder}"


@pytest.mark.parametrize("features", ["centred", "l2"])
def test_a_head_on_a_pretrained_encoder(tmp_path: Path, vit: str, features: str) -> None:
    """lp trains on the run's features, the others the encoder too; all start where the run ended."""
    data = {"encoder": vit, "features": features, "limit": 120}
    run = finished(tmp_path / "run", data=data, method={"name": "fedavg", "rounds": 2, "batch": 16})
    end = read(run).end or {}
    for method, prefixes in (("lp", {"head"}), ("ft", {"head", "body"}), ("lp-ft", {"head", "body"})):
        record = personalised(run, method)
        assert record.personal_test is not None
        assert record.personal_test["before"] == end["per_client"]
        moved = load_client(next((record.folder / "clients").iterdir()))
        assert {name.partition(".")[0] for name in moved} == prefixes
        assert all((event["distortion"] > 0) == ("body" in prefixes) for event in record.personal)
        work = opened(run, method, epochs=2)
        rows, name = work.sites.rows(CLIENT)[:5], record.personal[CLIENT]["name"]
        logits = work.strategy.predict(work.state, trained(work), work.sites.x.pick(rows).read())
        expected = logits.softmax(1).max(1).values
        np.savez(tmp_path / "x.npz", x=np.asarray(load(stored(run).data).train)[rows])
        said = api.predict(run, input=tmp_path / "x.npz", client=name, personal=record.folder.name)
        scores = [float(row["score"]) for row in csv.DictReader(io.StringIO(said))]
        np.testing.assert_allclose(scores, expected.detach(), atol=3e-6)
        assert said != api.predict(run, input=tmp_path / "x.npz")
    strategy = opened(run, "lp-ft").strategy
    assert (strategy.lr, strategy.probe_lr) == (2e-5, 0.01), "small for the encoder; the head's is that of the run"


def test_an_encoder_that_changed_since_the_run_is_refused(tmp_path: Path, vit: str) -> None:
    folder = shutil.copytree(vit.removeprefix("hf:"), tmp_path / "vit")
    data = {"encoder": f"hf:{folder}", "limit": 120}
    run = finished(tmp_path / "run", data=data, method={"name": "fedavg", "rounds": 1})
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-4:] = bytes(4)
    (folder / "model.safetensors").write_bytes(bytes(weights))
    for method in ("lp", "ft"):
        with pytest.raises(FedkeelError, match="is not the one that the run was trained with"):
            personalised(run, method)


def test_a_run_of_adapters(tmp_path: Path, vit: str) -> None:
    """ft trains the adapters and the head; more adapters on top are refused."""
    method = {"name": "lora", "rounds": 1, "batch": 16}
    run = finished(tmp_path / "run", data={"encoder": vit, "limit": 120}, method=method)
    shared = Model.load(run / "model.safetensors").shared
    for name in ("ft", "lp-ft:probe=1", "lp"):
        record = personalised(run, name)
        assert record.personal_test is not None
        assert record.personal_test["before"] == (read(run).end or {})["per_client"]
        moved = load_client(next((record.folder / "clients").iterdir()))
        assert set(moved) == {key for key in shared if name != "lp" or key.startswith("head.")}
        assert any(value.abs().max() > 0 for value in moved.values())
    with pytest.raises(FedkeelError, match="lora-ft adds adapters to a network, but lora has some: use ft or lp-ft"):
        personalised(run, "lora-ft")
    with pytest.raises(
        FedkeelError, match="bias-ft tunes the biases of a network, but lora left them as they were: use"
    ):
        personalised(run, "bias-ft")


@pytest.mark.parametrize("name", ["ova-lp", "ridge", "ncm", "ridge-rf"])
def test_heads_of_other_methods_are_probed_on(tmp_path: Path, name: str) -> None:
    """Their own head, from where it was, with the cross-entropy: the loss on the client's rows goes down."""
    few = {"features": 200} if name == "ridge-rf" else {}
    run = finished(tmp_path / "run", method={"name": name, "rounds": 1, **few})
    record = personalised(run, "lp", "method.epochs=5", "method.lr=0.05")
    assert record.personal_test is not None
    assert record.personal_test["before"] == (read(run).end or {})["per_client"]
    work = opened(run, "lp", epochs=5, lr=0.05)
    rows, y = work.sites.train.of(CLIENT)
    scores = [work.strategy.predict(work.state, tree, rows.read()) for tree in ({}, trained(work))]
    before, after = (float(torch.nn.functional.cross_entropy(score, y)) for score in scores)
    assert after < before


def test_a_method_with_personal_models_is_refused(tmp_path: Path, vit: str) -> None:
    method = {"name": "fedsa-lora", "rounds": 1, "batch": 16}
    run = finished(tmp_path / "run", data={"encoder": vit, "limit": 120}, method=method)
    with pytest.raises(FedkeelError, match="fedsa-lora leaves every client a model of its own already"):
        personalised(run)


# ---- mistakes


def says(done: tuple[int, str, str], *parts: str) -> None:
    """Exit code 2 and one line, with these parts."""
    code, _, told = done
    assert code == 2
    assert "Traceback" not in told
    (line,) = [line for line in told.splitlines() if line.startswith("fedkeel: ")]
    assert told.splitlines()[-1] == line
    for part in parts:
        assert part in line


def test_mistakes_in_the_command_are_one_line(run: Path, fedkeel: Say) -> None:
    def told(*words: str) -> tuple[int, str, str]:
        done: tuple[int, str, str] = fedkeel("personalize", run, *words)
        return done

    says(told("--method", "lp-tf"), "unknown way to personalise 'lp-tf'", "did you mean 'lp-ft'?")
    says(told("--method", "fedavg"), "unknown way to personalise 'fedavg'")
    says(told("--clients", "client-77"), "unknown client 'client-77'")
    says(told("--set", "data.source=cifar10"), "a run keeps its data, split and seed", "set method.* only")
    says(told("--set", "method.name=ft"), "--method names the way to personalise")
    says(told("--set", "method.rounds=3"), "method.rounds means nothing to lp-ft")
    says(told("--set", "method.probe=16"), "probe = 16 of epochs = 15: probing is part of the epochs, lower it")
    says(told("--method", "sparse-ft", "--set", "method.weight_decay=0.1"), "weight decay would move the weights")
    says(told("--method", "ft", "--set", "method.probe=3"), "unknown key 'method.probe'")
    says(told("--method", "lora-ft"), "encoder cnn is no transformer")
    says(told("--engine", "nonsense"), "nonsense", "local")
    with pytest.raises(FedkeelError, match="unknown engine 'nonsense'"):
        api.personalize(run, engine="nonsense")
    assert not (run / "personal").exists(), "nothing is left behind"
    np.savez(run.parent / "x.npz", x=np.zeros((1, 8, 8, 3), dtype=np.uint8))
    says(
        fedkeel("predict", run, "--input", run.parent / "x.npz", "--client", "a"),
        "has no personal models",
        "makes them",
    )


def test_runs_that_cannot_be_personalised_are_told_in_one_line(
    run: Path, columns: Path, fedkeel: Say, tmp_path: Path
) -> None:
    says(fedkeel("personalize", tmp_path / "nowhere"), f"{tmp_path / 'nowhere'} holds no run")
    says(
        fedkeel("personalize", columns, "--method", "lp-ft"),
        "lp-ft trains the encoder, which this run cannot",
        "--method lp",
    )
    pixels = finished(tmp_path / "pixels", method={"name": "fedavg", "rounds": 1})
    says(fedkeel("personalize", pixels, "--method", "ft"), "encoder pixels has no network to train", "--method lp")
    (run / "model.safetensors").unlink()
    says(fedkeel("personalize", run), f"the run is not finished: fedkeel run --out {run} --resume makes it")


def test_settings_of_runs_that_only_personalising_or_validation_knows(fedkeel: Say, tmp_path: Path) -> None:
    line = "method lp-ft personalises a finished run", "fedkeel personalize RUN --method lp-ft"
    says(fedkeel("run", "--set", "method.name=lp-ft", "--out", tmp_path / "run"), *line)
    says(fedkeel("run", "--set", "run.keep=best", "--out", tmp_path / "run"), "set partition.validation, e.g. 0.1")
    assert not (tmp_path / "run").exists()


def test_clients_that_have_too_little(columns: Path, tmp_path: Path) -> None:
    """A client with one class keeps the global model, one with few rows is told what to set: a line for each."""
    run = Path(shutil.copytree(columns, tmp_path / "run"))
    told: list[str] = []
    record = personalised(run, "lp", watch=Watch(notice=told.append))
    one, few, _ = told
    assert one.startswith("rows of one class only: client south; ")
    assert one.endswith("the global model stays")
    assert few.startswith("fewer rows than a batch of 16: client west; each epoch is one step, lower method.batch to 2")
    assert [event["name"] for event in record.personal] == ["east", "north", "west"]
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 5), dtype=np.float32))
    with pytest.raises(
        FedkeelError, match=r"client south has no model in .*: it keeps the global one; leave out --client"
    ):
        api.predict(run, input=tmp_path / "x.npz", client="south")
    with pytest.raises(FedkeelError, match="client south has rows of 1 class: a personal model needs two") as error:
        personalised(run, "lp", clients=["south"])
    assert "\n" not in str(error.value)
