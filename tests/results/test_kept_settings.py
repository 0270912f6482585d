"""Settings as texts and containers as JSON: what comes back, and what is refused by name."""

import dataclasses
import json
import math
import sys
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim
from fedjax_sim import compression, settings
from fedjax_sim.core.schedules import Cosine, Table, Warmup
from fedjax_sim.core.settings import Above0, ConfigError, fields, value_of
from fedjax_sim.problems import latent
from fedjax_sim.results import kept_settings, records
from fedjax_sim.results.runs import plain_settings
from fedjax_sim.results.summaries import label_of
from fedjax_sim.results.trackers import title_of
from fedjax_sim.server import rules
from fedjax_sim.timelines import ClientTable, Trace

FEDAVG = fedjax_sim.SYSTEMS["fedavg"].Hyper


class Pair(NamedTuple):
    """A container of this module."""

    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Strict:
    """A container whose constructor must not be called."""

    value: Any = 1

    def __post_init__(self) -> None:
        CALLED.append(self.value)


CALLED: list[Any] = []


@settings.struct
class Late(rules.Mean):
    """A rule that is in no table."""

    name: str = settings.fixed("late")
    share: Above0 = settings.setting(0.5, "Some number.")


def there_and_back(*hypers: Any, without: tuple[str, ...] = ()) -> list[Any]:
    """Write settings as JSON text, and read them."""
    text = json.dumps(kept_settings.write(hypers, without), allow_nan=False)
    return kept_settings.read(json.loads(text), len(hypers))


def test_every_systems_settings_come_back() -> None:
    """Also that nobody has given a value, so that it may have no effect."""
    for system in fedjax_sim.SYSTEMS.values():
        for hyper in (system.paper(), system.Hyper()):
            (back,) = there_and_back(hyper)
            assert back == hyper
            for name in fields(system.Hyper):
                value, known = value_of(back, name), value_of(hyper, name)
                assert settings.is_same(value, known) and type(value) is type(known), name


TIMES = np.array([0.0, 1e-300, 2.0]), np.array([1 / 3, 0.1 + 0.2, 1e300])
TABLE = ClientTable(
    rate=[1e-7, 1 / 3, 2],
    spread=[0.0, 1e-30, 3.0],
    names=["a,b", 'say "c"', "d e"],
    up=[1.0, math.inf, 7.0],
    drop_rate=[0.1, 0.0, 0.99],
    available=[[(0.0, 1e-5), (0.1, 1 / 3)], [], [(1.0, 2.0)]],
    period=[1.0, 4.0, 5.5],
)
VALUES: list[tuple[str, str, Any]] = [
    *(("fedavg", "lr", number) for number in (0.1, 1 / 3, 5e-324, 1e22, -0.0, 0.0, math.nan, 3)),
    *(("fedavg", "lr", kind(0.1)) for kind in (np.float32, np.float64, jnp.float32, np.float16)),
    ("fedavg", "num_selected", np.int64(7)),
    ("fedavg", "optimizer", optax.adam),
    ("fedavg", "optimizer", partial(optax.sgd, momentum=1 / 3, nesterov=True)),
    ("fedavg", "optimizer", partial(optax.adamw, weight_decay=1e-20, mask=None)),
    ("langevin", "transform", partial(optax.clip_by_global_norm, 0.1)),
    ("langevin", "transform", partial(optax.clip, max_delta=0.1)),
    ("langevin", "client_weights", np.array([0.1, 1e20, 1 / 3])),
    ("langevin", "client_weights", jnp.array([0.1, 3.0], "float32")),
    ("langevin", "client_weights", 2.5),
    ("hierarchical", "shift", (0.1, 1e16, 1 / 3)),
    ("hierarchical", "group_sizes", (3, 4)),
    ("hierarchical", "group_weights", (0.1, 1 / 3)),
    ("fedem", "gamma_schedule", Warmup(over=1 / 3, then=Cosine(final=0.1))),
    ("fedavg", "lr_schedule", Table(factors=(1.0, 1 / 3), by="client")),
    ("fedper", "personal", "^params/Dense_[01]/"),
    ("fedavg", "attackers", (3, 0)),
    ("fedavg", "aggregator", rules.TrimmedMean(share=1 / 3)),
    ("fedavg", "aggregator", rules.parse_rule("bucketing:size=3:inner=trimmed_mean:share=0.1")),
    *(
        ("fedavg", "aggregator", rule)
        for rule in rules.rules_of_one_program(
            [rules.Mean(), rules.NormBound(bound=np.float32(0.1))]
        )
    ),
    ("fedem", "compression", compression.RandSparsification(keep=np.float32(0.3))),
    (
        "fedem",
        "compression",
        latent.CellSampling(shape=(5, 4), columns=2, compression=compression.RandK(kept=1)),
    ),
    ("fedavg", "trace", Trace([0, 2, 0], *TIMES)),
    ("fedavg", "trace", Trace(["1", "b, \nc", "1"], *TIMES)),
    ("fedavg", "client_table", TABLE),
    ("fedavg", "client_table", ClientTable(names=["1", "0"], down=[1e-30, 2.0])),
]


@pytest.mark.parametrize(("system", "name", "value"), VALUES)
def test_a_value_comes_back_to_the_last_bit(system: str, name: str, value: Any) -> None:
    kind: Any = fedjax_sim.SYSTEMS[system].Hyper
    (back,) = there_and_back(kind(**{name: value}))
    found = value_of(back, settings.full_name(kind, name))
    assert settings.is_same(found, value)
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        np.testing.assert_array_equal(np.asarray(found, value.dtype), np.asarray(value))
    if isinstance(value, Trace | ClientTable):
        # Rows are those of a file, in which a kept trace is in order.
        for key in vars(value).keys() - {"row"}:
            jax.tree.map(np.testing.assert_array_equal, vars(found)[key], vars(value)[key])


def test_what_is_the_same_is_told_by_bits() -> None:
    for one, other in (
        (0.0, -0.0),
        (1, True),
        (1.0, "1.0"),
        (0.1, np.float32(0.1)),
        ((1,), (1, 2)),
    ):
        assert not settings.is_same(one, other) and not settings.is_same(other, one)
    assert settings.is_same(math.nan, np.float32(math.nan))
    assert str(rules.TrimmedMean(share=0.1 + 0.2)) == "trimmed_mean:share=0.30000000000000004"


def test_what_lanes_share_is_kept_once_and_shared_again() -> None:
    """Such as a trace, which must be the same object for lanes to share a program."""
    trace = Trace(np.arange(3), np.arange(3.0), np.arange(3.0) + 1)
    hypers = [FEDAVG(lr=lr, trace=trace) for lr in (0.1, 0.2, 0.1)]
    content: Any = kept_settings.write(hypers)
    assert content["settings"]["lr"] == ["0.1", "0.2"] and content["lanes"] == {"lr": [0, 1, 0]}
    assert len(content["settings"]["delays.trace"]) == 1
    back = there_and_back(*hypers)
    assert [hyper.lr for hyper in back] == [0.1, 0.2, 0.1] and back[0] is back[2]
    assert back[0].delays.trace is back[1].delays.trace
    optimizers = [FEDAVG(optimizer=partial(optax.sgd, momentum=0.9), lr=lr) for lr in (0.1, 0.2)]
    one, other = there_and_back(*optimizers)
    assert one.training.optimizer is other.training.optimizer


def test_an_optimizer_with_arguments_has_the_same_label_in_every_process() -> None:
    """Its address, by which a resumed run would be another one, is in none."""
    momentum = partial(optax.sgd, momentum=0.9)
    text, lane = "sgd:momentum=0.9", {"system": "fedavg", "optimizer": momentum, "seed": 0}
    assert plain_settings([FEDAVG(optimizer=momentum)])["training.optimizer"] == text
    assert label_of("fedavg", {"optimizer": momentum}) == f"fedavg optimizer={text}"
    assert title_of(lane) == f"fedavg optimizer={text} seed=0"


def test_arrays_that_a_problem_fills_in_come_back() -> None:
    (hyper,) = there_and_back(
        dataclasses.replace(FEDAVG(), examples=np.array([3, 2**40])),
    )
    assert hyper.examples.dtype == "int64" and hyper.examples.tolist() == [3, 2**40]


def sgd(rate: float) -> Any:
    """Look like one of optax's."""
    return optax.sgd(rate)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("training.optimizer", lambda rate: optax.sgd(rate)),
        ("training.optimizer", sgd),
        ("training.optimizer", partial(sgd, 0.1)),
        ("training.optimizer", partial(optax.sgd, momentum=jnp.float32(0.9))),
        ("robustness.aggregator", Late(share=0.1)),
        ("delays.client_table", ClientTable(names=["a ", "b"])),
    ],
)
def test_a_value_without_text_is_refused_by_name_or_described(name: str, value: Any) -> None:
    full = settings.full_name(FEDAVG, name.rpartition(".")[2])
    hyper = FEDAVG(**{full: value})
    with pytest.raises(ConfigError, match=rf"^{full} is .*save\(folder, without=\['{full}'\]\)"):
        kept_settings.write([hyper])
    (back,) = there_and_back(hyper, without=(name.rpartition(".")[2],))
    found = value_of(back, full)
    assert isinstance(found, kept_settings.NotSaved) and " at 0x" not in found.description
    with pytest.raises(ConfigError, match=f"{full} is (of type )?NotSaved"):
        settings.check(back)
    # It can be saved again, as by `merge`.
    assert there_and_back(back) == [back]


def test_a_rule_of_ones_own_has_a_text_once_it_is_in_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(rules.RULES, "late", Late)
    hyper = FEDAVG(aggregator=Late(share=0.25))
    assert there_and_back(hyper) == [hyper]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"class": "os:system"}, "names os:system, which is not here"),
        ({"class": "builtins:eval"}, "which is not here"),
        ({"class": "fedjax_sim.no_such:Hyper"}, "names fedjax_sim.no_such:Hyper, which is not"),
        ({"class": "fedjax_sim.__main__:main"}, "import fedjax_sim.__main__ first"),
        ({"class": "not_imported_here:Hyper"}, "import not_imported_here first"),
        ({"class": "fedjax_sim:Timeline"}, "which is no class of settings"),
        ({"class": f"{__name__}:Strict"}, "which is no class of settings"),
        ({"settings": {"momentom": ["0.9"]}}, "setting name is 'momentom'"),
        ({"settings": {"lr": ["fast"]}}, "lr is 'fast', but must be a finite number"),
        ({"settings": {"training.optimizer": ["system:os"]}}, "optimizer is 'system'"),
        ({"settings": {"training.optimizer": ["sgd:__import__('os')"]}}, 'optimizer is "sgd:'),
    ],
)
def test_what_may_run_code_or_is_unknown_is_refused(
    changed: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "fedjax_sim.__main__", raising=False)
    content = {**kept_settings.write([FEDAVG()]), **changed}
    with pytest.raises((kept_settings.UnreadableError, ConfigError), match=words):
        kept_settings.read(content, 1)
    assert "fedjax_sim.__main__" not in sys.modules


def test_containers_come_back_without_their_constructors() -> None:
    tree = {"a": ("x", ["y", {}]), "c": (), "b": None, "class": {"fields": "z"}, "tuple": ["w"]}
    whole = Pair(tree, [Pair("v", None), Strict("u")])
    CALLED.clear()
    content = json.loads(json.dumps(kept_settings.write_containers(whole)))
    assert kept_settings.read_containers(content) == whole and not CALLED[1:]

    class Local(NamedTuple):
        inner: Any

    odd = OrderedDict(b="x", a=Local("y"))
    content = json.loads(json.dumps(kept_settings.write_containers(odd)))
    assert kept_settings.read_containers(content) == {"b": "x", "a": {"inner": "y"}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"class": f"{__name__}:Pair", "fields": {"first": "x"}}, "which here is another class"),
        ({"class": "pathlib:Path.touch", "fields": {}}, "names pathlib:Path.touch, which is not"),
        ({"class": "not_imported_here:Pair", "fields": {}}, "import not_imported_here first"),
    ],
)
def test_containers_that_are_not_here_are_refused(content: Any, words: str) -> None:
    with pytest.raises(kept_settings.UnreadableError, match=words):
        kept_settings.read_containers(content)


def test_a_run_is_refused_before_anything_is_written_and_saved_without_the_setting(
    tmp_path: Path, regression: Any, small: Any
) -> None:
    system = fedjax_sim.SYSTEMS["fedavg"]
    hyper = small(system).replace(optimizer=lambda rate: optax.sgd(rate))
    run = fedjax_sim.simulate(system, regression(), hyper, budget=fedjax_sim.Ticks(2), num_evals=1)
    with pytest.raises(ConfigError, match=r"training\.optimizer is <function"):
        run.save(tmp_path)
    assert not [*tmp_path.iterdir()]
    run.save(tmp_path, without=["optimizer"])
    again = fedjax_sim.load(tmp_path)
    assert again.curves.identical(run.curves)
    np.testing.assert_array_equal(again.models, run.models)
    assert again.hypers[0].training.optimizer == kept_settings.NotSaved(
        hyper.training.optimizer.__qualname__
    )
    assert again.hypers[0].lr == run.hypers[0].lr
    with pytest.raises(ConfigError, match="setting name is 'optimiser'"):
        run.save(tmp_path, without=["optimiser"])


def test_an_array_that_was_changed_in_place_has_another_digest() -> None:
    array = np.arange(3.0)
    before, fixed = records.digest_of_array(array), array.copy()
    fixed.flags.writeable = False
    array[1] = 7.0
    assert records.digest_of_array(array) != before == records.digest_of_array(fixed)
    assert records.digest_of_array(fixed) is records.digest_of_array(fixed)  # It is known.
