"""Settings: every one is documented where `help` and the command line find it, and is checked."""

import dataclasses
import pydoc
from collections.abc import Callable
from typing import Any

import optax
import pytest

import fedjax_sim
from fedjax_sim import ConfigError
from fedjax_sim.compression.catalogue import COMPRESSORS
from fedjax_sim.privacy import PRIVACY
from fedjax_sim.settings import (
    check,
    count,
    default_text,
    describe,
    fields,
    fixed,
    is_traced,
    parse,
    real,
    redefault,
    struct,
    whole,
)

STRUCTS: dict[str, type] = {name: system.Hyper for name, system in fedjax_sim.SYSTEMS.items()} | {
    kind.__name__: kind for kind in (*COMPRESSORS.values(), *PRIVACY.values())
}
"""The settings of every system, of every compressor, and of every kind of privacy."""


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
def test_every_field_is_a_setting_or_fixed(name: str) -> None:
    """Others are static, or filled in from the problem, and cannot be given by name."""
    hyper_type = STRUCTS[name]
    for field in dataclasses.fields(hyper_type):
        if field.name not in fields(hyper_type):
            is_filled = field.metadata.get("is_filled", False)
            assert is_filled or not is_traced(field), field.name
            with pytest.raises(ConfigError, match="setting name is"):
                parse(hyper_type, field.name, "1")


@pytest.mark.parametrize("name", STRUCTS)
def test_help_lists_every_setting(name: str) -> None:
    """`help(Hyper)` shows name, meaning, default and range, also of inherited settings."""
    hyper_type = STRUCTS[name]
    shown = pydoc.plain(pydoc.render_doc(hyper_type))
    for line, (field, declared) in zip(
        describe(hyper_type), fields(hyper_type).items(), strict=True
    ):
        assert line in shown
        assert line.startswith(f"{field}: {declared.metadata['meaning']} Default ")
        assert line.endswith(f"{default_text(declared)}; {declared.metadata['allowed']}.")


@pytest.mark.parametrize("name", STRUCTS)
def test_defaults_are_allowed(name: str) -> None:
    check(STRUCTS[name]())


@struct
class Base:
    """Two settings."""

    speed: float = real(1.0, "Speed of a test, in metres per second.", above=0)
    size: int = count(3, "Number of tests.")
    steps: int = whole(1, "Steps of a test.")


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


FEDAVG: Any = fedjax_sim.SYSTEMS["fedavg"].Hyper


@pytest.mark.parametrize("change", [FEDAVG, FEDAVG(num_clients=30).replace])
def test_a_misspelt_setting_is_named_with_the_nearest(change: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"setting name is 'num_clints'.*'num_clients'\?\)\.$"):
        change(num_clints=3, lr=0.1)


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


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"speed": [0.1, 0.2]},
            "speed is [0.1, 0.2], but must be a finite number above 0 (to sweep, use "
            "settings=...).",
        ),
        (
            {"steps": (1,)},
            "steps is (1,), but must be a whole number of at least 1 (to sweep, use settings=...).",
        ),
        ({"speed": 0.0}, "speed is 0.0, but must be a finite number above 0."),
        ({"speed": float("nan")}, "speed is nan, but must be a finite number above 0."),
        ({"speed": "fast"}, "speed is 'fast', but must be a finite number above 0."),
        ({"size": 2.5}, "size is 2.5, but must be a whole number of at least 1."),
        ({"size": True}, "size is True, but must be a whole number of at least 1."),
    ],
)
def test_a_bad_value_gets_one_sentence(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(Base(**values))
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("system", "settings", "sentence"),
    [
        (
            "fednova",
            {"optimizer": optax.adam},
            "training.optimizer is 'adam', but must be left at sgd.",
        ),
        (
            "scaffold",
            {"optimizer": optax.adam},
            "training.optimizer is 'adam', but must be left at sgd.",
        ),
        ("fedadagrad", {"second_decay": 0.5}, "second_decay is 0.5, but must be left at 0.0."),
    ],
)
def test_fixed_settings_are_refused(system: str, settings: dict[str, Any], sentence: str) -> None:
    """They would have no effect, or one that no paper has."""
    check(fedjax_sim.SYSTEMS[system].Hyper())
    with pytest.raises(ConfigError, match=sentence):
        check(fedjax_sim.SYSTEMS[system].Hyper(**settings))
