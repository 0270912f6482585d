"""Generate pages of the site from the files that they describe: a hook of mkdocs.

`on_config` fills the navigation and `on_files` adds the pages, which are never written to disk:

- the pages of `docs`, the front page, the changelog, the ledger and the benchmarks, from their
  files, with links that fit the site: in a clone they lead to files;
- a page for each algorithm, from its module, its settings, the schedule that it draws, and a
  picture of `experiments/figures` if an experiment runs it;
- a page of the API for each public room of the package;
- notebooks, with their stored outputs, and the example scripts.
"""

import ast
import base64
import functools
import importlib
import io
import json
import pkgutil
import posixpath
import re
import sys
from collections.abc import Iterator
from dataclasses import Field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import fedjax_sim
from fedjax_sim.core.settings import default_text, fields, groups, is_traced
from fedjax_sim.core.streams import stream
from fedjax_sim.results import plots
from fedjax_sim.systems import SYSTEMS

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE_OF_FILE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    ".github/CONTRIBUTING.md": "contributing.md",
    "scripts/benchmark_peers.md": "performance/peers.md",
    "experiments/README.md": "reproduction/index.md",
} | {
    f"experiments/{path.parent.name}/README.md": f"reproduction/{path.parent.name}.md"
    for path in (ROOT / "experiments").glob("*/README.md")
}
"""Files of the repository that are pages, with the pages' addresses."""
FIGURES = {
    "langevin": "fald_fig1",
    "fedavg": "baselines_digits_accuracy_0",
    "quafl": "baselines_digits_accuracy_0",
} | dict.fromkeys(
    (
        "fedprox",
        "scaffold",
        "fednova",
        "feddyn",
        "mimelite",
        "fedavgm",
        "fedadagrad",
        "fedadam",
        "fedyogi",
        "fedbuff",
        "fedasync",
        "gen_async",
    ),
    "baselines_mnist_accuracy_0",
)
"""Pictures in `experiments/figures` that do not have the name of their system."""
SEED, TICKS = 0, 200
"""Seed and server actions of the schedules on the pages of algorithms."""
SINGLE_MODULES = (
    *(
        f"core.{name}"
        for name in ("types", "problem", "options", "streams", "batching", "trees", "targets")
    ),
    *("theory.favano", "theory.fedem", "theory.fedstaleweight", "theory.hierarchical"),
    *("results.diagnostics", "results.plots"),
    *("server.attacks", "server.compression", "server.privacy", "server.rules"),
)
"""Public modules that are no packages."""


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """Replace folders in the navigation by their pages.

    Raises:
      ValueError: If a page of the navigation does not exist.
    """
    pages, nav = set(all_pages()), []
    for entry in config.nav or ():
        [(title, target)] = entry.items()
        if target.endswith("/"):
            target = sorted(
                (page for page in pages if page.startswith(target)),
                key=lambda page: (not page.endswith("index.md"), page.removesuffix(".md")),
            )
        is_there = bool(target) if isinstance(target, list) else target in pages
        if not is_there:
            raise ValueError(f"the navigation names {target!r} ({title}), which is no page")
        nav.append({title: target})
    config.nav = nav
    return config


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the generated pages and the pictures that they show."""
    from mkdocs.structure.files import File

    for address, content in generated_pages().items():
        if (previous := files.get_file_from_path(address)) is not None:
            files.remove(previous)
        files.append(File.generated(config, address, content=content))
    for path in sorted((ROOT / "experiments" / "figures").glob("*.png")):
        address = f"figures/{path.name}"
        files.append(File.generated(config, address, abs_src_path=str(path)))
    for name in (name for name, system in SYSTEMS.items() if system.live is None):
        picture = png_of(schedule_figure(name))
        files.append(File.generated(config, f"images/schedule_{name}.png", content=picture))
    return files


def on_post_build(config: "MkDocsConfig") -> None:
    """Write all links to other hosts, which the build does not follow, to a file."""
    site = Path(config.site_dir)
    found = {
        link
        for page in site.rglob("*.html")
        for link in re.findall(r'<a\b[^>]*?\bhref="(https?:[^"]*)"', page.read_text())
    }
    (site.parent / "external_links.txt").write_text("\n".join(sorted(found)) + "\n")


def all_pages() -> list[str]:
    """List the addresses of all pages."""
    return sorted(generated_pages())


def generated_pages() -> dict[str, str]:
    """Write all pages: their Markdown by address."""
    pages = {
        address: included(name) for name, address in PAGE_OF_FILE.items() if (ROOT / name).exists()
    }
    for path in sorted(DOCS.rglob("*.md")):
        address = path.relative_to(DOCS).as_posix()
        pages[address] = fitted(path.read_text(), f"docs/{address}", address)
    pages["performance/index.md"] = performance_page()
    pages["algorithms/index.md"] = algorithms_page()
    pages |= {f"algorithms/{name}.md": algorithm_page(name) for name in SYSTEMS}
    pages["api/index.md"] = api_index()
    pages |= {f"api/{name}.md": api_page(name) for name in public_modules()}
    pages["examples.md"] = examples_page()
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        pages[f"notebooks/{path.stem}.md"] = notebook_page(path)
    return pages


def included(name: str) -> str:
    """Return a Markdown file of the repository with links that fit the site.

    Args:
      name: The file, relative to the repository; one of `PAGE_OF_FILE`.
    """
    return fitted((ROOT / name).read_text(), name, PAGE_OF_FILE[name])


def fitted(text: str, name: str, page: str) -> str:
    """Change the links of a Markdown text so that they fit the site.

    Links to files in `docs`, and to files that pages are made from, lead to the site. Of links to
    other files of the repository the words remain.

    Args:
      text: The text.
      name: The file that it comes from, relative to the repository.
      page: The address of its page.
    """
    folder = posixpath.dirname(page) or "."

    def fit(match: re.Match) -> str:
        image, words, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        file, mark, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), file))
        if (known := PAGE_OF_FILE.get(path) or page_of_source().get(path)) is not None:
            address = known
        elif path.startswith("experiments/figures/"):
            address = path.removeprefix("experiments/")
        elif path.startswith("docs/examples"):
            address = "examples.md"
        elif path.startswith("docs/"):
            address = path.removeprefix("docs/").replace(".ipynb", ".md")
        else:
            return words
        return f"{image}[{words}]({posixpath.relpath(address, folder)}{mark}{anchor})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", fit, text)


@functools.cache
def page_of_source() -> dict[str, str]:
    """List the sources that generated pages are made from, with the pages' addresses."""
    found = {"scripts/benchmark_results.json": "performance/index.md"}
    for name in public_modules():
        path = Path(importlib.import_module(name).__file__ or "")
        path = path.parent if path.name == "__init__.py" else path
        found[path.relative_to(ROOT).as_posix()] = f"api/{name}.md"
    found["fedjax_sim/systems"] = "algorithms/index.md"
    for name in reversed(SYSTEMS):  # The first of several systems in one file counts.
        found[module_of(name).relative_to(ROOT).as_posix()] = f"algorithms/{name}.md"
    return found


def module_of(name: str) -> Path:
    """Find the source file of a system."""
    return Path(sys.modules[SYSTEMS[name].Hyper.__module__].__file__ or "")


def performance_page() -> str:
    """Write the kept measurements as tables, each with its date and machine."""
    results = json.loads((ROOT / "scripts" / "benchmark_results.json").read_text())
    described = benchmarks_described()
    lines = [
        "# Performance",
        "",
        "Measurements kept in `scripts/benchmark_results.json` by `python scripts/benchmark.py`.",
        "Contestants take turns within one run, and the median over turns counts; compilation is",
        "left out unless a line says otherwise. Figures hold for the machine and the date named.",
        "",
    ]
    for device, kept in results.items():
        # What most readers look for comes first.
        for name, facts in sorted(kept.items(), key=lambda item: item[0] != "peers"):
            if name == "peers":
                lines += ["## peers", "", "Other simulators have a [page](peers.md).", ""]
            elif name == "programs":
                lines += launches(device, facts)
            else:
                what = described.get(name, "")
                words = f"{what[:1].upper()}{what[1:]}. {conditions(facts)}"
                where = "" if device == "cpu" else f": {device}"
                lines += [f"## {name}{where}", "", words, "", *measurements(facts)]
    return "\n".join(lines)


def benchmarks_described() -> dict[str, str]:
    """Read from `scripts/benchmark.py` what each benchmark measures."""
    for node in ast.parse((ROOT / "scripts" / "benchmark.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "BENCHMARKS":
            return {name: what for name, (_, what) in ast.literal_eval(node.value).items()}
    raise ValueError("scripts/benchmark.py has no table BENCHMARKS.")


def conditions(facts: dict[str, Any]) -> str:
    """Say when, where and with which JAX something was measured."""
    jax = f", jax {facts['jax']}" if "jax" in facts else ""
    return f"Measured on {facts['date']}: {facts['machine']}{jax}."


def measurements(facts: dict[str, Any]) -> list[str]:
    """Write nested measurements as one table, a row for each number."""
    lines = ["| measurement | value |", "| --- | ---: |"]
    for words, value in leaves_of(facts, ""):
        lines.append(f"| {escaped(words)} | {value} |")
    return [*lines, ""]


def leaves_of(facts: Any, words: str) -> Iterator[tuple[str, str]]:
    """Iterate over the numbers of nested measurements, with the path to each."""
    if isinstance(facts, dict):
        for name, value in facts.items():
            if not words and name in ("date", "machine", "jax", "turns"):
                continue
            yield from leaves_of(value, f"{words}; {name}" if words else name.replace("_", " "))
    elif isinstance(facts, list) and facts and isinstance(facts[0], dict):
        for each in facts:
            case = ", ".join(f"{key} {value}" for key, value in each.items() if type(value) is int)
            others = {key: value for key, value in each.items() if type(value) is not int}
            yield from leaves_of(others, f"{words}; {case}")
    elif isinstance(facts, list):
        yield words, " ".join(value for each in facts for _, value in leaves_of(each, words))
    elif isinstance(facts, float) and facts < 0:
        yield words, "below noise"  # A difference of two times.
    elif isinstance(facts, float):
        yield words, f"{facts:,.4g}" if abs(facts) < 1e4 else f"{facts:,.0f}"
    else:
        yield words, str(facts)


def launches(device: str, facts: dict[str, Any]) -> list[str]:
    """Write what the programs of systems launch on an accelerator."""
    target = facts["machine"].removeprefix("none; ")
    counted, words = "launches", "Small models take their time for launches."
    if device.startswith("tpu"):
        counted, words = "instructions", "A TPU launches a program as a whole."
    lines = [
        f"## Programs for accelerators: {device}",
        "",
        f"The {counted} of the compiled programs, counted in the text that the compiler returns;",
        "nothing is timed, and no device is needed (`python scripts/benchmark.py programs`).",
        f"{words} Counted on {facts['date']}: {target}, jax {facts['jax']}.",
        "MB are what launches read and write in a local step, GFLOP its matrix products and",
        "convolutions; the last columns are of a tick without its steps, and of the program.",
        "",
        f"| program | {counted} of a step | trips | MB | GFLOP | of a tick | temporaries, MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, program in facts["programs"].items():
        tick = program["tick without steps"]["launches"]
        temporaries = program["bytes of temporaries"] / 1e6
        for step in program["local steps"] or [{"launches": "-"}]:
            trips = "-" if step.get("trips") is None else step["trips"]
            moved, operations = (
                f"{step[key] / unit:.4g}" if key in step else "-"
                for key, unit in (("bytes", 1e6), ("operations", 1e9))
            )
            cells = [name, step["launches"], trips, moved, operations, tick, f"{temporaries:.4g}"]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return [*lines, ""]


def algorithms_page() -> str:
    """List the systems."""
    rows = [
        f"| [`{name}`]({name}.md) | {citation(name)} | {system.summary} |"
        for name, system in SYSTEMS.items()
    ]
    return "\n".join(
        [
            "# Algorithms",
            "",
            "A system, or several alike, is one file in `fedjax_sim/systems`. A page here is made",
            "from it: publication and algorithm from a docstring, the settings from its `Hyper`.",
            "`fedjax-sim list SYSTEM` prints the same settings.",
            "",
            "| system | publication | how it works |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )


def docstring_of(name: str) -> str:
    """Docstring of a system's file, or of its settings if the file has several systems."""
    tree, kind = ast.parse(module_of(name).read_text()), SYSTEMS[name].Hyper.__name__
    named = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == kind)
    node: ast.Module | ast.ClassDef = tree if kind == "Hyper" else next(named)
    return ast.get_docstring(node) or ""


def citation(name: str) -> str:
    """Return the first sentence of a system's docstring, which names its publication."""
    doc = docstring_of(name)
    return linked_papers(doc.partition("\n\n")[0].replace("\n", " "))


def linked_papers(text: str) -> str:
    """Make links of the numbers of papers on arXiv."""
    return re.sub(
        r"arXiv\s+(\d{4}\.\d{4,5})",
        lambda found: f"[arXiv {found[1]}](https://arxiv.org/abs/{found[1]})",
        text,
    )


def algorithm_page(name: str) -> str:
    """Describe one system: publication, algorithm, picture, settings and source."""
    system, source, doc = SYSTEMS[name], module_of(name).read_text(), docstring_of(name)
    head, _, rest = doc.partition("\n\n")
    return "\n".join(
        [
            f"# {name}",
            "",
            f"*{system.summary[:1].upper()}{system.summary[1:]}.*",
            "",
            "## Publication",
            "",
            linked_papers(head.replace("\n", " ")),
            "",
            "## Algorithm",
            "",
            linked_papers(rest) if rest else "The docstring is the sentence above.",
            "",
            "## Schedule",
            "",
            *schedule_of(name),
            *picture_of(name),
            "## Settings",
            "",
            "Settings marked *swept* can differ between the lanes of one compiled program; each",
            "value of the others compiles a new one.",
            "",
            *settings_by_group(system.Hyper),
            "## Source",
            "",
            f'```python title="{module_of(name).relative_to(ROOT).as_posix()}"',
            source.rstrip(),
            "```",
            "",
        ]
    )


def schedule_of(name: str) -> list[str]:
    """Show the schedule of a system's default settings, if it is known before learning."""
    if SYSTEMS[name].live is not None:
        return [
            "Its schedule follows from what is learnt, see [live",
            "clocks](../timelines.md#live-clocks).",
            "",
        ]
    return [
        f"![Who computes when, and how stale reports are](../images/schedule_{name}.png)",
        "",
        "The first actions of the server at the default settings, before anything is learnt;",
        "see [Reading a timeline](../guides/reading_a_timeline.md).",
        "",
    ]


def schedule_figure(name: str) -> "Figure":
    """Draw the schedule of a system's default settings."""
    system = SYSTEMS[name]
    hyper: Any = system.Hyper()
    with jax.enable_x64(True):
        key = stream(jax.random.key(SEED), "timeline")
        timeline = jax.tree.map(np.asarray, system.timeline(key, hyper, TICKS))
    senders = system.messages.num_senders(hyper)
    kind = "clients" if senders is None else "groups"
    return plots.timeline_figure(
        [plots.Row(name, timeline, senders or hyper.num_clients, None, kind)]
    )


def picture_of(name: str) -> Iterator[str]:
    """Show the committed picture of a system, and say which experiment drew it."""
    folder = ROOT / "experiments" / "figures"
    known = sorted(path.stem for path in folder.glob("*.png"))
    stem = FIGURES.get(name) or next(
        (s for s in known if s.startswith(f"{name}_fig") or s.endswith(f"_fig1_{name}")), None
    )
    if stem not in known:
        return
    paper, _, figure = stem.partition("_")
    module = next(
        (
            path
            for path in sorted((ROOT / "experiments" / paper).glob("*.py"), reverse=True)
            if re.fullmatch(rf"{re.escape(path.stem)}[a-z]?(_.*)?", figure)
            or f'"{stem}.png"' in path.read_text(encoding="utf-8")
        ),
        None,
    )
    if module is None:
        raise ValueError(f"No experiment draws {stem}.png.")
    words = (ast.get_docstring(ast.parse(module.read_text())) or "").partition("\n")[0]
    yield from (
        f"![{words}](../figures/{stem}.png)",
        "",
        f"{words} See [Reproduction](../reproduction/index.md).",
        "",
    )


def settings_by_group(hyper: type) -> Iterator[str]:
    """Write a table of a system's own settings, and one for each of its groups."""
    known = fields(hyper)
    own = {name: field for name, field in known.items() if "." not in name}
    yield from ("### Of this system", "", *settings_table(own), "")
    for held in groups(hyper):
        kind, words = type(held.default).__name__, held.metadata["group"]
        inside = {name: field for name, field in known.items() if name.startswith(f"{held.name}.")}
        yield from (
            f"### `{held.name}`: {words}",
            "",
            f"A `{kind}`.",
            "",
            *settings_table(inside),
            "",
        )


def settings_table(rows: dict[str, Field]) -> list[str]:
    """Write settings as a table: name, default, whether they can be swept, and their meaning."""
    lines = ["| setting | meaning and allowed values |", "| --- | --- |"]
    for name, field in rows.items():
        words = f"{field.metadata['meaning']} Allowed: {field.metadata['allowed']}."
        swept = "<br>*swept*" if is_traced(field) else ""
        default = f"default `{escaped(default_text(field))}`"
        lines.append(f"| `{name}`<br>{default}{swept} | {escaped(words)} |")
    return lines


def escaped(text: str) -> str:
    """Escape what would end a cell of a table."""
    return text.replace("|", "\\|")


def public_modules() -> list[str]:
    """List the modules of the public interface: packages, and some modules in the root."""
    packages = [
        module.name
        for module in pkgutil.walk_packages(fedjax_sim.__path__, "fedjax_sim.")
        if module.ispkg
    ]
    return sorted(["fedjax_sim", *packages, *(f"fedjax_sim.{name}" for name in SINGLE_MODULES)])


def first_line(module: str) -> str:
    """Return the first line of a module's docstring."""
    return (importlib.import_module(module).__doc__ or "").partition("\n")[0]


def api_index() -> str:
    """List the modules of the interface."""
    rows = [f"| [`{name}`]({name}.md) | {first_line(name)} |" for name in public_modules()]
    head = "Every public name of every package, from its docstring.\n"
    return "\n".join(["# API reference", "", head, "| module | |", "| --- | --- |", *rows, ""])


def api_page(name: str) -> str:
    """Describe the public names of a module."""
    # The names of `systems` are modules, each of which has a page of the algorithms.
    is_systems = name == "fedjax_sim.systems"
    options = "    options:\n      members: [SYSTEMS]\n" if is_systems else ""
    return f"# {name}\n\n::: {name}\n{options}"


def examples_page() -> str:
    """Show the example scripts."""
    lines = ["# Examples", "", "Short scripts in `docs/examples`; the tests run them.", ""]
    for path in sorted((DOCS / "examples").glob("*.py")):
        title = path.stem.replace("_", " ").capitalize()
        lines += [f"## {title}", "", f'```python title="docs/examples/{path.name}"']
        lines += [path.read_text().rstrip(), "```", ""]
    return "\n".join(lines)


def notebook_page(path: Path) -> str:
    """Write a notebook as Markdown, with its stored outputs; only its title is a first heading."""
    lines: list[str] = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            text = fitted(source, f"docs/notebooks/{path.name}", f"notebooks/{path.stem}.md")
            lines += [re.sub(r"^# ", "## ", text, flags=re.MULTILINE) if lines else text, ""]
            continue
        lines += ["```python", source, "```", ""]
        for output in cell["outputs"]:
            lines += [*shown_output(output), ""]
    return "\n".join(lines)


def shown_output(output: dict[str, Any]) -> list[str]:
    """Write one stored output of a cell: a picture if there is one, otherwise text."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        base64.b64decode(picture, validate=True)
        return [f"![Output of the cell above](data:image/png;base64,{picture})"]
    text = re.sub(r"\x1b\[[0-9;]*m", "", "".join(data.get("text/plain", ""))).rstrip()
    return ["```text", text, "```"] if text else []


def png_of(figure: "Figure") -> bytes:
    """Return a picture as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
