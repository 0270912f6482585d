"""Results as data: JSON files of experiments, committed under `experiments/PAPER/results/`.

An experiment has one file, or, if its panels were run one by one, a file for each panel.

An entry has the verdicts of one run with the numbers behind them, how it was run and what it cost,
what it printed, and the names of its pictures. Numbers are rounded to five digits. Every run writes
its entry to its results folder, and `keep` copies it to the repository. `rows` joins the entries
into one row per claim.

Verdicts are computed from the entry's numbers by the functions that judge a run, see `judged`. A
verdict by another criterion than today's is no verdict: `rows` counts it as undecided.
"""

import datetime
import importlib
import json
import os
import platform
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments.harness import registry
from experiments.harness.claims import Claim, Claims, Erratum, Verdict, claims_of, worded
from experiments.harness.experiment import Arguments, Outcome
from experiments.harness.statistics import HOLDS, NOT_HERE, NOT_RUN_WORDS, PARTLY, VERDICTS
from fedjax_sim.core.lifecycle import read_json
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.results.reports import to_json
from fedjax_sim.studies.statistics import Sample

ROOT = Path(__file__).parents[1]
"""The folder of all experiments."""
FIGURES = ROOT / "figures"
"""The folder of the committed pictures."""
FILE = "entry.json"
"""Name of the entry in a results folder."""
OLD = "judged by an earlier criterion, not run since: "
"""Why a verdict by another criterion than today's does not count."""
TOLERANCE = 0.05
"""Share by which a number may differ from that of another machine."""
UNKNOWN = "unknown"
"""The machine of a record that names none; it is the same as no other."""
INSTRUCTIONS = {"avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve"}
"""Instruction sets that are named, as compilers choose by them how sums are ordered."""
MOST_PICTURES = 7
"""Pictures kept of an experiment."""


class Cost(NamedTuple):
    """What a run cost.

    Attributes:
      seconds: Wall-clock seconds.
      cpu_seconds: Processor seconds of the process.
    """

    seconds: float
    cpu_seconds: float


def command_of(name: str, arguments: Arguments) -> str:
    """Write the command line of a run, without the folders that differ between machines."""
    words = ["python", "-m", "experiments", "run", name]
    for flag in ("smoke", "reduced"):
        words += [f"--{flag}"] if getattr(arguments, flag) else []
    words += [] if arguments.seeds is None else ["--seeds", str(arguments.words_of_seeds)]
    for option in ("dataset", "only"):
        value = getattr(arguments, option)
        if value is not None:
            words += [f"--{option}", Path(str(value)).name]
    words += [] if arguments.rate is None else [f"--rate={arguments.rate:g}"]
    words += ["--cells", *arguments.cells] if arguments.cells else []
    if arguments.precision != "float32":
        words += ["--precision", arguments.precision]
    return shlex.join(words)


def size_of(arguments: Arguments) -> str:
    """Return the size of a run in one word."""
    return "smoke" if arguments.smoke else "reduced" if arguments.reduced else "full"


def complete(
    verdicts: Iterable[Verdict], size: str, config: Mapping[str, Any], inputs: Any
) -> tuple[Verdict, ...]:
    """Add the size of the run and its number of seeds to verdicts.

    A verdict with fewer seeds than it asks for counts as one of a reduced run, and so does one from
    `inputs` that name what is "reduced". Only claims of kind "measured" have seeds.
    """
    seeds = int(config.get("seeds", 0))
    small = isinstance(inputs, Mapping) and bool(inputs.get("reduced"))
    return tuple(
        each._replace(
            size=each.size
            or ("reduced" if size == "full" and (small or "reduced:" in each.scope) else size),
            seeds=(each.seeds or seeds) if each.kind == "measured" else 0,
        )
        for each in verdicts
    )


def entry_of(name: str, arguments: Arguments, outcome: Outcome, cost: Cost) -> dict[str, Any]:
    """Make the entry of a run that has just ended."""
    entry = {
        "experiment": name,
        **({"panel": outcome.panel} if outcome.panel else {}),
        "command": command_of(name, arguments),
        "date": datetime.date.today().isoformat(),
        "size": size_of(arguments),
        "seeds": int(outcome.config.get("seeds", 0)),
        **({"adds_from": arguments.first_seed} if arguments.adds else {}),
        "machine": machine(),
        "cost": {key: round(value, 1) for key, value in cost._asdict().items()},
        "claims": [each._asdict() for each in outcome.verdicts],
        "inputs": plain_inputs(outcome.inputs),
        "text": outcome.text.strip(),
        "pictures": [*outcome.figures][:MOST_PICTURES],
    }
    return dict(rounded(json.loads(to_json(entry))))


def machine() -> dict[str, Any]:
    """Describe what the digits of a run depend on: device, cores, instructions and JAX."""
    device = jax.devices()[0]
    try:
        cpus = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        cpus = ""
    of_cpu = dict(line.split(":", 1) for line in cpus.splitlines() if ":" in line)
    named = {name.strip(): value.strip() for name, value in of_cpu.items()}
    flags = set(named.get("flags", named.get("Features", "")).split())
    return {
        "device": device.device_kind if device.platform != "cpu" else "cpu",
        "devices": jax.device_count(),
        "processor": named.get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "instructions": sorted(flags & INSTRUCTIONS),
        "jax": jax.__version__,
    }


def differences(entry: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """Compare a run with the record: claims of another verdict, or another number.

    All digits count if both were run on the same machine. Otherwise, or where one of them is
    `UNKNOWN`, numbers may differ by `TOLERANCE` of themselves, as chaotic runs do.

    Args:
      entry: The entry of the run.
      record: The committed entry.

    Returns:
      One sentence for each claim that differs.
    """
    same = entry["machine"] == record["machine"] != UNKNOWN
    known, told = {each["id"]: each for each in record["claims"]}, []
    for each in entry["claims"]:
        other = known.get(each["id"])
        if other is None:
            told.append(f"{each['id']}: not in the record")
        elif each["verdict"] != other["verdict"]:
            told.append(f"{each['id']}: {each['verdict']}, in the record {other['verdict']}")
        elif not _agree(each["measured"], other["measured"], 0.0 if same else TOLERANCE):
            told.append(f"{each['id']}: same verdict, other numbers")
    return told


def _agree(ours: Any, theirs: Any, tolerance: float) -> bool:
    """Return whether nested numbers agree to a share of the larger one; other leaves are equal."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        shared = ours.keys() & theirs.keys()
        return all(_agree(ours[name], theirs[name], tolerance) for name in shared)
    if isinstance(ours, list) and isinstance(theirs, list):
        pairs = zip(ours, theirs, strict=False)
        return len(ours) == len(theirs) and all(_agree(*each, tolerance) for each in pairs)
    if isinstance(ours, int | float) and isinstance(theirs, int | float):
        return abs(ours - theirs) <= tolerance * max(abs(ours), abs(theirs)) + 1e-12
    return bool(ours == theirs)


def plain_inputs(content: Any) -> Any:
    """Write named tuples as mappings, which JSON keeps by name."""
    if hasattr(content, "_asdict"):
        content = content._asdict()
    if isinstance(content, Mapping):
        return {str(name): plain_inputs(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain_inputs(value) for value in content]
    return content


def judged(entry: Mapping[str, Any]) -> list[Verdict]:
    """Judge an entry anew from the numbers that it keeps, by today's criteria.

    The module's function `judge` takes the entry's inputs. Of an entry without inputs the functions
    in the module's table `JUDGES` take what was measured of each claim. Verdicts "not run" stay,
    with today's text. Those on claims that are no more are left out.
    """
    module = importlib.import_module("experiments." + entry["experiment"].replace("/", "."))
    anew: Sequence[Verdict] = ()
    found = {each["id"]: Verdict(**each) for each in entry["claims"]}
    if entry.get("inputs") is not None:
        anew, found = module.judge(entry["inputs"]), {}
    else:
        anew = [
            module.JUDGES[int(each.id.rpartition("-")[2])](each.measured)._replace(
                size=each.size, seeds=each.seeds
            )
            for each in found.values()
            if each.verdict != NOT_RUN_WORDS and claim_of(each.id) is not None
        ]
    complete_ones = complete(anew, entry["size"], {"seeds": entry["seeds"]}, entry.get("inputs"))
    found |= {each.id: each for each in complete_ones}
    named = {id: claim_of(id) for id in found}
    return [
        each._replace(
            claim=claim.text,
            paper=claim.place,
            kind=claim.kind,
            seeds=each.seeds if claim.kind == "measured" else 0,
        )
        for each in found.values()
        if (claim := named[each.id]) is not None
    ]


def claim_of(id: str) -> Claim | None:
    """Return the claim with an id such as "favano-9", None if there is none."""
    paper, _, number = id.rpartition("-")
    return claims_of(paper).get(int(number))


def is_by_todays_criterion(verdict: Verdict) -> bool:
    """Return whether a verdict was given by today's criterion, spaces and signs apart."""
    claim = claim_of(verdict.id)
    return claim is not None and _plain(str(claim.criterion)) == _plain(verdict.criterion)


def _plain(text: str) -> str:
    """Write a text with single spaces and one sign for norms and squares."""
    return " ".join(text.replace("||", "‖").replace("^2", "²").split())


def rounded(content: Any, digits: int = 5) -> Any:
    """Round all numbers of a JSON value to significant digits."""
    if isinstance(content, dict):
        return {name: rounded(value, digits) for name, value in content.items()}
    if isinstance(content, list):
        return [rounded(value, digits) for value in content]
    return float(f"{content:.{digits}g}") if isinstance(content, float) else content


def name_of(entry: Mapping[str, Any]) -> str:
    """Return the name under which an entry is committed: its experiment's, with the panel."""
    panel = entry.get("panel")
    return f"{entry['experiment']}_{panel}" if panel else str(entry["experiment"])


def file_of(name: str) -> Path:
    """Return where the entry with a name is committed."""
    paper, _, short = name.partition("/")
    return ROOT / paper / "results" / f"{short}.json"


def picture_of(name: str, file: str) -> str:
    """Return the name under which a picture of the entry with a name is committed."""
    paper, _, short = name.partition("/")
    if file.startswith(f"{paper}_"):
        return file
    return f"{paper}_{file}" if file.startswith(short) else f"{paper}_{short}_{file}"


def read_entry(folder: Path, *, trust: bool = False) -> dict[str, Any]:
    """Read the entry of a results folder.

    Raises:
      ConfigError: If the folder has none.
      InputError: If the entry is damaged.
    """
    try:
        return dict(read_json(folder / FILE, trust=trust))
    except OSError:
        raise ConfigError("results folder", str(folder), "one of a finished run") from None


def compared(folder: Path, *, trust: bool = False) -> list[str]:
    """Compare the run of a results folder with the record, see `differences`.

    Raises:
      ConfigError: If the folder has no entry, or the record has none of this experiment.
    """
    entry = read_entry(folder, trust=trust)
    file = file_of(name_of(entry))
    if not file.exists():
        raise ConfigError("results folder", str(folder), "one of an experiment with a record")
    return differences(entry, json.loads(file.read_bytes()))


def keep(folder: Path, *, trust: bool = False) -> str:
    """Copy the entry and the pictures of a results folder to the repository.

    A run of further seeds or of single cells is added to the entry that is there, whose pictures
    stay those of its first run.

    Args:
      folder: A results folder of `python -m experiments run`.
      trust: Whether an entry that carries no SHA-256 is taken as it is.

    Returns:
      The name under which the entry is committed.

    Raises:
      ConfigError: If the folder has no entry, or one of a smoke run, or if it cannot be added.
      InputError: If the entry is damaged.
    """
    entry = read_entry(folder, trust=trust)
    if entry["size"] == "smoke":
        raise ConfigError("folder to keep", str(folder), "no smoke run: those are not evidence")
    name = name_of(entry)
    if "adds_from" in entry:
        write(added(entry))
        return name
    write(entry)
    for file in entry["pictures"]:
        shutil.copyfile(folder / file, FIGURES / picture_of(name, file))
    return name


def recorded(name: str) -> dict[str, Any]:
    """Return the numbers behind the verdicts of a committed entry."""
    return dict(json.loads(file_of(name).read_bytes())["inputs"])


def added(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Add a run of further seeds or of single cells to the committed entry, and judge both.

    Args:
      entry: The entry of the run.

    Returns:
      The committed entry with all numbers, today's verdicts on them, and how the run was made.

    Raises:
      ConfigError: If there is no such entry, or the seeds are not those that come next.
    """
    file = file_of(name_of(entry))
    if not file.exists():
        raise ConfigError("folder to keep", name_of(entry), "one of an experiment with a record")
    record = json.loads(file.read_bytes())
    if record["size"] != entry["size"]:
        raise ConfigError("size of the added run", entry["size"], record["size"])
    inputs = pooled(record["inputs"], entry["inputs"], entry["adds_from"])
    run = {name: entry[name] for name in ("command", "date", "machine", "cost")}
    seeds = least_seeds(inputs)
    whole = {**record, "inputs": inputs, "seeds": seeds, "added": [*record.get("added", ()), run]}
    claims = json.loads(to_json([each._asdict() for each in judged(whole)]))
    return {**whole, "claims": rounded(claims)}


def pooled(known: Any, new: Any, first_seed: int, where: str = "") -> Any:
    """Put the single runs of further seeds behind those of the record.

    Args:
      known: The numbers of the record, of which samples keep their single runs.
      new: Those of the run, which may lack some of the record's samples.
      first_seed: The first seed of the run.
      where: Name of the place, for errors.

    Returns:
      All numbers. What is no sample is the same in both.

    Raises:
      ConfigError: If a sample of the record does not end where the run begins, or numbers that are
        no samples differ.
    """
    if not isinstance(known, Mapping) or not isinstance(new, Mapping):
        if known != new:
            raise ConfigError(f"{where} of the added run", new, f"{known!r}, as in the record")
        return known
    if is_sample(known) and is_sample(new):
        if known["seeds"] != first_seed:
            allowed = f"{known['seeds']}, as the record has those before it of {where}"
            raise ConfigError("first of the added seeds", first_seed, allowed)
        values = [value for each in (known, new) for value in Sample.read(each).values or ()]
        return plain_inputs(Sample.of(values))
    if strange := new.keys() - known.keys():
        raise ConfigError("added numbers", sorted(strange), f"some of {', '.join(known)}")
    return {
        name: pooled(value, new[name], first_seed, f"{where}, {name}".removeprefix(", "))
        if name in new
        else value
        for name, value in known.items()
    }


def is_sample(content: Any) -> bool:
    """Tell whether numbers are a sample with its single runs."""
    return isinstance(content, Mapping) and bool(content.get("values"))


def least_seeds(inputs: Any) -> int:
    """Return the number of seeds of the smallest sample."""
    if is_sample(inputs):
        return int(inputs["seeds"])
    numbers = map(least_seeds, inputs.values()) if isinstance(inputs, Mapping) else ()
    return min((each for each in numbers if each), default=0)


def write(entry: Mapping[str, Any]) -> None:
    """Write an entry to its place in the repository."""
    file = file_of(name_of(entry))
    file.parent.mkdir(exist_ok=True)
    file.write_text(compact(entry), encoding="utf-8")


def compact(content: Any) -> str:
    """Write JSON with lists of numbers on one line each."""
    return _compact(json.loads(to_json(content)), 0) + "\n"


def _compact(content: Any, depth: int) -> str:
    flat = json.dumps(content, ensure_ascii=False)
    is_inner = isinstance(content, dict | list) and any(
        isinstance(each, dict | list)
        for each in (content.values() if isinstance(content, dict) else content)
    )
    if not content or not isinstance(content, dict | list) or (len(flat) < 90 and not is_inner):
        return flat
    if isinstance(content, list) and not any(isinstance(x, dict | list | str) for x in content):
        return flat
    pad, end = " " * (depth + 1), " " * depth
    if isinstance(content, list):
        inner = ",\n".join(pad + _compact(each, depth + 1) for each in content)
        return f"[\n{inner}\n{end}]"
    inner = ",\n".join(
        f"{pad}{json.dumps(name, ensure_ascii=False)}: {_compact(each, depth + 1)}"
        for name, each in content.items()
    )
    return f"{{\n{inner}\n{end}}}"


def entries(root: Path = ROOT) -> list[dict[str, Any]]:
    """Read all committed entries, in the order in which experiments are listed."""
    files = {path: json.loads(path.read_bytes()) for path in sorted(root.glob("*/results/*.json"))}
    order = {name: number for number, name in enumerate(registry.names())}
    return sorted(files.values(), key=lambda entry: order.get(entry["experiment"], len(order)))


class Row(NamedTuple):
    """One claim, and all that is known of it.

    Attributes:
      paper: The paper's short name.
      claim: The claim.
      verdict: The verdict of all entries together, one of `VERDICTS`.
      scope: Its scope.
      found: The verdicts of single entries that are more than "not run", with their entries; those
        that decide first.
    """

    paper: str
    claim: Claim
    verdict: str
    scope: str
    found: tuple[tuple[Verdict, Mapping[str, Any]], ...]


def rows(found: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Join entries into one row per claim, claims without an entry included.

    A verdict by another criterion than today's becomes undecided.
    """
    of_claim: dict[str, list[tuple[Verdict, Mapping[str, Any]]]] = {}
    for entry in found:
        for each in entry["claims"]:
            stored = Verdict(**each)
            if stored.verdict != NOT_RUN_WORDS and not is_by_todays_criterion(stored):
                stored = stored.undecided(OLD)
            of_claim.setdefault(stored.id, []).append((stored, entry))
    made = []
    for paper, claims in all_claims().items():
        for claim in claims.values():
            said = [each for each in of_claim.get(claim.id, []) if each[0].verdict != NOT_RUN_WORDS]
            said.sort(key=partial(_place, claim.by))
            by = [each for each in said if name_of(each[1]) in claim.by] if claim.by else said[:1]
            if claim.by and by and name_of(by[0][1]) != claim.by[0]:
                by = []  # Other parts decide nothing without the first one.
            verdict, scope = joined([each for each, _ in by], [name_of(e) for _, e in by])
            made.append(Row(paper, claim, verdict, scope, tuple(said)))
    return made


def _place(by: Sequence[str], found: tuple[Verdict, Mapping[str, Any]]) -> int:
    """Return the place of a verdict's entry among those that decide a claim, notes last.

    If none is named, the run that is nearest to the paper's decides: one that needs no substitute,
    else that which says the fewest things in which it is smaller.
    """
    verdict, entry = found
    name = name_of(entry)
    if by:
        return by.index(name) if name in by else len(by)
    smaller = verdict.scope.partition("reduced: ")[2]
    return len(smaller.split(", ")) if smaller else int(verdict.verdict == NOT_HERE)


def joined(said: Sequence[Verdict], names: Sequence[str]) -> tuple[str, str]:
    """Join the verdicts of the experiments that decide a claim.

    The first one is the deciding part, and the others are parts of the same sentence, see `rule`.

    Args:
      said: The verdicts.
      names: Names of their entries.
    """
    if not said:
        return NOT_RUN_WORDS, ""
    first = said[0]
    others = [each.verdict for each in said[1:]]
    if not others:
        return first.verdict, first.scope
    told = "; ".join(
        f"{name} {worded(each.verdict, each.scope)}" for name, each in zip(names, said, strict=True)
    )
    is_part = first.verdict == HOLDS and any(each != HOLDS for each in others)
    return (PARTLY if is_part else first.verdict), told


def is_later(claim: Claim, entry: Mapping[str, Any]) -> bool:
    """Return whether the criterion of a claim is later than a run."""
    return str(entry["date"]) < claim.since


def all_claims() -> dict[str, Claims]:
    """Return the claims of every paper that has some."""
    return {
        paper: claims_of(paper)
        for paper in registry.PAPERS
        if (ROOT / paper / "claims.py").exists()
    }


def errata(names: Mapping[str, str]) -> list[tuple[str, Erratum]]:
    """Return the errata of papers with the names of their systems, which `names` has by paper."""
    return [(name, each) for paper, name in names.items() for each in all_claims()[paper].errata]


def counts(found: Iterable[Row]) -> dict[str, int]:
    """Count rows by verdict."""
    number = dict.fromkeys(VERDICTS, 0)
    for row in found:
        number[row.verdict] += 1
    return number
