"""Every setting refuses what its declared type excludes, in one sentence with its full name.

The wrong values follow from the words in which a type says what is allowed, and a misspelt name
from each name. Cases are generated for all settings of all systems, compressors, kinds of privacy,
rules and attacks, so that tests of a system need those sentences alone that are about several
settings together.
"""

import math
import re
from typing import Any

import pytest

import fedjax_sim
from fedjax_sim import ConfigError
from fedjax_sim.core.settings import check, fields, names_of
from fedjax_sim.problems.latent import CellSampling
from fedjax_sim.server import privacy
from fedjax_sim.server.attacks import ATTACKS
from fedjax_sim.server.compression import COMPRESSORS
from fedjax_sim.server.rules import RULES

TABLES = (COMPRESSORS, privacy.PRIVACY, privacy.LOCAL_PRIVACY, RULES, ATTACKS)
KINDS: dict[str, Any] = {name: system.Hyper for name, system in fedjax_sim.SYSTEMS.items()}
KINDS |= {f"{kind.name} {kind.__name__}": kind for table in TABLES for kind in table.values()}
NUMBER = r"-?\d+(?:\.\d+)?"


def wrong_values(allowed: str) -> list[Any]:
    """List values outside of a declared type, by its words."""
    if allowed == "true or false":
        return ["no", 3, None]
    if allowed.startswith("one of ") and " or " not in allowed:
        return ["something else", 3, None]
    if not re.fullmatch(
        rf"a (finite |whole )?number( (of|from|to|at|least|most|and|above|{NUMBER}))*", allowed
    ):
        return [1j] if "function" in allowed else [1j, object]
    found: list[Any] = [math.nan, math.inf, "1", True, [0.5, 0.25], (1.0,), 1j]
    if "whole" in allowed:
        found.append(1.5)
    for words, sign in ((rf"(?:at least|from) ({NUMBER})", -1), (rf"(?:at most|to) ({NUMBER})", 1)):
        found += [float(each) + sign * 0.01 for each in re.findall(words, allowed)]
        found += [int(each) + sign for each in re.findall(words, allowed) if "whole" in allowed]
    return found + [float(each) for each in re.findall(rf"above ({NUMBER})", allowed)]


@pytest.mark.parametrize("name", KINDS)
def test_values_outside_of_a_declared_type_get_one_sentence(name: str) -> None:
    """With a hint where several numbers are given for one."""
    kind, problems = KINDS[name], []
    needed = {"shape": (5, 4)} if kind is CellSampling else {}
    for setting, field in fields(kind).items():
        allowed = field.metadata["allowed"]
        for value in wrong_values(allowed):
            is_several = field.metadata["is_single"] and isinstance(value, list | tuple)
            hint = " (to sweep, use settings=...)" * is_several
            sentence = f"{setting} is {value!r}, but must be {allowed}{hint}"
            try:
                check(kind(**needed | {setting: value}))
            except ConfigError as error:
                if not str(error).startswith(sentence):
                    problems.append(f"{sentence}: {error}")
            else:
                problems.append(f"{sentence}: not refused")
    assert problems == []


def test_most_settings_have_values_outside_of_a_range_or_a_list_of_names() -> None:
    every = [field for kind in KINDS.values() for field in fields(kind).values()]
    tried = [field for field in every if len(wrong_values(field.metadata["allowed"])) > 2]
    assert len(tried) >= 0.7 * len(every)


@pytest.mark.parametrize("name", fedjax_sim.SYSTEMS)
def test_a_misspelt_name_gets_the_nearest(name: str) -> None:
    """In the constructor and in `replace`, whether it is a full name or the last part of one."""
    kind, problems = KINDS[name], []
    known = names_of(kind)
    for given, full in known.items():
        wrong = given + given[-1]
        if wrong in known:
            continue
        for change in (kind, kind().replace):
            try:
                change(**{wrong: 1})
            except ConfigError as error:
                words = rf"setting name is '{re.escape(wrong)}', but must be one of .*"
                if not re.fullmatch(rf"{words} \(did you mean '{full}'\?\)\.", str(error)):
                    problems.append(f"{given}: {str(error)[-60:]}")
            else:
                problems.append(f"{wrong}: not refused")
    assert problems == []
