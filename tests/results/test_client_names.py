"""Results of single clients carry their names: of a run, saved, resumed, and joined of parts."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import problems
from fedjax_sim.results.runs import join_runs

FEDAVG = fedjax_sim.SYSTEMS["fedavg"]
INPUTS = np.linspace(-1, 1, 16, dtype="float32").reshape(8, 2)
NAMES: dict[str, list[Any]] = {
    "texts": ["Oslo", "a, b", "Oslo", "ß", "a, b", "ß", "Oslo", "Oslo"],
    "texts that are numbers": ["10", "9", "10", "08", "9", "08", "10", "10"],
    "numbers": [40, 7, 40, 12, 7, 12, 40, 40],
}


class Linear:
    """A linear model."""

    def init(self, key: Any, x: Any) -> Any:
        return {"w": jnp.zeros(2)}

    def apply(self, params: Any, x: Any) -> Any:
        return x @ params["w"]


def problem_of(clients: list[Any]) -> Any:
    targets = INPUTS[:, 0] * 3
    return problems.supervised(
        Linear(),
        problems.squared_error,
        (INPUTS, targets),
        clients=clients,
        per_client=True,
        test=0.5,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", NAMES)
def test_names_of_clients_stay_with_their_results(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(NAMES[kind])
    hyper = FEDAVG.Hyper(num_clients=3, num_selected=2, local_steps=1, batch_size=1)
    budget = fedjax_sim.Ticks(4)

    def run(**options: Any) -> fedjax_sim.Run:
        options = {"seeds": 2, "num_evals": 2} | options
        return fedjax_sim.sweep(FEDAVG, problem, hyper, budget=budget, **options)

    def check(found: fedjax_sim.Run) -> None:
        assert found.curves["client"].values.tolist() == sorted(set(NAMES[kind]))
        # The value under a name is that of the client of this name.
        (name,) = (each for each in found.curves if "client" in found.curves[each].dims)
        model = jax.tree.map(lambda leaf: leaf[0], found.models)
        errors = (INPUTS @ model["w"] - INPUTS[:, 0] * 3) ** 2
        for client in set(NAMES[kind]):
            number = problem.client_ids.index(client)
            held = problem.test_held
            rows = held.at(number, np.arange(held.counts[number]))
            assert {NAMES[kind][row] for row in rows} == {client}
            value = found.curves[name].isel(seed=0, eval=-1).sel(client=client)
            np.testing.assert_allclose(value, errors[rows].mean(), rtol=1e-5)

    whole = run()
    check(whole)
    whole.save(tmp_path / "saved")
    loaded = fedjax_sim.load(tmp_path / "saved")
    check(loaded)
    assert loaded.curves.identical(whole.curves)
    joined = join_runs([run(lanes=[1]), run(lanes=[0])])
    check(joined)
    assert joined.curves.drop_attrs().identical(whole.curves.drop_attrs())
    # A finished run that is resumed reads its result; a killed one goes on.
    checkpoints = fedjax_sim.Checkpoints(tmp_path / "checkpoints", every=0)
    run(checkpoints=checkpoints)
    again = fedjax_sim.Checkpoints(tmp_path / "checkpoints", every=0, resume=True)
    check(run(checkpoints=again))


@pytest.mark.slow
def test_a_table_of_clients_is_read_back_by_names(tmp_path: Path) -> None:
    """Rows of the loaded table belong to the clients that they belonged to."""
    problem = problem_of(NAMES["texts"])
    table = fedjax_sim.timelines.ClientTable(
        rate=[0.5, 3.0, 7.0], names=["ß", "Oslo", "a, b"], available=[[(0.0, 1e-5)], [], []]
    )
    hyper = FEDAVG.Hyper(
        num_clients=3, num_selected=2, local_steps=1, batch_size=1, client_table=table
    )
    run = fedjax_sim.simulate(FEDAVG, problem, hyper, budget=fedjax_sim.Ticks(2), num_evals=1)
    run.save(tmp_path)
    loaded = fedjax_sim.load(tmp_path)
    for found in (run, loaded):
        rows = found.hypers[0].delays.client_table
        rates = dict(zip(rows.names, rows.rate, strict=True))
        assert rates == {"ß": 0.5, "Oslo": 3.0, "a, b": 7.0}
        assert list(rows.names) == found.curves["client"].values.tolist()
    again = fedjax_sim.simulate(
        FEDAVG, problem, loaded.hypers[0], budget=fedjax_sim.Ticks(2), num_evals=1
    )
    np.testing.assert_array_equal(again.timelines[0].time, run.timelines[0].time)
