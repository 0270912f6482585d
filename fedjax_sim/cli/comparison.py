"""The contenders of a command: systems with their settings, and their schedules."""

import argparse
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_sim.cli import arguments as texts
from fedjax_sim.cli.defaults import Defaults, defaults_of
from fedjax_sim.core import lifecycle, settings
from fedjax_sim.core.types import LatentProblem, Settings, System
from fedjax_sim.results import kept_settings, runs, summaries
from fedjax_sim.systems import SYSTEMS

MAIN_JOB = ("fedavg", "quafl", "fedbuff", "favano")
"""The systems compared if none is named."""
NOT_IGNORED = {
    "trace": "cannot follow one",
    "privacy": "cannot account for it",
    "local_privacy": "cannot account for it",
}
"""Settings that a system may not leave out in silence, and why it cannot have them."""


class Contender(NamedTuple):
    """A system with its settings.

    Attributes:
      system: The system.
      hyper: Its settings; those that are swept have their first values here.
      swept: The values of each setting that is swept, by name.
    """

    system: System
    hyper: Settings
    swept: dict[str, list[Any]]

    def points(self) -> list[tuple[str, Settings]]:
        """List every combination of the swept values: a label, and the complete settings."""
        values = itertools.product(*self.swept.values())
        combinations = [dict(zip(self.swept, each, strict=True)) for each in values]
        hypers = [self.hyper.replace(**point) for point in combinations]
        return list(zip(summaries.labels_of(self.system.name, combinations), hypers, strict=True))

    def used_settings(self) -> set[str]:
        """List names of settings, short and full ones, that have an effect at some point."""
        idle = set.intersection(*({*settings.idle_of(hyper)} for _, hyper in self.points()))
        names = settings.names_of(self.system.Hyper)
        return {name for name, full in names.items() if full not in idle}


class Asked(NamedTuple):
    """Systems, seeds and time budget of a command that simulates.

    Attributes:
      defaults: Defaults of the data set, and the preset.
      contenders: Systems with their settings.
      seeds: Seeds.
      time_budget: Virtual time to simulate.
    """

    defaults: Defaults
    contenders: list[Contender]
    seeds: list[int]
    time_budget: float

    def described(self) -> dict[str, object]:
        """Return config.json's entries for systems with settings, seeds and time.

        Raises:
          ConfigError: If a setting has no text, so that it could not be saved after the run.
        """
        systems = {}
        for contender in self.contenders:
            hypers = [hyper for _, hyper in contender.points()]
            kept_settings.write(hypers)
            systems[contender.system.name] = runs.plain_settings(hypers)
        return {"systems": systems, "seeds": self.seeds, "time_budget": self.time_budget}


def read_asked(
    arguments: argparse.Namespace, usual_time: float | None = None, **more: list[str]
) -> Asked:
    """Read systems, settings, seeds and time budget from the words of `run` or `timeline`.

    Args:
      arguments: The parsed words.
      usual_time: Time budget if the words give none; None for the data set's.
      **more: Texts of further settings.

    Raises:
      ConfigError: For input that is not allowed.
    """
    defaults = defaults_of(arguments.dataset or "digits", arguments.preset)
    seeds = texts.read_seeds(arguments.seeds)
    given = texts.read_settings(arguments)
    for name in given.keys() & more:
        raise settings.ConfigError(name, ",".join(given[name]), "left out: the log decides it")
    given |= more
    contenders = resolve_contenders(arguments.systems, given, defaults)
    is_latent = contenders[0].system.fit.learns is LatentProblem
    usual = usual_time or (defaults.em_time_budget if is_latent else defaults.time_budget)
    for contender in contenders:
        source = getattr(contender.hyper, "source_of_times", "")
        if source and arguments.time_budget is None and not usual_time:
            allowed = f"given in the unit of time of {source}: the default is in another unit"
            raise settings.ConfigError("time_budget", usual, allowed)
    time_budget = texts.read_value("time_budget", arguments.time_budget, usual, settings.Above0)
    return Asked(defaults, contenders, seeds, time_budget)


def resolve_contenders(
    names: Sequence[str], given: Mapping[str, list[str]], defaults: Defaults
) -> list[Contender]:
    """Resolve systems and settings given as text.

    A setting is applied only to systems that use it: a system may lack it, or have no use for it,
    such as the speeds of clients if delays are drawn for groups. If no system uses it, it is an
    error.

    Args:
      names: Names of systems; `MAIN_JOB` if empty.
      given: One text per value, by name of the setting; several values are swept over.
      defaults: Defaults of the data set, and the preset.

    Returns:
      One contender per system, in the order of the names.

    Raises:
      ConfigError: For an unknown or repeated system or setting, for systems that cannot share a
        problem, and for values that are not allowed.
    """
    if len(set(names)) < len(names):
        raise settings.ConfigError("systems", " ".join(names), "named once each")
    systems = [SYSTEMS[name] for name in names or MAIN_JOB]
    kinds = {system.fit.learns: system.name for system in systems}
    if len(kinds) > 1:
        allowed = "all of gradients or all of expectation maximisation, as they share a problem"
        raise settings.ConfigError("systems", " ".join(kinds.values()), allowed)
    texts.check_name("preset", defaults.preset or "paper", ["paper"])  # Every system has it.
    _check_names(systems, given)
    used = [_contender(system, given, defaults).used_settings() for system in systems]
    found, of_some = [], dict[str, list[str]]()
    for system, own in zip(systems, used, strict=True):
        left_to_others = set().union(*used) - own
        applied = {name: values for name, values in given.items() if name not in left_to_others}
        found.append(_contender(system, applied, defaults))
        settings.check_all([hyper for _, hyper in found[-1].points()])
    used = [each.used_settings() for each in found]
    for name in given:
        users = [each.system.name for each, own in zip(found, used, strict=True) if name in own]
        if len(users) < len(found):
            of_some.setdefault(", ".join(users), []).append(name)
    if of_some:
        groups = [f"for {users} only: {', '.join(own)}" for users, own in of_some.items()]
        lifecycle.say(f"set {'; '.join(groups)}.")
    return found


def _check_names(systems: Sequence[System], given: Mapping[str, list[str]]) -> None:
    """Check that some system has each setting, and none leaves one out in silence that matters."""
    for name, values in given.items():
        without = [each.name for each in systems if name not in settings.names_of(each.Hyper)]
        if len(without) == len(systems):
            raise settings.unknown_name(name, [system.Hyper for system in systems])
        if without and (why := NOT_IGNORED.get(name.rpartition(".")[2])):
            allowed = f"left out with {', '.join(without)}, which {why}"
            raise settings.ConfigError(name, ",".join(values), allowed)
    if len(given.get("num_clients", [])) > 1:
        allowed = "one, as the partition follows it"
        raise settings.ConfigError("values of num_clients", ",".join(given["num_clients"]), allowed)


def _contender(system: System, given: Mapping[str, list[str]], defaults: Defaults) -> Contender:
    """Make a contender of those settings that the system has."""
    known, values = settings.names_of(system.Hyper), dict[str, list[Any]]()
    for name in (name for name in given if name in known):
        values[name] = [settings.parse(system.Hyper, name, text) for text in given[name]]
        if len(set(map(repr, values[name]))) < len(values[name]):
            allowed = "different from each other"
            raise settings.ConfigError(f"values of {name}", ",".join(given[name]), allowed)
    usual = defaults.em_settings if system.fit.learns is LatentProblem else defaults.settings
    usual = {**usual, **defaults.tuned.get(system.name, {})}
    swept = {name: each for name, each in values.items() if len(each) > 1}
    firsts = {name: each[0] for name, each in values.items()}
    make = system.paper if defaults.preset else system.Hyper
    usual = {name: value for name, value in usual.items() if name in known}
    # Defaults of the data set that have no effect with the settings given are left out.
    used = Contender(system, make(**usual | firsts), swept).used_settings()
    usual = {name: value for name, value in usual.items() if name in used}
    return Contender(system, make(**usual | firsts), swept)
