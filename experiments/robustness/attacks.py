"""Robust rules against attacks by the share of malicious clients, in FedAvg and in FedBuff.

Each rule has its own learning rate, and in FedBuff also its own server learning rate, chosen on
held-out images without attackers. At 20 % malicious every pair of a rule and an attack is also run
at rates that were chosen under that attack at 20 %. The protocol is otherwise that of
`fedjax_sim.studies.tuning`; grids are not widened.

All rules, and all attacks, are lanes of one program: lanes run one after another, so that only the
rule and the attack of a lane are executed.

FedBuff acts on as many messages as FedAvg, so that rules face the same number of malicious ones on
average, and all clients are equally fast, so that all are heard equally often. What is left between
the two is the age of messages: the buffer has those of clients that started some server steps ago.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import xarray as xr

import fedjax_sim
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study
from experiments.harness.images import dirichlet_problems, pooled
from experiments.robustness.pictures import pictures
from experiments.robustness.verdicts import SHARES, judge, told
from fedjax_sim import datasets, models, studies
from fedjax_sim.datasets import Dataset
from fedjax_sim.problems import Classification
from fedjax_sim.server import attacks, rules
from fedjax_sim.server.rules import CentredClipping, Krum, Mean, Median, Rule, TrimmedMean
from fedjax_sim.studies import Contestant, Criterion, Tuned
from fedjax_sim.systems import fedavg, fedbuff

FIRST_TUNING_SEED = 1000
"""Seeds of tuning are counted from here, and those of the results from 0."""
HELD_OUT = 0.1
"""Share of the training images on which rates are chosen."""
NUM_EVALS = 20
"""Evaluations of a run, of which the last three count."""
TUNED_AT = 0.2
"""Share of malicious clients under which rates are chosen a second time."""
RATES = (0.03, 0.1, 0.3, 1.0)
"""The grid of the learning rate of local steps."""
SERVER_RATES = (0.1, 0.3, 1.0)
"""The grid of FedBuff's server learning rate. FedAvg's is 1."""
SHARED: dict[str, Any] = {"local_steps": 10, "batch_size": 32, "rate_spread": 0.0}
"""Settings of both systems. Running times are exponential, of the same mean for all clients."""
ATTACKS: dict[str, attacks.Attack] = {
    "sign flip": attacks.SignFlip(scale=3.0),
    "noise": attacks.Gaussian(deviation=10.0),
    "ALIE": attacks.ALittleIsEnough(),
    "inner product": attacks.InnerProduct(strength=0.5),
    "min-max": attacks.MinMax(),
}
"""Two attacks of clients that know their own message only, and three of those that know all.

The first two are the oldest, gross and easy to see. ALIE hides within the spread of honest
messages, the inner product attack near their mean, and min-max is as far away as they are apart.
Mimic is left out: its messages are honest ones.
"""
ONE_AFTER_ANOTHER = fedjax_sim.Layout(lanes_at_once=False)

STUDY = Study(
    full=Sizes(
        10,
        dataset="fashion_mnist",
        side=7,
        clients=100,
        heard=20,
        at_work=40,
        rounds=100,
        alpha=0.3,
        tuning_seeds=2,
        rates=RATES,
        server_rates=SERVER_RATES,
        shares=SHARES,
        rules=5,
        attacks=tuple(ATTACKS),
        network=partial(models.MLP, (32,)),
    ),
    smoke=Sizes(
        2,
        dataset="digits",
        side=4,
        clients=20,
        heard=7,
        at_work=10,
        rounds=4,
        alpha=0.3,
        tuning_seeds=1,
        rates=RATES[1:2],
        server_rates=SERVER_RATES[1:2],
        shares=(TUNED_AT,),
        rules=2,
        attacks=("sign flip", "noise"),
        network=partial(models.MLP, (8,)),
        words="handwritten digits, 20 clients, two rules, two attacks",
    ),
)


def rules_of(sizes: Any) -> dict[str, Rule]:
    """List the rules.

    Krum and the trimmed mean expect as many malicious messages as Krum can withstand, f with
    2 f + 2 < n: 8 of 20. The radius of centred clipping is the default.
    """
    assumed = (sizes.heard - 3) // 2
    found: dict[str, Rule] = {
        "mean": Mean(),
        "Krum": Krum(assumed=assumed),
        "median": Median(),
        "trimmed mean": TrimmedMean(share=assumed / sizes.heard),
        "centred clipping": CentredClipping(),
    }
    chosen = dict(list(found.items())[: sizes.rules])
    return dict(zip(chosen, rules.rules_of_one_program(list(chosen.values())), strict=True))


def contests(sizes: Any) -> dict[str, Contestant]:
    """List the systems. Staleness has no weight, as some of the rules do not weigh."""
    shared = {**SHARED, "num_clients": sizes.clients}
    buffered: Any = fedbuff.Hyper(**shared, buffer_size=sizes.heard, concurrency=sizes.at_work)
    rates, waiting = {"lr": sizes.rates}, fedavg.Hyper(**shared, num_selected=sizes.heard)
    both = {**rates, "server_lr": sizes.server_rates}
    return {
        "FedAvg": Contestant(fedavg.system, waiting, rates),
        "FedBuff": Contestant(fedbuff.system, buffered.replace(rule="mean"), both),
    }


def run(arguments: Arguments) -> Outcome:
    """Tune all rules in both systems, run them against all attacks, judge, and draw."""
    sizes = STUDY.choose(arguments)
    data = pooled(datasets.load(sizes.dataset, data_dir=arguments.data_dir), sizes.side)
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + sizes.tuning_seeds)
    of_tuning = _problems(sizes, studies.hold_out(data, HELD_OUT), seeds)
    of_test = _problems(sizes, data, range(sizes.seeds))
    found = {
        name: measure(name, contest, sizes, arguments, (seeds, of_tuning), of_test)
        for name, contest in contests(sizes).items()
    }
    tuned = {f"{name}, {rule}": t for name, each in found.items() for rule, t in each.tuned.items()}
    curves = {name: c for each in found.values() for name, c in each.curves.items()}
    chosen = {name: each.chosen for name, each in found.items()}
    inputs = {
        "ends": {name: each.ends for name, each in found.items()},
        "own": {name: each.own for name, each in found.items()},
        "chance": 100 / data.num_classes,
        "dataset": data.name,
        "reduced": sizes.words,
        "smoke": arguments.smoke,
    }
    facts = {
        **{name: value for name, value in sizes.config().items() if name != "network"},
        "dataset": data.name,
        "reduced": sizes.words,
        "rules": {name: str(rule.chosen) for name, rule in rules_of(sizes).items()},
        "attacks": {name: str(ATTACKS[name]) for name in sizes.attacks},
        "chosen": chosen,
    }
    verdicts = judge(inputs)
    title = f"{data.name}, {sizes.clients} clients, Dirichlet({sizes.alpha:g})"
    figures = pictures(inputs, tuned, title)
    return Outcome(curves, figures, verdicts, facts, told(inputs, chosen), inputs)


def _problems(sizes: Any, data: Dataset, seeds: Sequence[int]) -> list[Classification]:
    """Make the problem of each seed."""
    return dirichlet_problems(
        sizes.network, data, num_clients=sizes.clients, alpha=sizes.alpha, seeds=seeds
    )


class Found(NamedTuple):
    """What the runs of one system found.

    Attributes:
      tuned: The choice of every rule's rates without attackers.
      ends: Accuracies in percent by rule, and by attack and share, or "none".
      own: Those at rates chosen under an attack, by rule and attack.
      chosen: All chosen rates by rule and attack.
      curves: The curves of all sweeps.
    """

    tuned: dict[str, Tuned]
    ends: dict[str, dict[str, Any]]
    own: dict[str, dict[str, Sample]]
    chosen: dict[str, dict[str, dict[str, float]]]
    curves: dict[str, xr.Dataset]


def measure(
    system: str,
    contest: Contestant,
    sizes: Any,
    arguments: Arguments,
    tuning: tuple[Sequence[int], list[Classification]],
    of_test: list[Classification],
) -> Found:
    """Tune every rule, and run it without and with attacks, and at rates chosen under each attack.

    Sweeps that vary the same settings and have equally many lanes share their programs. So each
    kind of tuning, with its seeds and their problems, is one sweep, and rules with different rates
    run in sweeps of equal shape.
    """
    of_rules, names = rules_of(sizes), sizes.attacks
    made = attacks.attacks_of_one_program([ATTACKS[name] for name in names])
    all_rules: dict[str, Any] = {"aggregator": list(of_rules.values())}
    all_attacks = {"adversary.attack": list(made)}
    curves: dict[str, xr.Dataset] = {}

    def ends_of(
        name: str, seeds: Sequence[int], problem: Any, swept: Any = None, **given: Any
    ) -> xr.DataArray:
        """Run lanes one after another; return final accuracies, 0 where a lane diverged."""
        name = f"{system}, {name}"
        curves[name] = fedjax_sim.sweep(
            contest.system,
            problem,
            contest.hyper.replace(**given),
            seeds=seeds,
            settings=swept,
            budget=fedjax_sim.Ticks(sizes.rounds),
            num_evals=NUM_EVALS,
            layout=ONE_AFTER_ANOTHER,
            watch=fedjax_sim.Watch(progress=True),
            **arguments.kept(name),
        ).curves
        return Criterion().values(curves[name])

    def tested(name: str, rule: str, choice: Any, swept: Any = None, **given: Any) -> xr.DataArray:
        how = {"aggregator": of_rules[rule], **choice, **given}
        return ends_of(f"{rule}, {name}", range(sizes.seeds), of_test, swept, **how)

    scores = ends_of("tuning", *tuning, {**all_rules, **contest.grid})
    tuned = {rule: studies.choose(_taken(scores, aggregator=i)) for i, rule in enumerate(of_rules)}
    ends: dict[str, dict[str, Any]] = {}
    for rule, each in tuned.items():
        ends[rule] = {"none": sample_of(tested("no attack", rule, each.choice))}
        swept: dict[str, Any] = {**all_attacks, "malicious": list(sizes.shares)}
        found = tested("attacks", rule, each.choice, swept)
        for i, attack in enumerate(names):
            ends[rule][attack] = {
                f"{share:.0%}": sample_of(_taken(found, attack=i, malicious=j))
                for j, share in enumerate(sizes.shares)
            }
    swept = {**all_rules, **all_attacks, **contest.grid}
    scores = ends_of("tuning under attack", *tuning, swept, malicious=TUNED_AT)
    own: dict[str, dict[str, Sample]] = {rule: {} for rule in of_rules}
    chosen = {rule: {"none": each.choice} for rule, each in tuned.items()}
    for i, rule in enumerate(of_rules):
        for j, attack in enumerate(names):
            choice = studies.choose(_taken(scores, aggregator=i, attack=j)).choice
            if choice == tuned[rule].choice:
                own[rule][attack] = ends[rule][attack][f"{TUNED_AT:.0%}"]
            else:
                how = {"attack": made[j], "malicious": TUNED_AT}
                own[rule][attack] = sample_of(tested(f"{attack}, own rates", rule, choice, **how))
            chosen[rule][attack] = choice
    return Found(tuned, ends, own, chosen, curves)


def _taken(scores: xr.DataArray, **places: int) -> xr.DataArray:
    """Take places along swept settings, which are given by the last part of their names."""
    dims = {str(dim).rpartition(".")[2]: dim for dim in scores.dims}
    taken = scores.isel({dims[name]: place for name, place in places.items()})
    return taken.drop_vars([name for name in taken.coords if name not in taken.dims])


def sample_of(accuracy: xr.DataArray) -> Sample:
    """Return accuracies by seed in percent."""
    return Sample.of(100 * accuracy.values.astype(float))
