"""Hierarchical FL's Fig. 11: next characters of plays, 20 + 20 against 30 + 10 clients (claim 21).

See arXiv 2302.04851. An LSTM, S = 12. The speakers of a text (`--dataset FILE.txt`, by default
tiny_shakespeare) are dealt to 40 clients. `--reduced` has one layer of 64 GRU cells and five local
steps of batches of 8 in an iteration: after single steps no network is far above always naming the
most frequent character. The groups' idle time expected by theory is reported too.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from experiments.harness import LEAST_LEAD, Arguments, Outcome, Sizes, Study, Verdict
from experiments.hierarchical import setup
from experiments.hierarchical.formulas.delays import linear_delays
from fedjax_sim import datasets, partition, problems
from fedjax_sim.datasets import Text
from fedjax_sim.models import CharacterRNN
from fedjax_sim.theory.hierarchical import expected_idle, expected_rounds

FULL = Sizes(
    10,
    dataset="tiny_shakespeare",
    time=1000.0,
    lrs=(2.0, 4.0, 8.0),
    network=CharacterRNN,
    steps=1,
    batch=32,
)
STUDY = Study(
    full=FULL,
    reduced=FULL.replace(
        network=partial(CharacterRNN, hidden=(64,), cell="gru"),
        steps=5,
        batch=8,
        words="five steps of batches of 8 in place of one of 32 in an iteration, "
        "GRU cells in place of LSTM cells",
    ),
    smoke=Sizes(
        2,
        dataset="a made-up play",
        time=60.0,
        lrs=(1.0,),
        network=partial(CharacterRNN, embedding=4, hidden=(8,), cell="gru"),
        steps=1,
        batch=4,
    ),
)
SMOKE = "not judged: a smoke run on a made-up play is too small"
NUM_CLIENTS = 40
EQUAL, UNEQUAL = "20 + 20", "30 + 10"
SIZES = {EQUAL: (20, 20), UNEQUAL: (30, 10)}


def made_up_play() -> Text:
    """Make up fifty speakers of a few words each, drawn at random."""
    random = np.random.default_rng(0)
    words = ["to", "be", "or", "not", "that", "is", "the", "question"]
    speeches = [f"SPEAKER {i}:\n" + " ".join(random.choice(words, 40)) for i in range(50)]
    return datasets.from_text(
        "\n\n".join(speeches), sequence_length=20, min_characters=40, name="made-up play"
    )


def deal(data: Text, seed: int) -> Any:
    """Give each speaker to a client at random, equally many to each."""
    client_of = np.random.default_rng(seed).permutation(len(data.speakers)) % NUM_CLIENTS
    return partition.natural(
        data.train_speakers,
        client_ids=client_of[data.train_speakers],
        num_clients=NUM_CLIENTS,
        seed=seed,
    )


def run(arguments: Arguments) -> Outcome:
    """Run both associations, and judge the claim."""
    size = STUDY.choose(arguments)
    data = (
        made_up_play()
        if arguments.smoke
        else datasets.load_text(size.dataset, data_dir=arguments.data_dir)
    )
    parts = [deal(data, seed) for seed in range(size.seeds)]
    tasks = problems.make_next_characters(size.network(data.num_classes), data, parts)
    training = {"client_steps": size.steps, "batch_size": size.batch}
    curves: dict[str, xr.Dataset] = {}
    idle, rounds = {}, {}
    for name, sizes in SIZES.items():
        curves[name] = setup.play(
            arguments,
            size,
            name,
            tasks,
            setup.clock(sizes, setup.FIG11, group_sizes=sizes, sync_time=12.0) | training,
        )
        law = linear_delays(sizes, setup.FIG11)
        idle[name] = expected_idle(12.0, law).round(2).tolist()
        rounds[name] = expected_rounds(12.0, law, system_time=1000.0)
    ends = {name: setup.final(each, size.time) for name, each in curves.items()}
    lr = setup.best_lr(ends[EQUAL])
    leads = setup.leads(ends[EQUAL], ends[UNEQUAL])
    inputs = setup.inputs_of(
        arguments,
        STUDY,
        size,
        leads=leads,
        idle=idle,
        rounds=rounds,
        ends=setup.spreads(ends),
        chance=100 * tasks[0].chance()["accuracy"],
    )
    figures = setup.pictures(
        {name: each.sel(lr=lr) for name, each in curves.items()},
        "fig11",
        f"{setup.words_of(size)}, S = 12, lr {lr:g}",
    )
    return setup.outcome(size, curves, figures, judge(inputs), inputs=inputs)


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claim 21: the equal split is ahead by its leads at learning rates that suit a run."""
    leads = setup.read_leads(inputs["leads"])
    judged = {
        rate: {f"{EQUAL} over {UNEQUAL}": each.above(LEAST_LEAD)} for rate, each in leads.items()
    }
    parts = setup.by_rate(inputs, judged, inputs["ends"])
    idle, rounds = inputs["idle"], inputs["rounds"]
    why = (
        f"{EQUAL} ahead of {UNEQUAL} at T, points: {setup.by_lr(leads)}; expected idle time "
        f"{idle[EQUAL]} and {idle[UNEQUAL]}, "
        f"rounds by 1000 {rounds[EQUAL]:.1f} and {rounds[UNEQUAL]:.1f}"
    )
    measured = {
        "leads": {rate: each._asdict() for rate, each in leads.items()},
        "idle": idle,
        "rounds": rounds,
        "accuracy at T, %": setup.described(inputs),
    }
    return [setup.settle(inputs, 21, measured, parts, why, smoke=SMOKE)]
