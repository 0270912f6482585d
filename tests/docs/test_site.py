"""The site's code runs as it is printed, and its generated pages are complete.

Building the site needs the extra `[docs]`; what needs it is skipped where it is not installed.
"""

import contextlib
import importlib.util
import io
import os
import posixpath
import re
import shlex
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedjax_sim import timelines
from fedjax_sim.cli.commands import main
from fedjax_sim.core.settings import fields
from fedjax_sim.systems import SYSTEMS
from tests.exports import exports_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.glob("*.md") if "\n```" in path.read_text())
FENCE = re.compile(r"^```(python|bash|text)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    """Load the module that generates pages."""
    spec = importlib.util.spec_from_file_location("pages", DOCS / "site" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_command(line: str) -> None:
    """Run a command of the package; of another one check that what it names is there."""
    words = shlex.split(line)
    if words[0] == "fedjax-sim":
        with pytest.raises(SystemExit) as stopped:
            main(words[1:])
            raise SystemExit(0)
        assert not stopped.value.code, line
    elif words[:2] == ["pip", "install"]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert words[2].partition("[")[0] == project["name"]
    else:
        assert words[0].startswith("./scripts/"), line
        assert (ROOT / words[0]).stat().st_mode & 0o100


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, id=page.stem, marks=[pytest.mark.slow] * (page.stem in ("tour", "timelines"))
        )
        for page in PAGES
    ],
)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a page run one after the other; a text after a block is what the block prints."""
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "page"}
    printed = ""
    for kind, block in FENCE.findall(page.read_text()):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            if kind == "python":
                exec(compile(block, page.name, "exec"), scope)
            elif kind == "bash":
                for line in block.splitlines():
                    run_command(line)
            else:
                assert block == printed
        printed = out.getvalue()


def test_every_fence_is_known() -> None:
    """No block escapes the test above by its name."""
    for page in PAGES:
        opened = re.findall(r"^\s*```(\w*)", page.read_text(), flags=re.MULTILINE)[::2]
        assert set(opened) <= {"python", "bash", "text"}, page.name


def test_algorithms_have_pages_with_all_settings(pages: ModuleType) -> None:
    """Every setting is named once, with the words of its field."""
    written = pages.generated_pages()
    for name, system in SYSTEMS.items():
        text = written[f"algorithms/{name}.md"]
        for setting, field in fields(system.Hyper).items():
            row = f"| `{setting}`<br>default"
            assert text.count(row) == 1, (name, setting)
            assert pages.escaped(field.metadata["meaning"]) in text
        assert f"[`{name}`]({name}.md)" in written["algorithms/index.md"]


def test_extras_are_described() -> None:
    """The page on installation names every extra."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    text = (DOCS / "installation.md").read_text()
    assert not [name for name in extras if f"`{name}`" not in text]


def test_clocks_are_those_of_the_systems_named() -> None:
    """In the table of clocks, each system's settings are those of the row's clock, and no more."""
    page = (DOCS / "timelines.md").read_text()
    planned, live = page.split("## Which clock do I need?")
    rows = re.findall(r"^\| `(\w+)` \|(.*)$", planned, re.MULTILINE)
    clocks = {getattr(timelines, name): systems for name, systems in rows}
    named = set()
    for clock, text in clocks.items():
        for name in re.findall(r"\[`(\w+)`\]\([^)]*/systems/", text):
            bases = SYSTEMS[name].Hyper.__mro__
            assert next(base for base in bases if base in clocks) is clock, name
            named.add(clock)
    assert set(clocks) == named
    # The table of live clocks names all systems that have one.
    rows_of_live = live.partition("## How long work takes")[0]
    found = re.findall(r"\[`(\w+)`\]\([^)]*/systems/", rows_of_live)
    assert set(found) == {name for name, system in SYSTEMS.items() if system.live is not None}


def prose_of(text: str) -> str:
    """Return a page without its code."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", prose)


def links_of(address: str, text: str) -> Iterator[str]:
    """Iterate over the files that a page's links inside the site lead to."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(text)):
        if not re.match(r"[a-z]+:|#", target):
            file = target.partition("#")[0]
            yield posixpath.normpath(posixpath.join(posixpath.dirname(address), file))


def test_formulas_are_text(pages: ModuleType) -> None:
    """The site has nothing that draws LaTeX."""
    texts = pages.generated_pages().items()
    assert not [address for address, text in texts if "$" in prose_of(text)]


def test_links_lead_somewhere(pages: ModuleType) -> None:
    """Links inside the site lead to its pages and pictures. The build checks their anchors too."""
    written = pages.generated_pages()
    pictures = {f"figures/{p.name}" for p in (ROOT / "experiments" / "figures").glob("*.png")}
    pictures |= {path.relative_to(DOCS).as_posix() for path in (DOCS / "images").glob("*")}
    pictures |= {f"images/schedule_{name}.png" for name in SYSTEMS}
    known = {*written, *pictures}
    missing = [
        (address, target)
        for address, text in written.items()
        for target in links_of(address, text)
        if target not in known
    ]
    assert not missing


def test_the_worked_picture_shows_the_schedule_of_its_page() -> None:
    """Every piece of work is a bar, and every tick a line of the lower half."""
    spec = importlib.util.spec_from_file_location("worked", DOCS / "site" / "worked_picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    above, below = module.picture().axes
    bars = [patch for patch in above.patches if patch.get_width() > 0 and patch.get_height() > 0]
    assert len(bars) == 10
    assert max(bar.get_x() + bar.get_width() for bar in bars) == pytest.approx(35.9, abs=0.05)
    assert "tick 4:   v5 = v4 + 0.35 × update of client 2 from v3" in below.texts[-1].get_text()


ADDRESS = "https://example.org/docs/fedjax_sim/"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, with warnings as errors."""
    for package in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(package, reason="needs the extra [docs]")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        [*command, "--config-file", "docs/site/mkdocs.yml"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "JAX_PLATFORMS": "cpu", "SITE_URL": ADDRESS},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_built(site: Path, pages: ModuleType) -> None:
    """No page is left out, as one would be that the configuration excludes."""
    addresses = [address.removesuffix(".md") + ".html" for address in pages.all_pages()]
    assert not [address for address in addresses if not (site / address).exists()]


def test_every_public_name_is_in_the_reference(site: Path, pages: ModuleType) -> None:
    """The inventory of the built site has each name that a package exports."""
    _, _, _, _, packed = (site / "objects.inv").read_bytes().split(b"\n", 4)
    known = {line.split(" ")[0] for line in zlib.decompress(packed).decode().splitlines()}
    missing = []
    for name in pages.public_modules():
        module = importlib.import_module(name)
        for public in exports_of(module) or ():
            address = f"{name}.{public}"
            is_module = isinstance(getattr(module, public), ModuleType)
            if not is_module and address not in known:
                missing.append(address)
    assert not missing


def test_every_algorithm_has_a_figure(site: Path) -> None:
    """Its page shows the schedule that the system draws; that of a live one is not known before."""
    for name, system in SYSTEMS.items():
        address = f"images/schedule_{name}.png"
        if system.live is not None:
            assert not (site / address).exists()
            continue
        assert f'src="../{address}"' in (site / "algorithms" / f"{name}.html").read_text()
        assert (site / address).read_bytes().startswith(b"\x89PNG")


def test_the_reference_is_laid_out(site: Path) -> None:
    """Long signatures take a line for each parameter, and what is returned is one item."""
    page = (site / "api" / "fedjax_sim.clients.html").read_text()
    assert "local_training(\n    problem: Losses,\n" in re.sub(r"<[^>]+>", "", page)
    returned = re.findall(r"Returns:.*?<ul>(.*?)</ul>", page, re.DOTALL)
    assert len(returned) > 10
    assert all(each.count("<li") == 1 for each in returned)


def test_the_error_page_works_at_any_depth(site: Path) -> None:
    """It is shown at addresses that do not exist, so its links begin at the root of the host."""
    targets = re.findall(r"\b(?:src|href)=[\"']?([^\"'\s>]+)", (site / "404.html").read_text())
    local = [target for target in targets if not re.match(r"[a-z]+:|#", target)]
    assert len(local) > 10
    assert all(target.startswith(("/docs/fedjax_sim/", ".")) for target in local)
    assert not [target for target in local if target.startswith("..")]


def test_nothing_comes_from_other_hosts(site: Path) -> None:
    """Pages load scripts, styles, fonts and pictures from the site alone."""
    loaded = re.compile(
        r"<(?:script|img|link(?! rel=\"?canonical)|iframe)\b[^>]*?\b(?:src|href)=[\"']?(https?:)"
    )
    for page in site.rglob("*.html"):
        assert not loaded.findall(page.read_text()), page.name
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?https?:", style.read_text()), style.name
