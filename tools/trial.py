"""One run of tests inside a process of its own: to see which lines they reach, or with a module replaced."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any


@dataclass(eq=False)  # pytest keeps plugins in sets
class _Watch:
    """A pytest plugin: which test is running, how long it took; and hypothesis without chance or shrinking."""

    coverage: Any = None
    seconds: dict[str, float] = field(default_factory=dict)

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        parent = settings.get_profile("default")
        settings.register_profile("mutants", parent, derandomize=True, database=None, phases=phases)
        settings.load_profile("mutants")

    def pytest_runtest_protocol(self, item: Any) -> None:
        if self.coverage:
            self.coverage.switch_context(item.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.seconds[nodeid] = -time.process_time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] += time.process_time()


def _pytest(tests: list[str], watch: _Watch) -> int:
    import pytest

    with tempfile.TemporaryDirectory() as folder:
        options = ["-x", "-q", "--tb=line", "-m", "not long", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
        options += ["-o", "addopts=", f"--basetemp={folder}/t", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        return int(pytest.main([*options, *tests], plugins=[watch]))


def baseline(path: Path, tests: list[str], out: Path) -> int:
    """Run tests as they are, and write down which lines of a module each reaches, how long it takes, and imports."""
    import coverage

    recorder = coverage.Coverage(data_file=None, include=[str(path)], config_file=False)
    watch = _Watch(recorder)
    recorder.start()
    code = _pytest(tests, watch)
    recorder.stop()
    contexts = recorder.get_data().contexts_by_lineno(str(path))
    own = ("fedsolve", "tests", "benchmarks", "tools", "examples", "__m", "conftest")
    libraries = [name for name in sys.modules if not name.startswith(own)]
    out.write_text(json.dumps({"reach": contexts, "seconds": watch.seconds, "libraries": libraries}))
    return code


def trial(name: str, path: Path, code: CodeType, tests: list[str]) -> int:
    """Run tests with the module of that name replaced by other code."""

    class Loader(importlib.machinery.SourceFileLoader):
        def get_code(self, fullname: str) -> Any:
            return code

    class Finder:
        @staticmethod
        def find_spec(fullname: str, *_: object) -> Any:
            loader = Loader(name, str(path))
            return importlib.util.spec_from_file_location(name, path, loader=loader) if fullname == name else None

    sys.meta_path.insert(0, Finder)
    return _pytest(tests, _Watch())
