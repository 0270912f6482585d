"""`fedjax-sim list`: the names that the command line knows, and a system's settings."""

import argparse
import ast
from collections.abc import Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any

from rich.table import Table

from fedjax_sim import datasets, models, partition, systems
from fedjax_sim.cli.arguments import check_name
from fedjax_sim.cli.tables import make_console, print_json
from fedjax_sim.core.settings import default_text, fields, groups, idle_of
from fedjax_sim.problems import latent
from fedjax_sim.server import attacks, compression, privacy, rules


def run(arguments: argparse.Namespace) -> None:
    """Print the settings of the systems named, or everything there is if none is named.

    Args:
      arguments: The parsed words of `list`.

    Raises:
      ConfigError: If there is no system of a name.
    """
    if arguments.systems == ["datasets"]:
        rows = datasets.what_to_fetch()
        print_json(rows) if arguments.json else make_console().print(_fetch_table(rows))
        return
    if arguments.json:
        print_json(_settings(arguments.systems) if arguments.systems else _everything())
        return
    for table in settings_tables(arguments.systems):
        make_console().print(table)
    if not arguments.systems:
        for title, entries in _everything().items():
            if entries:
                title += " (python -m experiments run NAME)" if title == "experiments" else ""
                table = Table(
                    title=title, title_justify="left", box=None, show_header=False, padding=(0, 2)
                )
                for name, summary in entries.items():
                    table.add_row(name, summary)
                make_console().print(table)


def settings_tables(names: Sequence[str]) -> list[Table]:
    """Tabulate the settings of systems: name, default, meaning and allowed values.

    A system's own settings come first, then its groups. Settings without effect at the defaults are
    only named, below the table.

    Args:
      names: Names of systems.

    Raises:
      ConfigError: If there is no system of a name.
    """
    tables = []
    for name, system in _settings(names).items():
        title = f"{name}: {system['summary']}"
        table = Table(title=title, title_justify="left", box=None, padding=(0, 2))
        for column in ("setting", "default", "meaning and allowed values"):
            table.add_column(column, overflow="fold")
        owner = ""
        for full, told in system["settings"].items():
            inside, _, last = full.rpartition(".")
            if not told["has_effect"]:
                continue
            if inside != owner:
                owner = inside
                table.add_row(f"\n{inside}:", "", f"\n{system['groups'][inside]}")
            words = f"{told['meaning']} Allowed: {told['allowed']}."
            table.add_row(f"  {last}" if inside else last, told["default"], words)
        idle = [full for full, told in system["settings"].items() if not told["has_effect"]]
        if idle:
            table.add_row("\nno effect here:", "", "\n" + ", ".join(idle))
        tables.append(table)
    return tables


def _settings(names: Sequence[str]) -> dict[str, Any]:
    """Describe systems, their settings by full name, and their groups."""
    found = {}
    for name in [check_name("system", name, systems.SYSTEMS) for name in names]:
        system = systems.SYSTEMS[name]
        idle = idle_of(system.Hyper())
        settings = {
            full: {
                "default": _default(field),
                "meaning": field.metadata["meaning"],
                "allowed": field.metadata["allowed"],
                "has_effect": full not in idle,
            }
            for full, field in fields(system.Hyper).items()
        }
        about = {field.name: field.metadata["group"] for field in groups(system.Hyper)}
        found[name] = {"summary": system.summary, "settings": settings, "groups": about}
    return found


def _fetch_table(rows: Sequence[Mapping[str, str]]) -> Table:
    """Tabulate the data sets that are fetched: size, licence, host and names of the raw files."""
    table = Table(title="data sets to fetch", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in rows[0]:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row.values())
    return table


def _default(field: Field) -> str:
    """Write a default as a user would type it after `--set`."""
    default = field.default
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:g}"
    return default if isinstance(default, str) else default_text(field)


def _everything() -> dict[str, dict[str, str]]:
    """Collect everything that can be named, with a line about each."""
    return {
        "systems": {name: system.summary for name, system in systems.SYSTEMS.items()},
        "data sets": datasets.names(),
        "models": {name: entry.summary for name, entry in models.MODELS.items()},
        "latent-variable models": {name: entry.summary for name, entry in latent.MODELS.items()},
        "partitions": {name: summary for name, (_, summary) in partition.PARTITIONS.items()},
        "rules (aggregator)": _kinds(rules.RULES),
        "attacks (attack)": _kinds(attacks.ATTACKS),
        "compressors (compression, downlink)": _kinds(compression.COMPRESSORS),
        "privacy": _kinds(privacy.PRIVACY),
        "local privacy": _kinds(privacy.LOCAL_PRIVACY),
        "experiments": _experiments(),
    }


def _kinds(kinds: Mapping[str, type]) -> dict[str, str]:
    """Describe the kinds of a setting: the first line about each, and its own settings."""
    found = {}
    for name, kind in kinds.items():
        summary = (kind.__doc__ or "").partition("\n")[0].removesuffix(".")
        values = ", ".join(fields(kind))
        found[name] = summary + f"; with {values}" * bool(values)
    return found


def _experiments() -> dict[str, str]:
    """Find the experiments of a clone, with the first lines of their docstrings; none in a wheel.

    Their packages list them in a tuple `EXPERIMENTS`. They are read, not imported.
    """
    found = {}
    for package in sorted((Path(__file__).parents[2] / "experiments").glob("*/__init__.py")):
        assigned = {
            ast.unparse(node.targets[0]): node.value
            for node in ast.parse(package.read_bytes()).body
            if isinstance(node, ast.Assign)
        }
        for name in ast.literal_eval(assigned.get("EXPERIMENTS", "()")):
            module = ast.parse((package.parent / f"{name}.py").read_bytes())
            summary = (ast.get_docstring(module) or "").partition("\n")[0]
            found[f"{package.parent.name}/{name}"] = summary
    return found
