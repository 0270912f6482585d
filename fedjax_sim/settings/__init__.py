"""Settings structs whose fields know their meaning and what values are allowed.

A system's `Hyper` is a frozen pytree built by `struct`. Fields made by `real`, `reals`, `whole` and
`weights` are leaves: they are traced and can be swept without recompiling. Fields made by `count`,
`choice`, `switch` and `static` are part of the static structure. A field made by `part` is itself a
settings struct. `check` turns a bad value into one sentence before anything is compiled.

A field made by `group` holds settings that belong together, such as the clients' delays. Its
settings have dotted names, such as `delays.rate_fast`. Wherever a setting is named, the last part
of its name is enough if no other setting ends in it: `Hyper(rate_fast=1.0)` is
`Hyper(delays=ClientDelays(rate_fast=1.0))` with the other delays at the defaults of `Hyper`.

`help(SomeHyper)` ends with a table of its settings: meaning, default and allowed values.

- `errors`: bad input as one sentence.
- `names`: what a struct's settings are called, mean, and depend on.
- `checks`: whether values are allowed.
- `declared`: makes fields.
- `structs`: makes structs of them.
- `text`: reads and writes values as the command line has them.
"""

from fedjax_sim.settings.checks import check, check_all, check_known, check_left
from fedjax_sim.settings.declared import (
    choice,
    clients_named,
    count,
    filled,
    fixed,
    group,
    part,
    parts,
    real,
    reals,
    redefault,
    static,
    switch,
    weights,
    whole,
)
from fedjax_sim.settings.errors import (
    ConfigError,
    Named,
    UnknownAttributeError,
    UnknownNameError,
    check_file,
    plain,
    writing_to,
)
from fedjax_sim.settings.names import (
    NOT_GIVEN,
    DefaultCount,
    DefaultTime,
    default_text,
    describe,
    fields,
    full_name,
    groups,
    idle_of,
    is_known,
    is_not,
    is_traced,
    known_values,
    late_of,
    names_of,
    of_preset,
    short_name,
    unknown_name,
    usual_values,
    value_of,
    with_default,
)
from fedjax_sim.settings.structs import Checked, OneOfSeveral, alternatives, alternatives_in, struct
from fedjax_sim.settings.text import Kind, parse, parse_kind

__all__ = [
    "NOT_GIVEN",
    "Checked",
    "ConfigError",
    "DefaultCount",
    "DefaultTime",
    "Kind",
    "Named",
    "OneOfSeveral",
    "UnknownAttributeError",
    "UnknownNameError",
    "alternatives",
    "alternatives_in",
    "check",
    "check_all",
    "check_file",
    "check_known",
    "check_left",
    "choice",
    "clients_named",
    "count",
    "default_text",
    "describe",
    "fields",
    "filled",
    "fixed",
    "full_name",
    "group",
    "groups",
    "idle_of",
    "is_known",
    "is_not",
    "is_traced",
    "known_values",
    "late_of",
    "names_of",
    "of_preset",
    "parse",
    "parse_kind",
    "part",
    "parts",
    "plain",
    "real",
    "reals",
    "redefault",
    "short_name",
    "static",
    "struct",
    "switch",
    "unknown_name",
    "usual_values",
    "value_of",
    "weights",
    "whole",
    "with_default",
    "writing_to",
]
