"""Settings and the containers of models as JSON, read back without running any code.

    null, booleans, whole and real numbers, text, lists     as JSON has them
    {"real": "nan"}                                         a real number that JSON lacks
    {"assumed": ["lr"]}                                     settings that nobody has given, of
                                                            the number of clients, if whole
    {"tuple": [...]}, {"dict": [[key, value], ...]}
    {"array": 0}                                            number in a table of arrays
    {"name": "optax:sgd"}                                   a function or class, by its module
    {"partial": [function, arguments, named arguments]}     of `functools.partial`
    {"struct": "module:Class", "fields": {...}}             a dataclass or a named tuple
    {"object": 0}                                           number in a table of further objects:
                                                            traces and tables of clients
    {"pickle": 0}                                           number in a table of pickles

Equal arrays, and objects that several lanes share, are in their table once. A pickle is written
only for what has no other form, such as a lambda or a class that was made in a function, and is
read only if the reader trusts the file: reading a pickle can run any code. Names are looked up in
this package and in modules that are imported already. Nothing is called: structs get their fields
without their constructors.
"""

import base64
import dataclasses
import functools
import hashlib
import importlib
import math
import pickle
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.settings import ASSUMED, Assumed

OWN = __name__.partition(".")[0]
"""This package, whose modules a name may import."""


ATTRIBUTES = "made_of_attributes"
"""What a class has that is no dataclass, and whose objects consist of their attributes."""


PARTIAL = ("optax", "jax", "flax")
"""Packages whose functions may have arguments without trust: with some, a function can do much."""


TRUST = "if you trust whoever wrote it, use trust=True, on the command line --trust"


class UnreadableError(ValueError):
    """Why a value cannot be read, as the end of a sentence."""


class Writer:
    """Turns values into JSON.

    Attributes:
      tables: The tables of arrays (kind, type, shape and bytes of each), objects and pickles.
    """

    def __init__(self) -> None:
        self.tables: dict[str, list[Any]] = {"array": [], "object": [], "pickle": []}
        self._places: dict[Any, int] = {}
        self._held: list[Any] = []

    def plain(self, value: Any) -> Any:
        """Turn a value into a form that `json` can write.

        Args:
          value: Any value.
        """
        kind = type(value)
        if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
            return value
        if kind is float:
            return {"real": repr(value)}
        if kind is Assumed:
            return {"assumed": [*value]}
        if kind is list:
            return [self.plain(each) for each in value]
        if kind is tuple:
            return {"tuple": [self.plain(each) for each in value]}
        if kind is dict:
            return {"dict": [[self.plain(key), self.plain(each)] for key, each in value.items()]}
        if isinstance(value, np.generic) or kind is np.ndarray or isinstance(value, jax.Array):
            return self._array(value)
        if kind is functools.partial:
            return {"partial": [self.plain(x) for x in (value.func, value.args, value.keywords)]}
        if hasattr(kind, ATTRIBUTES) and _name_of(kind):
            return self._object("object", value)
        if (fields := _fields_of(value)) is not None and _name_of(kind):
            return self._struct(value, fields)
        if name := _name_of(value):
            return {"name": name}
        return self._object("pickle", value)

    def _array(self, value: Any) -> Any:
        kind = "scalar" if isinstance(value, np.generic) else "numpy"
        if isinstance(value, jax.Array):
            kind = "jax"
            if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
                return self._object("pickle", value)
        values = np.asarray(value)
        if values.dtype.hasobject or values.dtype.names:
            return self._object("pickle", value)
        # Types that JAX adds to NumPy, such as bfloat16, have names alone.
        dtype = values.dtype.name if values.dtype.kind == "V" else values.dtype.str
        entry = {
            "kind": kind,
            "dtype": dtype,
            "shape": list(values.shape),
            "bytes": base64.b64encode(values.tobytes()).decode(),
        }
        key = (kind, dtype, values.shape, hashlib.sha256(values.tobytes()).digest())
        if key not in self._places:
            self._places[key] = len(self.tables["array"])
            self.tables["array"].append(entry)
        return {"array": self._places[key]}

    def _object(self, table: str, value: Any) -> Any:
        """Put an object into a table unless it is there."""
        if id(value) not in self._places:
            self._held.append(value)  # Its id must not become another object's.
            if table == "pickle":
                entry: Any = base64.b64encode(cloudpickle.dumps(value)).decode()
            else:
                entry = self._struct(value, vars(value))
            self._places[id(value)] = len(self.tables[table])
            self.tables[table].append(entry)
        return {table: self._places[id(value)]}

    def _struct(self, value: Any, fields: Mapping[str, Any]) -> Any:
        written = {name: self.plain(each) for name, each in fields.items()}
        return {"struct": _name_of(type(value)), "fields": written}


class Reader:
    """Reads the values that a `Writer` wrote."""

    def __init__(self, tables: Mapping[str, Sequence[Any]], *, trust: bool):
        """Take the tables.

        Args:
          tables: The tables of the writer.
          trust: Whether pickles are read, and modules imported that are not yet.
        """
        self._trust, self._tables = trust, tables
        self._made: dict[tuple[str, int], Any] = {}

    def value(self, content: Any, place: str) -> Any:
        """Make the value again.

        Args:
          content: What `Writer.plain` returned.
          place: What the value is, for messages.

        Raises:
          UnreadableError: If the value can only be read with trust, or not here at all.
          Exception: Of many kinds, if the content is of another form.
        """
        if isinstance(content, list):
            return [self.value(each, place) for each in content]
        if not isinstance(content, dict):
            return content
        if "struct" in content:
            return self._struct(_find(content["struct"], self._trust), content["fields"])
        ((kind, inner),) = content.items()
        if kind == "real":
            return float(inner)
        if kind == "assumed":
            return Assumed.fromkeys(inner)
        if kind == "tuple":
            return tuple(self.value(each, place) for each in inner)
        if kind == "dict":
            return {self.value(key, place): self.value(each, place) for key, each in inner}
        if kind == "name":
            return _find(inner, self._trust)
        if kind == "partial":
            function, arguments, named = (self.value(each, place) for each in inner)
            if not self._trust and inner[0]["name"].partition(":")[0] not in PARTIAL:
                raise UnreadableError(f"names {inner[0]['name']} with arguments: {TRUST}")
            return functools.partial(function, *arguments, **named)
        entry = self._tables[kind][inner]
        if kind == "pickle" and not self._trust:
            raise UnreadableError(
                f"keeps {place} as a pickle, which can run any code when it is read: {TRUST}"
            )
        if (kind, inner) not in self._made:
            if kind == "object":
                self._made[kind, inner] = self.value(entry, place)
            else:
                self._made[kind, inner] = (_array_of if kind == "array" else _unpickled)(entry)
        return self._made[kind, inner]

    def _struct(self, kind: Any, fields: Mapping[str, Any]) -> Any:
        """Make a struct of its fields, without calling its constructor."""
        if hasattr(kind, "__del__"):
            raise UnreadableError(f"names {kind.__qualname__}, which does something at its end")
        values = {name: self.value(each, name) for name, each in fields.items()}
        is_tuple = issubclass(kind, tuple)
        # A field that is new in this version has its default, which the class holds.
        if hasattr(kind, ATTRIBUTES):
            known = [*values]
        else:
            known = kind._fields if is_tuple else [x.name for x in dataclasses.fields(kind)]
        needed = {name for name in known if is_tuple or not hasattr(kind, name)}
        if changed := ({*values} - {*known}) | (needed - {*values}):
            raise UnreadableError(
                f"is of another version of {kind.__qualname__}, which differs in "
                f"{', '.join(sorted(changed))}"
            )
        if is_tuple:
            return tuple.__new__(kind, [values[name] for name in kind._fields])
        if ASSUMED in values:
            values[ASSUMED] = Assumed({name: values[name] for name in values[ASSUMED]})
        made = object.__new__(kind)
        for name, each in values.items():
            object.__setattr__(made, name, each)
        return made


def _fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass or a named tuple; None if it has more to it, or is none."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        if {*getattr(value, "__dict__", "?")} <= {*names}:
            return {name: getattr(value, name) for name in names}
    return None


def _name_of(value: Any) -> str | None:
    """Name a function or class so that it is found again; None if it has no such name."""
    module, name = (getattr(value, each, None) for each in ("__module__", "__qualname__"))
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    # The public name, of the outermost package that has it, stays when files move.
    parts = module.split(".")
    for place in (".".join(parts[:end]) for end in range(1, len(parts) + 1)):
        try:
            if _find(f"{place}:{name}", trust=False) is value:
                return f"{place}:{name}"
        except (UnreadableError, AttributeError):
            continue
    return None


def _find(name: str, trust: bool) -> Any:
    """Find a function or class by its name, such as "optax:sgd".

    A script's own names are not looked up: another script may use them for something else. Nor are
    those of Python's library, of which no setting is made, but with which much can be done.
    """
    module, _, names = name.partition(":")
    package = module.partition(".")[0]
    if package == "__main__" or package in sys.stdlib_module_names:
        raise UnreadableError(f"names {name}, which is not allowed in settings")
    if module not in sys.modules:
        if not trust and (package != OWN or module.endswith("__main__")):
            raise UnreadableError(f"names {name}: import {module} first, if you trust it")
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UnreadableError(f"names {name}, which is not here ({error})") from None
    found: Any = sys.modules[module]
    for part in names.split("."):
        if not hasattr(found, part):
            raise UnreadableError(f"names {name}, which is not here")
        found = getattr(found, part)
        if isinstance(found, ModuleType):
            break
    home = getattr(found, "__module__", None)
    if not callable(found) or not isinstance(home, str) or home.partition(".")[0] != package:
        raise UnreadableError(f"names {name}, which is no function or class of {package}")
    return found


def _array_of(entry: Mapping[str, Any]) -> Any:
    """Make an array of an entry in the table."""
    content = base64.b64decode(entry["bytes"], validate=True)
    values = np.frombuffer(content, np.dtype(entry["dtype"])).reshape(entry["shape"]).copy()
    if entry["kind"] == "jax":
        with jax.enable_x64(True):
            return jnp.asarray(values)
    return values[()] if entry["kind"] == "scalar" else values


def _unpickled(entry: str) -> Any:
    """Read a pickle that is trusted."""
    try:
        return pickle.loads(base64.b64decode(entry, validate=True))
    except Exception as error:  # Pickles raise errors of every kind.
        raise UnreadableError(f"holds a pickle that cannot be read here ({error})") from None
