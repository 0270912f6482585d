"""Declared types of arguments and settings, and the structs that hold settings.

An annotation says what an argument or a setting may be: `Count`, `Above0`, or a type with
conditions, such as `Annotated[Array, shape("n")]`. Public calls check their arguments by the
decorator `checked`. A system's `Hyper` is a frozen pytree built by `struct`, and a field made by
`setting` allows what its declared type does:

    lr: Above0 = setting(0.1, "Learning rate.")

Real numbers are leaves: they are traced and can be swept without recompiling. Whole numbers, names
and functions are part of the static structure. `check` turns a bad value into one sentence before
anything is compiled. A struct knows which of its settings were given, see `is_given`.

A field made by `group` holds settings that belong together, such as the clients' delays. Its
settings have dotted names, such as `delays.rate_fast`. Wherever a setting is named, the last part
of its name is enough if no other setting ends in it: `Hyper(rate_fast=1.0)` is
`Hyper(delays=ClientDelays(rate_fast=1.0))` with the other delays at the defaults of `Hyper`.

`help(SomeHyper)` ends with a table of its settings: meaning, default and allowed values.

- `errors`: bad input as one sentence.
- `declared`: the values that an annotation allows, in words.
- `names`: what a struct's settings are called, mean, and depend on.
- `checks`: arguments of calls, and values of settings one by one and together.
- `structs`: makes fields, and structs of them.
- `text`: reads and writes values as the command line has them.
"""

from fedjax_sim.core.settings.checks import check as check
from fedjax_sim.core.settings.checks import check_all as check_all
from fedjax_sim.core.settings.checks import check_left as check_left
from fedjax_sim.core.settings.checks import checked as checked
from fedjax_sim.core.settings.checks import checked_all as checked_all
from fedjax_sim.core.settings.declared import Above0 as Above0
from fedjax_sim.core.settings.declared import AtLeast0 as AtLeast0
from fedjax_sim.core.settings.declared import AtLeast1 as AtLeast1
from fedjax_sim.core.settings.declared import Count as Count
from fedjax_sim.core.settings.declared import Finite as Finite
from fedjax_sim.core.settings.declared import FloatType as FloatType
from fedjax_sim.core.settings.declared import Fraction as Fraction
from fedjax_sim.core.settings.declared import LaneSeed as LaneSeed
from fedjax_sim.core.settings.declared import Limit as Limit
from fedjax_sim.core.settings.declared import OneOf as OneOf
from fedjax_sim.core.settings.declared import Portion as Portion
from fedjax_sim.core.settings.declared import Probability as Probability
from fedjax_sim.core.settings.declared import Seed as Seed
from fedjax_sim.core.settings.declared import Share as Share
from fedjax_sim.core.settings.declared import Whole as Whole
from fedjax_sim.core.settings.declared import hints_of as hints_of
from fedjax_sim.core.settings.declared import kind_of as kind_of
from fedjax_sim.core.settings.declared import shape as shape
from fedjax_sim.core.settings.errors import ConfigError as ConfigError
from fedjax_sim.core.settings.errors import Named as Named
from fedjax_sim.core.settings.errors import UnknownAttributeError as UnknownAttributeError
from fedjax_sim.core.settings.errors import check_file as check_file
from fedjax_sim.core.settings.errors import load_extra as load_extra
from fedjax_sim.core.settings.errors import writing_to as writing_to
from fedjax_sim.core.settings.names import ASSUMED as ASSUMED
from fedjax_sim.core.settings.names import Checked as Checked
from fedjax_sim.core.settings.names import default_text as default_text
from fedjax_sim.core.settings.names import fields as fields
from fedjax_sim.core.settings.names import full_name as full_name
from fedjax_sim.core.settings.names import groups as groups
from fedjax_sim.core.settings.names import idle_of as idle_of
from fedjax_sim.core.settings.names import is_given as is_given
from fedjax_sim.core.settings.names import is_known as is_known
from fedjax_sim.core.settings.names import is_not as is_not
from fedjax_sim.core.settings.names import is_traced as is_traced
from fedjax_sim.core.settings.names import known_values as known_values
from fedjax_sim.core.settings.names import late_of as late_of
from fedjax_sim.core.settings.names import names_of as names_of
from fedjax_sim.core.settings.names import plain as plain
from fedjax_sim.core.settings.names import unknown_name as unknown_name
from fedjax_sim.core.settings.names import value_of as value_of
from fedjax_sim.core.settings.structs import OneOfSeveral as OneOfSeveral
from fedjax_sim.core.settings.structs import alternatives as alternatives
from fedjax_sim.core.settings.structs import alternatives_in as alternatives_in
from fedjax_sim.core.settings.structs import clients_named as clients_named
from fedjax_sim.core.settings.structs import filled as filled
from fedjax_sim.core.settings.structs import fixed as fixed
from fedjax_sim.core.settings.structs import group as group
from fedjax_sim.core.settings.structs import redefault as redefault
from fedjax_sim.core.settings.structs import setting as setting
from fedjax_sim.core.settings.structs import struct as struct
from fedjax_sim.core.settings.text import Kind as Kind
from fedjax_sim.core.settings.text import is_same as is_same
from fedjax_sim.core.settings.text import parse as parse
from fedjax_sim.core.settings.text import parse_function as parse_function
from fedjax_sim.core.settings.text import parse_kind as parse_kind
from fedjax_sim.core.settings.text import text_of as text_of
