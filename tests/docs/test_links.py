"""In a clone, every link of every page leads to a file, and names in code are those of the package.

The site has other addresses; `test_site.py` checks its links.
"""

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import fedjax_sim

ROOT = Path(__file__).parents[2]
FOLDERS = ("", ".github", "docs", "docs/guides", "docs/notebooks", "docs/examples")
FOLDERS += ("scripts", "experiments", "experiments/*", "tests")
PAGES = sorted(
    page
    for folder in FOLDERS
    for kind in ("md", "ipynb")
    for page in ROOT.glob(f"{folder}/*.{kind}".removeprefix("/"))
)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)|^\[[^\]]+\]:\s*(\S+)|\b(?:src|href)=[\"']([^\"']+)", re.M)
ROOMS = "|".join(room.name for room in pkgutil.iter_modules(fedjax_sim.__path__))
NAME = re.compile(rf"(?<![\w./])(?:fedjax_sim\.)?((?:{ROOMS})(?:\.[A-Za-z_]\w*)+)(?![\w/])")
SUFFIXES = (".csv", ".ipynb", ".json", ".md", ".nc", ".pkl", ".png", ".py")


def text_of(page: Path) -> str:
    """Return a page's Markdown; of a notebook, that of its cells of text."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".md":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def prose_of(text: str) -> str:
    """Return a page without its code."""
    return re.sub(r"^ *```.*?^ *```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)


def links_of(page: Path) -> Iterator[str]:
    """Iterate over the links of a page that do not lead to other hosts."""
    for found in LINK.findall(prose_of(text_of(page))):
        target = "".join(found)
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    plain = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ +(.*?)\s*$", plain, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_lead_to_files() -> None:
    missing, num = [], 0
    for page in PAGES:
        for target in links_of(page):
            num += 1
            file, mark, anchor = target.partition("#")
            path = (page.parent / file).resolve() if file else page
            is_here = path.exists() and path.is_relative_to(ROOT)
            if not is_here or (mark and anchor not in anchors_of(path)):
                missing.append(f"{page.relative_to(ROOT)}: {target}")
    assert not missing
    assert num > 150


def is_name(name: str) -> bool:
    """Tell whether the package has a dotted name."""
    here = fedjax_sim
    for part in name.split("."):
        if not hasattr(here, part):
            try:
                importlib.import_module(f"{here.__name__}.{part}")
            except (ImportError, AttributeError):
                return False
        here = getattr(here, part)
    return True


def test_names_in_code_are_those_of_the_package() -> None:
    """Such as `systems.fedopt.system`; a name of a table stands for a system's module."""
    missing, num = [], 0
    for page in PAGES:
        for code in re.findall(r"`([^`\n]+)`", text_of(page)):
            for name in NAME.findall(code):
                num += 1
                if not name.endswith(SUFFIXES) and not is_name(name):
                    missing.append(f"{page.relative_to(ROOT)}: {name}")
    assert not missing
    assert num > 20


def test_every_system_module_has_a_system() -> None:
    """As pages say of each, among them `systems.fedopt`, which is in the file of FedAvg."""
    for name in fedjax_sim.systems.__all__:
        if name != "SYSTEMS":
            module = getattr(fedjax_sim.systems, name)
            assert fedjax_sim.systems.SYSTEMS[name] is module.system
