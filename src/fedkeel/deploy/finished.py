"""What a site has of a finished run: a run folder of its own, with the global model and what it keeps for itself."""

from __future__ import annotations

from pathlib import Path

import torch

from fedkeel import __version__
from fedkeel.core.atomic import write_atomically
from fedkeel.core.errors import FedkeelError
from fedkeel.core.message import Down
from fedkeel.core.method import State
from fedkeel.core.tree import Tree
from fedkeel.deploy.settings import SiteSettings
from fedkeel.deploy.worker import Worker
from fedkeel.engines.flower.engine import PREPARED_MEAN
from fedkeel.metrics.calibration import own_temperature
from fedkeel.runs.events import EVENTS, Log
from fedkeel.runs.folder import CONFIG, MANIFEST, sealed
from fedkeel.runs.model import MODEL, Model, client_file, save_client
from fedkeel.runs.simulate import about_clients, about_data

RUN = "run"
TEMPERATURE = "finish.temperature"


def sent(model: Model) -> Tree:
    """A finished model as the arrays of a request."""
    arrays = dict(model.shared)
    if model.mean is not None:
        arrays[PREPARED_MEAN] = model.mean
    if model.temperature is not None:
        arrays[TEMPERATURE] = torch.tensor([model.temperature], dtype=torch.float64)
    return arrays


def keep_finished(worker: Worker, down: Down) -> None:
    """Write the run folder, or write it anew: a run may be finished again, with sites that came late."""
    site, federation, arrays = worker.site, worker.federation, dict(down.arrays)
    mean, temperature = arrays.pop(PREPARED_MEAN, None), arrays.pop(TEMPERATURE, None)
    data = {**site.experiment.data.model_dump(), **worker.terms.about_encoder(site.encoder_here)}
    fitted = None if temperature is None else float(temperature[0])
    model = Model(worker.terms.trains, arrays, mean, data, worker.terms.classes, temperature=fitted)
    folder = site.kept / RUN
    folder.mkdir(exist_ok=True)
    (folder / EVENTS).unlink(missing_ok=True)
    federation.manifest.save(folder / MANIFEST)
    write_atomically(folder / CONFIG, sealed(site.experiment.toml()))
    with Log(folder / EVENTS) as log:
        tested = 0 if worker.raw.test is None else len(worker.raw.test.owned.rows)
        log.write(
            "start", version=__version__, config=site.experiment.model_dump(mode="json"),
            data=about_data(federation, None, tested), clients=about_clients(federation, [0]),
        )  # fmt: skip
        own = _own_model(worker, model, down.accepted, log)
        seal = model.save(folder / MODEL)
        log.write("end", digest=model.digest, model=seal, own=own)


def _own_model(worker: Worker, model: Model, accepted: int, log: Log) -> list[str]:
    """What the site keeps of its own beside the global model, if its method leaves it anything."""
    name = worker.site.name
    mine = worker.store.read(name, accepted) if model.method.personal else None
    if mine is None:
        return []
    save_client(client_file(log.folder, name), mine)
    rows, labels = worker.rows(model.mean).rows("validation")
    temperature = None
    if len(labels):
        with torch.inference_mode():
            temperature = own_temperature(
                model.method, model.method.predict(State(model.shared), mine, rows.read()), labels
            )
    log.write("personal", client=0, name=name, rows=len(worker.raw.owned.rows), on=[None], temperature=temperature,
              distortion=None, seconds={}, flops={})  # fmt: skip
    return [name]


def finished_run(site: SiteSettings) -> Path:
    """Where the finished run is, for commands that use one."""
    folder = site.kept / RUN
    if not (folder / MODEL).exists():
        raise FedkeelError(f"site {site.name} has no finished model yet: it comes when the server's run ends")
    return folder
