"""Source and wheel for strangers: `make dist`, and at the end of `make release`.

What a release says of itself is checked first. The wheel is built from the source archive, as installers do, and then
installed in a new environment and tried in an empty folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = (("--version",), ("methods",), ("run",))  # what the installed command is tried with: at last, the demo


def version(root: Path = ROOT) -> str:
    """The version, from where it is stated."""
    found = re.search(r'^__version__ = "([^"]+)"$', (root / "src/fedsolve/__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit('src/fedsolve/__init__.py must have a line __version__ = "..."')
    return found[1]


def problems(version: str, changelog: str, citation: str) -> list[str]:
    """What is wrong with what a version says of itself, one sentence each.

    A development version needs a section of CHANGELOG.md, as in "## Unreleased: 0.2.0"; a final one needs the date of
    its release behind its number.
    """
    number, _, development = version.partition(".dev")
    heading = re.search(rf"^## (?:Unreleased: )?{re.escape(number)}\b.*$", changelog, re.MULTILINE)
    told = re.search(r'^version: "?([^"\n]+)"?$', citation, re.MULTILINE)
    found = []
    if heading is None:
        found.append(f"CHANGELOG.md has no section for {number}: add one, as in '## Unreleased: {number}'")
    elif not development and not re.fullmatch(rf"## {re.escape(number)} \(\d{{4}}-\d\d-\d\d\)", heading[0]):
        found.append(f"CHANGELOG.md says {heading[0]!r}; a release has its date, as in '## {number} (2026-01-31)'")
    if told is None or told[1] != version:
        found.append(f"CITATION.cff must say version: {version}; it says {told[1] if told else 'nothing'}")
    return found


def build(out: Path) -> tuple[Path, Path]:
    """The source archive and the wheel that is built from it."""
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)], check=True)
    (source,), (wheel,) = out.glob(f"*-{version()}.tar.gz"), out.glob(f"*-{version()}-*.whl")
    return source, wheel


def tried(wheel: Path) -> str:
    """What the demo prints, run from the wheel alone: a new environment, an empty folder."""
    with tempfile.TemporaryDirectory(prefix="fedsolve-") as folder:
        place, empty = Path(folder) / "environment", Path(folder) / "empty"
        empty.mkdir()
        venv.create(place, with_pip=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), str(wheel)], check=True, cwd=empty)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        printed = ""
        for words in COMMANDS:
            command = [str(place / "bin" / "fedsolve"), *words]
            printed = subprocess.run(
                command, cwd=empty, env=clean, check=True, stdout=subprocess.PIPE, text=True
            ).stdout
            if words == ("--version",) and printed.split() != ["fedsolve", version()]:
                raise SystemExit(f"the wheel says {printed.strip()!r}; expected fedsolve {version()}")
        return printed


def main() -> None:
    """Check, build, install, try."""
    files = ((ROOT / name).read_text() for name in ("CHANGELOG.md", "CITATION.cff"))
    wrong = problems(version(), *files)
    if wrong:
        raise SystemExit("\n".join(wrong))
    source, wheel = build(ROOT / "dist")
    print(tried(wheel))
    print(f"ready: {source.relative_to(ROOT)}, {wheel.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
