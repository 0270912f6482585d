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

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import xarray as xr

import fedjax_sim
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study
from experiments.harness.images import dirichlet_problems, pooled
from experiments.robustness.pictures import pictures
from experiments.robustness.verdicts import SHARES, judge, told
from fedjax_sim import datasets, models, studies
from fedjax_sim.core.types import System
from fedjax_sim.datasets import Dataset
from fedjax_sim.problems import Classification
from fedjax_sim.server import attacks, rules
from fedjax_sim.server.rules import CentredClipping, Krum, Mean, Median, Rule, TrimmedMean
from fedjax_sim.studies import Criterion, Tuned
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


class Contest(NamedTuple):
    """One of the two systems, with what is tuned.

    Attributes:
      name: The system's name.
      system: The system.
      hyper: Settings that all lanes share.
      grid: Values of each tuned setting by name.
    """

    name: str
    system: System
    hyper: Any
    grid: Mapping[str, Sequence[float]]


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


def contests(sizes: Any) -> list[Contest]:
    """List the systems. Staleness has no weight, as some of the rules do not weigh."""
    shared = {**SHARED, "num_clients": sizes.clients}
    buffered: Any = fedbuff.Hyper(**shared, buffer_size=sizes.heard, concurrency=sizes.at_work)
    buffered = buffered.replace(rule="mean")
    rates = {"lr": sizes.rates}
    return [
        Contest("FedAvg", fedavg.system, fedavg.Hyper(**shared, num_selected=sizes.heard), rates),
        Contest("FedBuff", fedbuff.system, buffered, {**rates, "server_lr": sizes.server_rates}),
    ]


def run(arguments: Arguments) -> Outcome:
    """Tune all rules in both systems, run them against all attacks, judge, and draw."""
    sizes = STUDY.choose(arguments)
    data = pooled(datasets.load(sizes.dataset, data_dir=arguments.data_dir), sizes.side)
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + sizes.tuning_seeds)
    of_tuning = _problems(sizes, studies.hold_out(data, HELD_OUT), seeds)
    of_test = _problems(sizes, data, range(sizes.seeds))
    ends: dict[str, Any] = {}
    own: dict[str, Any] = {}
    chosen: dict[str, Any] = {}
    tuned: dict[str, Tuned] = {}
    curves: dict[str, xr.Dataset] = {}
    for contest in contests(sizes):
        found = _Runs(contest, sizes, arguments, of_tuning, of_test)
        tuned |= {f"{contest.name}, {rule}": each for rule, each in found.tune().items()}
        ends[contest.name], own[contest.name], chosen[contest.name] = found.measure()
        curves |= found.curves
    inputs = {
        "ends": ends,
        "own": own,
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


class _Runs:
    """The runs of one system.

    Sweeps that vary the same settings and have equally many lanes share their programs. So each
    kind of tuning is one sweep, and rules with different rates run in sweeps of equal shape.
    """

    def __init__(
        self,
        contest: Contest,
        sizes: Any,
        arguments: Arguments,
        of_tuning: list[Classification],
        of_test: list[Classification],
    ):
        """Take the system, the sizes, and the problems of each seed."""
        self._contest, self._sizes, self._arguments = contest, sizes, arguments
        self._of_tuning, self._of_test = of_tuning, of_test
        self._rules = rules_of(sizes)
        names = sizes.attacks
        made = attacks.attacks_of_one_program([ATTACKS[name] for name in names])
        self._attacks = dict(zip(names, made, strict=True))
        self._tuned: dict[str, Tuned] = {}
        self.curves: dict[str, xr.Dataset] = {}

    def tune(self) -> dict[str, Tuned]:
        """Choose the rates of every rule without attackers, by rule."""
        swept = {"aggregator": list(self._rules.values()), **self._contest.grid}
        scores = self._tuning("tuning", swept)
        self._tuned = {
            rule: studies.choose(_taken(scores, aggregator=place))
            for place, rule in enumerate(self._rules)
        }
        return self._tuned

    def measure(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Run every rule without and with attacks, and with rates chosen under each attack.

        Returned are accuracies in percent by rule and by attack and share; those at rates
        chosen under each attack, by rule and attack; and all chosen rates, by rule and
        attack.
        """
        shares = self._sizes.shares
        swept = {"adversary.attack": list(self._attacks.values()), "malicious": list(shares)}
        ends: dict[str, dict[str, Any]] = {}
        for rule, each in self._tuned.items():
            clean = self._test(f"{rule}, no attack", rule, each.choice)
            found = self._test(f"{rule}, attacks", rule, each.choice, settings=swept)
            ends[rule] = {"none": sample_of(clean)} | {
                attack: {
                    f"{share:.0%}": sample_of(_taken(found, attack=i, malicious=j))
                    for j, share in enumerate(shares)
                }
                for i, attack in enumerate(self._attacks)
            }
        chosen = self._tune_under_attack()
        own = {
            rule: {
                attack: ends[rule][attack][f"{TUNED_AT:.0%}"]
                if choice == self._tuned[rule].choice
                else sample_of(
                    self._test(
                        f"{rule}, {attack}, own rates",
                        rule,
                        choice,
                        attack=self._attacks[attack],
                        malicious=TUNED_AT,
                    )
                )
                for attack, choice in of_rule.items()
            }
            for rule, of_rule in chosen.items()
        }
        clean_choice = {rule: {"none": each.choice} for rule, each in self._tuned.items()}
        return ends, own, {rule: clean_choice[rule] | chosen[rule] for rule in chosen}

    def _tune_under_attack(self) -> dict[str, dict[str, dict[str, float]]]:
        """Choose the rates of every rule under every attack, by rule and attack."""
        swept = {
            "aggregator": list(self._rules.values()),
            "adversary.attack": list(self._attacks.values()),
            **self._contest.grid,
        }
        scores = self._tuning("tuning under attack", swept, malicious=TUNED_AT)
        return {
            rule: {
                attack: studies.choose(_taken(scores, aggregator=i, attack=j)).choice
                for j, attack in enumerate(self._attacks)
            }
            for i, rule in enumerate(self._rules)
        }

    def _tuning(self, name: str, swept: Mapping[str, Sequence[Any]], **given: Any) -> xr.DataArray:
        """Run all points of a grid on the problems of tuning, and score them."""
        first = FIRST_TUNING_SEED
        seeds = range(first, first + self._sizes.tuning_seeds)
        hyper = self._contest.hyper.replace(**given)
        return self._sweep(name, self._of_tuning, hyper, seeds, swept)

    def _test(
        self,
        name: str,
        rule: str,
        choice: Mapping[str, float],
        *,
        settings: Mapping[str, Sequence[Any]] | None = None,
        **given: Any,
    ) -> xr.DataArray:
        """Run a rule at chosen rates on the problems of the results."""
        hyper = self._contest.hyper.replace(aggregator=self._rules[rule], **choice, **given)
        return self._sweep(name, self._of_test, hyper, range(self._sizes.seeds), settings)

    def _sweep(
        self,
        name: str,
        of_seeds: list[Classification],
        hyper: Any,
        seeds: Sequence[int],
        swept: Mapping[str, Sequence[Any]] | None,
    ) -> xr.DataArray:
        """Run lanes one after another; return final accuracies, 0 where a lane diverged."""
        name = f"{self._contest.name}, {name}"
        ran = fedjax_sim.sweep(
            self._contest.system,
            of_seeds,
            hyper,
            seeds=seeds,
            settings=swept,
            budget=fedjax_sim.Ticks(self._sizes.rounds),
            num_evals=NUM_EVALS,
            layout=ONE_AFTER_ANOTHER,
            watch=fedjax_sim.Watch(progress=True),
            **self._arguments.kept(name),
        ).curves
        self.curves[name] = ran
        return Criterion().values(ran)


def _taken(scores: xr.DataArray, **places: int) -> xr.DataArray:
    """Take places along swept settings, which are given by the last part of their names."""
    dims = {str(dim).rpartition(".")[2]: dim for dim in scores.dims}
    taken = scores.isel({dims[name]: place for name, place in places.items()})
    return taken.drop_vars([name for name in taken.coords if name not in taken.dims])


def sample_of(accuracy: xr.DataArray) -> Sample:
    """Return accuracies by seed in percent."""
    return Sample.of(100 * accuracy.values.astype(float))
