"""Settings: every one is documented where `help` and the command line find it, and is checked."""

import copy
import dataclasses
import functools
import inspect
import pickle
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim
from fedjax_sim import SYSTEMS, ConfigError, Layout, datasets, models, partition, systems
from fedjax_sim.cli import comparison
from fedjax_sim.cli.commands import main
from fedjax_sim.cli.defaults import defaults_of
from fedjax_sim.clients import ClientTraining
from fedjax_sim.core.lifecycle import BAD_INPUT
from fedjax_sim.core.settings import (
    check,
    check_all,
    default_text,
    fields,
    fixed,
    full_name,
    group,
    groups,
    idle_of,
    is_given,
    is_traced,
    names_of,
    parse,
    redefault,
    setting,
    struct,
    value_of,
)
from fedjax_sim.core.settings.declared import Above0, Count
from fedjax_sim.core.settings.names import describe, usual_values
from fedjax_sim.problems import latent
from fedjax_sim.server.attacks import ATTACKS, SignFlip
from fedjax_sim.server.compression import COMPRESSORS
from fedjax_sim.server.privacy import PRIVACY
from fedjax_sim.server.rules import RULES, parse_rule
from fedjax_sim.timelines import ClientDelays, Cohort
from fedjax_sim.timelines.presets import preset

STRUCTS: dict[str, type] = {name: system.Hyper for name, system in fedjax_sim.SYSTEMS.items()} | {
    kind.__name__: kind
    for kind in (*COMPRESSORS.values(), *PRIVACY.values())
    if kind.name != "cells"  # Its shape must be given.
}
"""The settings of every system, of every compressor, and of every kind of privacy."""
FEDAVG: Any = SYSTEMS["fedavg"].Hyper


@pytest.mark.parametrize("name", STRUCTS)
def test_every_setting_has_a_meaning(name: str) -> None:
    """A meaning is at least one sentence, and says more than the setting's name."""
    hyper_type = STRUCTS[name]
    assert fields(hyper_type) or name in ("Identity", "NoPrivacy")
    for field, declared in fields(hyper_type).items():
        meaning = declared.metadata["meaning"]
        assert meaning == meaning.strip() and meaning.endswith("."), (field, meaning)
        words = meaning.rstrip(".").lower().replace("_", " ").replace("-", " ")
        assert words != field.replace("_", " "), (field, meaning)
        assert len(words.split()) >= 2, (field, meaning)
        assert meaning[0] == meaning[0].upper(), (field, meaning)
        assert declared.metadata["allowed"], field


@pytest.mark.parametrize("name", STRUCTS)
def test_every_field_is_a_setting_a_group_or_fixed(name: str) -> None:
    """Others are static, or filled in from the problem, and cannot be given by name."""
    hyper_type = STRUCTS[name]
    held = {field.name for field in groups(hyper_type)}
    for field in dataclasses.fields(hyper_type):
        if field.name not in {*fields(hyper_type), *held}:
            is_filled = field.metadata.get("is_filled", False)
            assert is_filled or not is_traced(field), field.name
            with pytest.raises(ConfigError, match="setting name is"):
                parse(hyper_type, field.name, "1")


@pytest.mark.parametrize("name", STRUCTS)
def test_help_lists_every_setting(name: str) -> None:
    """`help(Hyper)` shows name, meaning, default and range, also of inherited settings.

    Each group begins with a line that says what it is about, and of which class it is.
    """
    hyper_type = STRUCTS[name]
    shown = pydoc.plain(pydoc.render_doc(hyper_type))
    heads = [
        f"{field.name}: {field.metadata['group']} (`{type(field.default).__name__}`):"
        for field in groups(hyper_type)
    ]
    lines = describe(hyper_type)
    assert [line for line in lines if line in heads] == heads
    others = [line for line in lines if line not in heads]
    for line, (field, declared) in zip(others, fields(hyper_type).items(), strict=True):
        inside, _, last = field.rpartition(".")
        assert line in shown
        indent = "  " if inside else ""
        assert line.startswith(f"{indent}{last}: {declared.metadata['meaning']} Default ")
        assert line.endswith(f"{default_text(declared)}; {declared.metadata['allowed']}.")


@pytest.mark.parametrize("name", STRUCTS)
def test_defaults_are_allowed(name: str) -> None:
    check(STRUCTS[name]())


@pytest.mark.parametrize("name", fedjax_sim.SYSTEMS)
def test_a_system_has_few_settings_of_its_own(name: str) -> None:
    """The others are in groups, so that a list of settings begins with what matters most."""
    own = [setting for setting in fields(fedjax_sim.SYSTEMS[name].Hyper) if "." not in setting]
    assert 1 <= len(own) <= 15, own


def test_one_name_means_one_thing_in_all_systems() -> None:
    """The last part of a name has one type, allows the same and says the same first everywhere.

    A default of None, where the setting may be left out, is of every type.

    What a meaning begins with, up to the first comma, is equal; symbols and details may follow. No
    name is that of two settings of a system, or of a setting and a group.
    """
    found: dict[str, set[tuple[Any, str, str]]] = {}
    held: set[str] = set()
    for system in fedjax_sim.SYSTEMS.values():
        held |= {field.name for field in groups(system.Hyper)}
        for name, field in fields(system.Hyper).items():
            last = name.rpartition(".")[2]
            assert names_of(system.Hyper)[last] == name
            meaning = re.split("[,;:.(]", field.metadata["meaning"])[0].strip()
            told = type(field.default), field.metadata["allowed"], meaning
            found.setdefault(last, set()).add(told)
    for name, told in found.items():
        assert len({each[1:] for each in told}) == 1, name
        assert len({each[0] for each in told} - {type(None)}) <= 1, name
    assert not held & found.keys()


@pytest.mark.parametrize("name", fedjax_sim.SYSTEMS)
def test_conditions_name_settings_and_values_that_there_are(name: str) -> None:
    """A setting says with which values of others it has an effect; at one value it has none."""
    hyper = fedjax_sim.SYSTEMS[name].paper()
    for each, field in fields(type(hyper)).items():
        owner = value_of(hyper, each.rpartition(".")[0]) if "." in each else hyper
        for other, values in field.metadata.get("only_with", {}).items():
            declared = fields(type(owner))[other].metadata
            if not callable(values):
                assert values and all(declared["accepts"](value) for value in values), each
    assert idle_of(hyper).keys() <= fields(type(hyper)).keys()


def other_value(hyper_type: Any, name: str) -> Any:
    """Return a value of a setting that is neither its default nor one of a preset; None without."""
    field = fields(hyper_type)[name]
    usual = usual_values(hyper_type, name)
    allowed = field.metadata["allowed"].removeprefix("one of ").split(", ")
    numbers = [0.25, 0.75, 0.5, 1.5, 3, 4, 7]
    tried = [True, False, *numbers, *allowed[::-1], (1.0, 2.0), (1, 0), optax.adam]
    accepts = field.metadata["accepts"]
    return next((value for value in tried if accepts(value) and value not in usual), None)


@pytest.mark.parametrize("name", fedjax_sim.SYSTEMS)
def test_a_setting_without_effect_is_refused(name: str) -> None:
    """At every choice that does not read it, unless it is left at its default."""
    kind: Any = fedjax_sim.SYSTEMS[name].Hyper
    for idle in idle_of(kind()):
        other, default = other_value(kind, idle), default_text(fields(kind)[idle])
        if other is not None:
            words = rf"^{re.escape(idle)} is .*, but must be left at {re.escape(default)} "
            with pytest.raises(ConfigError, match=rf"{words}(unless|with) .*\.$"):
                check(kind(**{idle: other}))
        check(kind(**{idle: fields(kind)[idle].default}))


@pytest.mark.parametrize(
    ("system", "given", "words"),
    [
        (
            "fedavg",
            {"local_steps": 7, "local_epochs": 2.0},
            "local_steps is 7, but must be left at 10 with local_epochs, where it has no effect.",
        ),
        (
            "fedavg",
            {"last_batch": "dropped"},
            "clock.last_batch is 'dropped', but must be left at shared with local_steps, where it "
            "has no effect.",
        ),
        (
            "fedbuff",
            {"rule": "mean", "exponent": 0.7},
            "staleness.exponent is 0.7, but must be left at 0.5 unless staleness.rule is "
            "'polynomial'.",
        ),
        (
            "fedavg",
            {"rate_slow": 0.5},
            "delays.rate_slow is 0.5, but must be left at 0.125 with delays.slow_fraction = 0.0, "
            "where it has no effect.",
        ),
        (
            "fedavg",
            {"optimizer_state": "kept"},
            "training.optimizer_state is 'kept', but must be left at fresh with "
            "training.optimizer = sgd, where it has no effect.",
        ),
        (
            "langevin",
            {"num_selected": 3},
            "num_selected is 3, but must be left at 10 unless participants is 'with_replacement' "
            "or 'without_replacement'.",
        ),
        (
            "hierarchical",
            {"group_sizes": (1, 2), "association": (0, 1, 1), "num_clients": 3},
            "grouping.group_sizes is (1, 2), but must be left at None unless grouping.association "
            "is None.",
        ),
        (
            "hierarchical",
            {"proximal": 0.5},
            "proximal is 0.5, but must be left at 0.0 with one local step, where it has no effect.",
        ),
        (
            "mimelite",
            {"momentum": 0.5, "optimizer": optax.adam},
            "momentum is 0.5, but must be left at 0.9 with another optimizer, where it has no "
            "effect.",
        ),
        (
            "fedavg",
            {"attack_from": 3, "attack": SignFlip()},
            "adversary.attack is SignFlip(), but must be left at none with adversary.malicious 0 "
            "and no attackers, where it has no effect.",
        ),
    ],
)
def test_settings_that_exclude_each_other(system: str, given: dict, words: str) -> None:
    """In Python before anything is compiled."""
    with pytest.raises(ConfigError) as refused:
        check(fedjax_sim.SYSTEMS[system].Hyper(**given))
    assert str(refused.value) == words


def test_the_privacy_of_examples_reads_local_steps_with_epochs() -> None:
    """It bounds updates by them."""
    private = PRIVACY["examples"](noise=1.0)
    given = {"example_clip": 1.0, "sampling": "reshuffled", "local_epochs": 2.0}
    check(FEDAVG(privacy=private, local_steps=7, **given))


@pytest.mark.slow
def test_a_sweep_may_have_points_at_which_a_setting_has_no_effect(
    regression: Callable, small: Callable
) -> None:
    """One point that reads it is enough, whether it is swept itself or not; none is refused.

    Nothing is compiled before that.
    """
    system = fedjax_sim.SYSTEMS["fedbuff"]
    run = functools.partial(fedjax_sim.sweep, system, regression(), budget=fedjax_sim.Ticks(2))
    for hyper, settings in (
        (small(system, exponent=0.7), {"rule": ["mean", "polynomial"]}),
        (small(system), {"rule": ["mean", "polynomial"], "exponent": [0.6, 0.7]}),
    ):
        lanes = len(settings["rule"]) * len(settings.get("exponent", [0]))
        assert len(run(hyper, settings=settings).timelines) == lanes
        with pytest.raises(ConfigError, match=r"^staleness\.exponent is 0\.[67], but must be left"):
            run(hyper, settings=settings | {"rule": ["mean", "hinge"]})


def test_values_of_a_preset_may_have_no_effect() -> None:
    """Nobody has given them one by one; other values are refused as usual."""
    paper = fedjax_sim.SYSTEMS["fedavg"].paper
    check(paper(slow_fraction=0.0))
    check(paper().replace(slow_fraction=0.0))
    with pytest.raises(ConfigError, match=r"rate_slow is 0\.07, but must be left at 0\.125 with"):
        check(paper(slow_fraction=0.0, rate_slow=0.07))


def test_values_of_a_preset_that_are_given_by_hand_are_refused_without_effect(
    tmp_path: Path, regression: Callable, small: Callable
) -> None:
    """A preset marks its own values, here, in another process and in a saved run."""
    fedavg = fedjax_sim.SYSTEMS["fedavg"]
    mine = preset(fedavg.Hyper, {"source": "this test", "rate_slow": 0.07, "slow_clients": "last"})
    own = mine(num_clients=small(fedavg).num_clients, num_selected=2, local_steps=2, batch_size=2)
    again = pickle.loads(pickle.dumps(own))
    run = fedjax_sim.simulate(fedavg, regression(), own, budget=fedjax_sim.Ticks(2), num_evals=1)
    run.save(tmp_path / "run")
    loaded = fedjax_sim.load(tmp_path / "run").hypers[0]
    for hyper in (own, again, loaded, jax.tree.map(lambda leaf: leaf, own)):
        assert hyper.delays.rate_slow == 0.07 and hyper.delays.slow_clients == "last"
        check(hyper)
    for given in ({"rate_slow": 0.07}, {"slow_clients": "last"}):
        with pytest.raises(ConfigError, match=r"must be left at .* with delays\.slow_fraction"):
            check(fedavg.Hyper(**given))
        with pytest.raises(ConfigError, match=r"must be left at .* with delays\.slow_fraction"):
            check(own.replace(**given))


def test_a_bound_preset_is_checked_although_some_of_its_values_have_no_effect(
    regression: Callable, small: Callable
) -> None:
    """What is changed must be allowed and have an effect."""
    system = fedjax_sim.SYSTEMS["fedbuff"]
    sizes = small(system)
    names = ("num_clients", "buffer_size", "concurrency", "local_steps", "batch_size")
    hyper = system.paper(slow_fraction=0.0, **{name: getattr(sizes, name) for name in names})
    bound = fedjax_sim.bind(system, regression(), hyper, budget=fedjax_sim.Ticks(2))
    assert float(bound.with_settings(lr=0.25).hyper.lr) == 0.25
    for given, words in ({"lr": -1.0}, "above 0"), ({"hinge_start": 7.0}, "left at 4.0 unless"):
        with pytest.raises(ConfigError, match=words):
            bound.with_settings(**given)


@pytest.mark.parametrize("text", ["sgd:momentum=0.9:momentum=0.5", "sgd:0.9"])
def test_an_argument_of_an_optimizer_has_a_name_and_is_there_once(text: str) -> None:
    """Of two the first would be ignored; one without a name would be the learning rate."""
    with pytest.raises(ConfigError, match=f"optimizer is '{text}'"):
        parse(FEDAVG, "optimizer", text)


def test_bad_input_can_be_sent_to_another_process() -> None:
    """A pool of processes hangs on an error that cannot be pickled."""
    for say in (
        lambda: check(FEDAVG(optimizer=lambda lr: None)),
        lambda: FEDAVG(lrr=1),
        lambda: FEDAVG().lrr,
        lambda: SYSTEMS["fedavgg"],
        lambda: systems.fedavgg,
    ):
        with pytest.raises((ConfigError, AttributeError)) as refused:
            say()
        sent = pickle.loads(pickle.dumps(refused.value))
        assert type(sent) is type(refused.value) and str(sent) == str(refused.value)
        assert str(copy.copy(refused.value)) == str(refused.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fedavg", "--set", "local_epochs=2", "--set", "local_steps=7"], "local_steps is 7"),
        (["fedbuff", "--set", "rule=mean", "--set", "exponent=0.7"], "staleness.exponent is 0.7"),
        (["fedavg", "fedbuff", "--set", "rate_slow=0.5"], "delays.rate_slow is 0.5"),
        (["langevin", "--set", "num_selected=3,4"], "num_selected is 3"),
    ],
)
def test_settings_without_effect_are_refused_on_the_command_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture
) -> None:
    """In one sentence. Defaults of the data set that have no effect are left out."""
    assert main(["run", *words, "--out", "nowhere"]) == BAD_INPUT
    error = capsys.readouterr().err
    assert f"{said}, but must be left at" in error and error.count("\n") == 1
    given = {"participants": ["full"], "restart": ["free"], "local_epochs": ["2"]}
    for name in ("langevin", "fedbuff", "fedavg"):
        known = {key: each for key, each in given.items() if key in names_of(SYSTEMS[name].Hyper)}
        comparison.resolve_contenders([name], known, defaults_of("digits"))


@pytest.mark.parametrize(
    ("say", "meant"),
    [
        (lambda: FEDAVG(delais=1), "delays"),
        (lambda: FEDAVG(**{"delais.rate_fast": 1.0}), "delays.rate_fast"),
        (lambda: FEDAVG().lrr, "lr"),
        (lambda: FEDAVG().delais, "delays"),
        (lambda: FEDAVG().delays.rate_fst, "rate_fast"),
        (lambda: SYSTEMS["fedavgg"], "fedavg"),
        (lambda: systems.fedavgg, "fedavg"),
        (lambda: fedjax_sim.sweeep, "sweep"),
        (lambda: models.MODELS["mlp3"], "mlp32"),
        (lambda: latent.MODELS["gaussian_mixtur"], "gaussian_mixture"),
        (lambda: partition.PARTITIONS["dirichlt"], "dirichlet"),
        (lambda: partition.make("dirichlt", np.zeros(4, int), num_clients=2, seed=0), "dirichlet"),
        (lambda: datasets.load("digit"), "digits"),
        (lambda: datasets.load_text("shakespear"), "shakespeare"),
        (lambda: RULES["medain"], "median"),
        (lambda: parse_rule("trimed_mean:share=0.2"), "trimmed_mean"),
        (lambda: ATTACKS["sign_flp"], "sign_flip"),
        (lambda: COMPRESSORS["topk"], "top_k"),
        (lambda: PRIVACY["fxed"], "fixed"),
        (lambda: parse(FEDAVG, "optimizer", "adamm"), "adam"),
        (lambda: check(FEDAVG(optimizer="adamm")), "adam"),
        (lambda: check(SYSTEMS["fedopt"].Hyper(server_optimizer="adamm")), "adam"),
        (lambda: parse(FEDAVG, "aggregator", "medain"), "median"),
        (lambda: parse(FEDAVG, "compression", "topk:kept=3"), "top_k"),
        (lambda: check(FEDAVG(runtime_law="runtime_expo")), "runtime_exp"),
    ],
)
def test_a_misspelt_name_gets_the_nearest(say: Callable[[], Any], meant: str) -> None:
    """Whatever it is the name of."""
    with pytest.raises((ConfigError, AttributeError)) as refused:
        say()
    assert f"(did you mean {meant!r}?)" in str(refused.value)


def test_tables_by_name_are_dictionaries() -> None:
    """A name that there is not is a `KeyError` too, and absent otherwise."""
    with pytest.raises(KeyError, match=r"^system is 'fedavgg', but must be one of fedavg, "):
        SYSTEMS["fedavgg"]
    assert SYSTEMS.get("fedavgg") is None and "fedavgg" not in SYSTEMS
    assert pickle.loads(pickle.dumps(RULES)) == dict(RULES)
    assert [*dict(SYSTEMS)] == [*SYSTEMS]


def test_a_group_named_in_the_place_of_a_setting_gets_its_settings(
    capsys: pytest.CaptureFixture,
) -> None:
    assert main(["run", "fedavg", "--set", "cohort=3"]) == BAD_INPUT
    said = "one of cohort.selection, cohort.weighting, cohort.with_replacement."
    assert said in capsys.readouterr().err


@struct
class Base:
    """Two settings."""

    speed: Above0 = setting(1.0, "Speed of a test, in metres per second.")
    size: Count = setting(3, "Number of tests.")
    steps: Count = setting(1, "Steps of a test.", traced=True)


@struct
class Derived(Base):
    """Settings of a class that inherits."""

    speed: float = redefault(Base, "speed", 2.0)
    size: int = fixed(7)
    steps: int = fixed(1)


def test_settings_are_given_by_name() -> None:
    """A number without a name is refused: it would set whichever setting comes first."""
    with pytest.raises(TypeError, match="takes 1 positional argument"):
        fedjax_sim.SYSTEMS["fedavg"].Hyper(4)


def test_a_new_default_keeps_the_meaning() -> None:
    assert describe(Base) == [
        "speed: Speed of a test, in metres per second. Default 1.0; a finite number above 0.",
        "size: Number of tests. Default 3; a whole number of at least 1.",
        "steps: Steps of a test. Default 1; a whole number of at least 1.",
    ]
    assert describe(Derived) == [
        "speed: Speed of a test, in metres per second. Default 2.0; a finite number above 0.",
    ]
    assert (Derived().speed, Derived().size) == (2.0, 7)
    assert "Number of tests" not in (Derived.__doc__ or "")


def test_fixed_settings_are_refused() -> None:
    """They would have no effect, or one that no paper has."""
    with pytest.raises(ConfigError, match=r"second_decay is 0\.5, but must be left at 0\.0\."):
        check(fedjax_sim.SYSTEMS["fedadagrad"].paper(second_decay=0.5))


@pytest.mark.parametrize("name", ["fednova", "scaffold"])
def test_settings_that_a_system_leaves_out_of_a_group_are_refused(name: str) -> None:
    """They cannot be named, and a group that has another value is refused."""
    hyper_type: Any = fedjax_sim.SYSTEMS[name].Hyper
    with pytest.raises(ConfigError, match=r"setting name is 'optimizer', but must be one of "):
        hyper_type(optimizer=optax.adam)
    given = hyper_type(training=ClientTraining(optimizer=optax.adam))
    with pytest.raises(ConfigError, match=r"^training\.optimizer is .*, but must be left at "):
        check(given)
    check(hyper_type(training=ClientTraining(sampling="reshuffled")))


def test_short_names_are_full_ones() -> None:
    """In the constructor, in `replace` and in `dataclasses.replace`."""
    nested = FEDAVG(lr=0.1, delays=ClientDelays(rate_fast=0.25), cohort=Cohort(weighting="equal"))
    changes: dict[str, Any] = {"rate_fast": 0.25, "weighting": "equal", "lr": 0.1}
    full = {full_name(FEDAVG, name): value for name, value in changes.items()}
    assert full == {"delays.rate_fast": 0.25, "cohort.weighting": "equal", "lr": 0.1}
    for given in (changes, full):
        made = [FEDAVG(**given), FEDAVG().replace(**given), dataclasses.replace(FEDAVG(), **given)]
        assert made == [nested] * 3
    assert nested.delays.rate_fast == 0.25
    assert not hasattr(nested, "rate_fast")


def test_a_setting_given_twice_is_refused() -> None:
    """Nothing would tell which of both counts."""
    with pytest.raises(ConfigError, match=r"^setting name is 'delays.rate_fast'.*`rate_fast`"):
        FEDAVG(**{"rate_fast": 0.1, "delays.rate_fast": 0.2})


def test_a_group_given_whole_replaces_all_its_settings() -> None:
    """Settings that it does not name have the group's defaults, not the system's."""
    stale: Any = fedjax_sim.SYSTEMS["fedstaleweight"].paper
    assert stale(rate_slow=0.25).delays == stale().delays.replace(rate_slow=0.25)
    assert stale(delays=ClientDelays(rate_slow=0.25)).delays == ClientDelays(rate_slow=0.25)
    assert stale().delays.law.name == "runtime_uniform" != ClientDelays().law.name
    # Together, the group comes first.
    both = stale(rate_fast=0.75, delays=ClientDelays(rate_slow=0.25))
    assert both.delays == ClientDelays(rate_slow=0.25, rate_fast=0.75)


def test_defaults_in_units_of_time_stay_recognisable_in_groups() -> None:
    """Also those that a system has set itself, and after another setting of the group is given."""
    hyper: Any = fedjax_sim.SYSTEMS["fedstaleweight"].paper(drop_rate=0.1, rate_slow=1 / 10)
    assert not is_given(hyper, "delays.rate_fast")
    assert hyper.delays.rate_fast == 1 / 1.5
    # Given, although equal to the default.
    assert is_given(hyper, "delays.rate_slow")


@struct
class Wheels:
    """A group."""

    size: Above0 = setting(1.0, "Size of a wheel, in metres.")
    number: Count = setting(4, "Number of wheels.")


@struct
class Doors:
    """Another group, which has a setting of the same name."""

    size: Above0 = setting(2.0, "Size of a door, in metres.")


@struct
class Car:
    """Two groups."""

    wheels: Wheels = group(Wheels(number=3), "what it stands on")
    doors: Doors = group(Doors(), "what one enters by", without=())


def test_an_ambiguous_name_is_refused_with_the_full_ones() -> None:
    """Full names are always valid, and short ones where there is one such setting."""
    assert Car(number=2).wheels == Wheels(number=2)
    assert Car(**{"doors.size": 3.0}).doors == Doors(size=3.0)
    assert Car(**{"doors.size": 3.0}).wheels.number == 3
    for change in (Car, Car().replace):
        with pytest.raises(ConfigError) as caught:
            change(size=3.0)
        assert str(caught.value) == (
            "setting name is 'size', but must be one of doors.size, wheels.size."
        )
    assert "size" not in names_of(Car)


@pytest.mark.parametrize("value", [None, 3, Doors(), Wheels])
def test_a_group_of_another_class_is_refused(value: Any) -> None:
    """Alone, and together with one of its settings."""
    sentence = rf"^wheels is .*, but must be a `{Wheels.__module__}\.Wheels`\.$"
    with pytest.raises(ConfigError, match=sentence):
        check(Car(wheels=value))
    with pytest.raises(ConfigError, match=sentence):
        Car(wheels=value, number=3)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("rate_fst", "delays.rate_fast"), ("delays.rate_fst", "delays.rate_fast")],
)
def test_an_unknown_name_gets_the_nearest(
    name: str, nearest: str, regression: Callable, capsys: pytest.CaptureFixture
) -> None:
    """In the constructor, in a sweep and on the command line, whose short names it lists."""
    sentence = rf"setting name is '{name}', but must be one of aggregator, .*'{nearest}'\?\)\.$"
    with pytest.raises(ConfigError, match=sentence):
        FEDAVG(**{name: 0.5})
    with pytest.raises(ConfigError, match=sentence):
        fedjax_sim.sweep(
            fedjax_sim.SYSTEMS["fedavg"],
            regression(),
            FEDAVG(num_clients=7, num_selected=3),
            settings={name: [0.25, 0.5]},
            budget=fedjax_sim.Ticks(2),
        )
    assert main(["run", "fedavg", "fedbuff", "--set", f"{name}=0.5"]) == BAD_INPUT
    said = capsys.readouterr().err
    assert f"setting name is '{name}'" in said and f"did you mean '{nearest}'?" in said
    assert said.count("rate_fast") == 2


def test_reading_a_short_name_says_where_the_setting_is() -> None:
    """Groups are read by their full names; what is no setting is missing as usual."""
    with pytest.raises(AttributeError, match=r"'rate_slow'; the setting is `delays.rate_slow`$"):
        FEDAVG().rate_slow  # noqa: B018
    assert not hasattr(FEDAVG(), "rate_slow") and not hasattr(FEDAVG(), "nothing")
    assert getattr(FEDAVG(), "no_such_thing", 3) == 3
    assert copy.deepcopy(pickle.loads(pickle.dumps(FEDAVG(lr=0.3)))) == FEDAVG(lr=0.3)


def test_short_and_full_names_on_the_command_line_are_the_same_setting() -> None:
    """They go to the systems that have them; both together are refused."""

    def rates(**texts: str) -> list[Any]:
        given = {name: text.split(",") for name, text in texts.items()}
        found = comparison.resolve_contenders(["fedavg", "quafl"], given, defaults_of("digits"))
        return [[hyper.delays.rate_fast for _, hyper in each.points()] for each in found]

    assert rates(rate_fast="0.25") == rates(**{"delays.rate_fast": "0.25"}) == [[0.25], [0.25]]
    assert rates(rate_fast="0.25,0.5") == rates(**{"delays.rate_fast": "0.25,0.5"})
    assert rates(rate_fast="0.25,0.5") == [[0.25, 0.5], [0.25, 0.5]]
    for text in ("0.25", "0.25,0.5"):
        with pytest.raises(ConfigError, match="which is the same setting"):
            rates(**{"rate_fast": "0.125", "delays.rate_fast": text})


def test_values_swept_in_a_group_are_traced(
    regression: Callable, small: Callable, compiled: list[str]
) -> None:
    """One program for all values and both names; lanes have the bits of the group given whole."""
    system, values = fedjax_sim.SYSTEMS["fedbuff"], [0.05, 0.1, 0.2, 0.4]
    options: dict[str, Any] = {
        "budget": fedjax_sim.Ticks(6),
        "num_evals": 3,
        "layout": Layout(4, False, 1),
    }
    runs = {
        form: fedjax_sim.sweep(
            system, regression(), small(system), settings={form: values}, seeds=2, **options
        )
        for form in ("rate_slow", "delays.rate_slow")
    }
    assert compiled.count("jit(_advance)") == 1
    assert compiled.count("jit(_draw)") == 1
    for i, value in enumerate(values[:2]):
        hyper = small(system).replace(rate_slow=value)
        alone = fedjax_sim.sweep(system, regression(), hyper, seeds=2, **options)
        for form, run in runs.items():
            assert len({float(each.time[-1]) for each in run.timelines}) == 2 * len(values)
            np.testing.assert_array_equal(run.curves.loss.sel({form: value}), alone.curves.loss)
            jax.tree.map(np.testing.assert_array_equal, run.timelines[2 * i], alone.timelines[0])


def test_settings_of_many_points_are_checked_wherever_they_differ() -> None:
    """What all points share is looked at once, and everything else at every point."""
    good = fedjax_sim.SYSTEMS["fedavg"].Hyper(num_clients=20)
    check_all([good.replace(lr=0.1 * i) for i in range(1, 4)])
    for name, value in (("lr", -1.0), ("drop_rate", 2.0), ("num_selected", 30)):
        with pytest.raises(ConfigError) as alone:
            check(good.replace(**{name: value}))
        with pytest.raises(ConfigError) as among:
            check_all([good, good.replace(lr=0.2), good.replace(**{name: value})])
        assert str(among.value) == str(alone.value)


def test_a_struct_is_written_with_what_was_changed() -> None:
    assert repr(Car()) == "Car()"
    assert repr(Car(wheels=Wheels(number=3))) == "Car()"  # As a car has them.
    assert repr(Car(number=5)) == "Car(wheels=Wheels(number=5))"
    assert "size=Array" in repr(Wheels(size=jnp.float32(2)))


@pytest.mark.parametrize("system", ["fedavg", "fedbuff", "favano", "langevin", "hierarchical"])
def test_a_constructor_names_the_systems_own_settings_first(system: str) -> None:
    kind = fedjax_sim.SYSTEMS[system].Hyper
    order = [*inspect.signature(kind).parameters]
    own = [name for name in fields(kind) if "." not in name]
    assert order[: len(own)] == own and {*order} == {
        each.name for each in dataclasses.fields(kind) if each.compare
    }


def test_settings_are_checked_before_jax_counts_its_devices() -> None:
    """Otherwise `use_cores` and the command line would find one device, and be slower."""
    code = (
        "import fedjax_sim\n"
        "from fedjax_sim.core.settings import check\n"
        "from jax._src import xla_bridge\n"
        "for system in fedjax_sim.SYSTEMS.values():\n"
        "    check(system.paper())\n"
        "    assert not xla_bridge.backends_are_initialized(), system.name\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
