"""Comparisons, and the page that shows them, also in a real browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import report
from fedsolve.errors import DataError, FedsolveError
from fedsolve.report import clusters, matrices, plots
from fedsolve.resultfile import digest
from fedsolve.study import compare, experiment
from fedsolve.study.experiment import Settings
from tests.conftest import unsealed
from tests.runtime.browser import browser as browser
from tests.runtime.browser import show

SMALL = Settings(data="digits", clients=6, partition="dirichlet:0.3")
matplotlib = pytest.importorskip("matplotlib")


def nothing(*_: Any) -> None:
    """Tells nobody."""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs, one that failed, and the page."""
    out = tmp_path_factory.mktemp("cmp")
    compare.compare(compare.plan(SMALL, ["afl", "fedhip"], [0, 1], {"fedhip.alpha": "5"}), out, nothing)
    (out / "broken-0").mkdir()
    reason = {"method": "broken", "seed": 0, "reason": "it <b>cannot</b> be"}
    (out / "broken-0" / report.FAILURE).write_text(json.dumps(reason))
    report.write([out], out / "report.html")
    return out


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with three groups, and its page."""
    out = tmp_path_factory.mktemp("grouped")
    settings = replace(SMALL, method="pfedacnnl", set={"network": "mlp:8", "groups": 3}, clients=16, alone=True)
    experiment.execute(settings).save(out / "run")
    report.write([out], out / "report.html")
    return out


@pytest.mark.parametrize("clients", [3, 4, 20])
def test_axes_that_count_have_no_fractions(clients: int) -> None:
    with matplotlib.rc_context(plots.STYLE):
        axes, bar = matrices.heat(np.eye(clients), "client", "client", [], "weight").split('id="axes_2"')
    written = re.compile(r"<text[^>]*>([^<]*\d[^<]*)</text>")
    assert any("." in number for number in written.findall(bar))  # what the pattern finds there
    assert written.findall(axes)
    assert all(number.isdigit() for number in written.findall(axes))


# --- comparing ---


def test_every_method_with_every_seed_and_training_alone() -> None:
    runs = compare.plan(SMALL, ["afl", "fedhip"], [0, 3, 0], {"fedhip.alpha": "5", "intercept": "true"})
    assert [(run.method, run.seed) for run in runs] == [
        (name, seed) for seed in (0, 3) for name in ("local", "afl", "fedhip")
    ]
    assert all(run.set["intercept"] == "true" for run in runs)
    assert [run.set.get("alpha") for run in runs[:3]] == [None, None, "5"]


@pytest.mark.parametrize(
    ("names", "given", "said"),
    [
        ([], {}, "at least one method"),
        (["afl", "nonsense"], {}, "unknown method 'nonsense'"),
        (["afl"], {"alpha": "5"}, "none of local, afl has a parameter 'alpha'"),
        (["afl"], {"fedhip.alpha": "5"}, "unknown method in --set: 'fedhip'"),
        (["afl"], {"afl.alpha": "5"}, "alpha"),
        (["fedhip"], {"fedhip.alpha": "-5"}, "alpha"),
    ],
)
def test_a_wrong_comparison_is_refused_before_anything_runs(names: list[str], given: dict[str, str], said: str) -> None:
    with pytest.raises(FedsolveError, match=said):
        compare.plan(SMALL, names, [0], given)


def test_results_are_those_of_single_runs(compared: Path) -> None:
    single = experiment.execute(Settings(**{**SMALL.__dict__, "method": "fedhip", "set": {"alpha": "5"}, "seed": 1}))
    found = fs.Result.load(compared / "fedhip-1")
    assert found.accuracy == single.accuracy
    assert found.data["fingerprint"] == single.data["fingerprint"]


def test_a_result_with_a_limit_is_not_that_of_all_samples(tmp_path: Path) -> None:
    limited = replace(SMALL, method="afl", limit=200)
    compare.compare([limited], tmp_path, lambda *_: None)
    place = tmp_path / compare.place_of(limited)
    assert compare.finished(place, limited) is not None
    assert compare.finished(place, replace(limited, limit=None)) is None


def test_a_stopped_comparison_goes_on_where_it_was(tmp_path: Path) -> None:
    runs = compare.plan(SMALL, ["afl", "fedhip"], [0], {})

    def stop(method: str, seed: int, found: Any, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare.compare(runs, tmp_path, stop)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert sorted(path.parent.name for path in before) == ["afl-0", "local-0"]
    told: list[str] = []
    compare.compare(runs, tmp_path, lambda method, *_: told.append(method))
    assert told == ["local", "afl", "fedhip"]
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in before.items())
    whole = tmp_path / "whole"
    compare.compare(runs, whole, nothing)
    for name in ("local-0", "afl-0", "fedhip-0"):
        first, second = (unsealed(folder / name / "result.json") for folder in (tmp_path, whole))
        assert digest(first) == digest(second)  # equal but for times


def test_other_settings_are_run_again(tmp_path: Path) -> None:
    compare.compare(compare.plan(SMALL, ["fedhip"], [0], {"alpha": "5"}), tmp_path, nothing)
    first = json.loads((tmp_path / "fedhip-0" / "result.json").read_text())
    compare.compare(compare.plan(SMALL, ["fedhip"], [0], {"alpha": "50"}), tmp_path, nothing)
    second = json.loads((tmp_path / "fedhip-0" / "result.json").read_text())
    assert (first["settings"]["set"]["alpha"], second["settings"]["set"]["alpha"]) == (5.0, 50.0)


def test_a_method_that_fails_is_a_row_that_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = experiment.execute

    def spoilt(settings: Settings, *rest: Any, **named: Any) -> Any:
        if settings.method == "afl":
            raise DataError("the moon is in the wrong place")
        return real(settings, *rest, **named)

    monkeypatch.setattr(compare, "execute", spoilt)
    runs = compare.plan(SMALL, ["afl", "fedhip"], [0], {})
    told: dict[str, Any] = {}
    compare.compare(runs, tmp_path, lambda method, seed, found, *_: told.update({method: found}))
    assert told["afl"] == "the moon is in the wrong place"
    assert not isinstance(told["fedhip"], str)
    page = report.write([tmp_path], tmp_path / "report.html").read_text()
    assert "failed: the moon is in the wrong place" in page
    monkeypatch.undo()
    compare.compare(runs, tmp_path, nothing)  # tried again
    assert (tmp_path / "afl-0" / "result.json").is_file()


def test_the_command_of_a_row_runs_it_again(tmp_path: Path) -> None:
    settings = Settings(**{**SMALL.__dict__, "method": "fedhip", "set": {"alpha": 5.0, "intercept": True}, "seed": 3})
    first = experiment.execute(settings)
    words = experiment.command(first.settings).split()
    assert words[:4] == ["fedsolve", "run", "--method", "fedhip"]
    command = [sys.executable, "-m", *words, "--out", "out", "--quiet"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    again = fs.Result.load(tmp_path / "out")
    assert again.accuracy == first.accuracy
    assert again.settings == json.loads(json.dumps(first.settings))


# --- the page, as text ---


class Links(HTMLParser):
    """What a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href") and tag != "use"]


def test_the_page_is_complete_and_small(compared: Path) -> None:
    page = (compared / "report.html").read_text()
    assert "<!-- " not in page
    assert len(page) < 5e6
    links = Links()
    links.feed(page)
    assert all(link.startswith(("data:", "#")) for link in links.found)
    assert "url(http" not in page
    assert "it &lt;b&gt;cannot&lt;/b&gt; be" in page
    assert "fedsolve run --method fedhip --set alpha=5.0 --clients 6 --partition dirichlet:0.3" in page


def test_the_page_shows_the_figures_of_the_results(compared: Path) -> None:
    page = (compared / "report.html").read_text()
    for folder in ("afl-0", "fedhip-1", "local-0"):
        accuracy = json.loads((compared / folder / "result.json").read_text())["accuracy"]
        for name in ("mean", "pooled", "std", "worst_decile"):
            assert f">{100 * accuracy[name]:.2f}</td>" in page
    clients = report.per_client(next(g for g in report.groups(report.entries([compared])) if g.name == "afl"))
    for client, value in clients.items():
        assert f"<title>{client}: {100 * value:.1f} %</title>" in page


def test_gains_are_against_training_alone_on_the_same_split(compared: Path) -> None:
    runs = report.entries([compared])
    figures = {(run.method, run.seed): run.clients for run in runs if not run.failure}
    alone = {seed: {name: c["accuracy"] for name, c in figures["local", seed].items()} for seed in (0, 1)}
    group = next(g for g in report.groups(runs) if g.name == "afl")
    wanted = {
        name: np.mean([100 * (figures["afl", s][name]["accuracy"] - alone[s][name]) for s in (0, 1)])
        for name in figures["afl", 0]
    }
    assert report.gains(group, runs) == pytest.approx(wanted)


def test_variants_of_a_method_are_told_apart(tmp_path: Path) -> None:
    for alpha in (1.0, 9.0):
        settings = Settings(**{**SMALL.__dict__, "method": "fedhip", "set": {"alpha": alpha}})
        experiment.execute(settings).save(tmp_path / f"a{alpha:.0f}")
    names = {group.name for group in report.groups(report.entries([tmp_path]))}
    assert names == {"fedhip (alpha=1.0)", "fedhip (alpha=9.0)"}
    page = report.write([tmp_path], tmp_path / "page.html").read_text()
    assert "fedhip (alpha=9.0)" in page


def test_folders_without_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        report.write([tmp_path / "absent"], tmp_path / "r.html")
    with pytest.raises(DataError, match="holds no results"):
        report.write([tmp_path], tmp_path / "r.html")
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(DataError, match="damaged"):
        report.write([tmp_path], tmp_path / "r.html")


def test_a_comparison_that_cannot_be_drawn_is_refused_before_it_runs(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; "
        "sys.argv = ['fedsolve', 'compare', '--methods', 'afl', '--out', 'c']; from fedsolve.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert "pip install 'fedsolve[report]'" in done.stderr
    assert not (tmp_path / "c").exists()


def test_seeds_are_numbers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedsolve", "compare", "--methods", "afl", "--seeds", "0,x", "--out", "c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "seeds are whole numbers separated by commas; got '0,x'" in done.stderr


# --- groups of clients ---


def rows_of_groups(page: str) -> list[list[str]]:
    """The cells of the table of groups, as texts."""
    table = page[page.index('<section class="groups">') :].partition("</table>")[0].partition("<tbody>")[2]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table.split("</tr>")[:-1]]
    return [[re.sub(r"<[^>]+>", "", text) for text in row] for row in rows]


def test_a_page_shows_each_group_with_members_samples_and_mean_accuracy(grouped: Path) -> None:
    result, page = fs.Result.load(grouped / "run"), (grouped / "report.html").read_text()
    rows = {row[0]: row for row in rows_of_groups(page)}
    assert rows.keys() == result.groups.keys() == {"0", "1", "2"}
    for name, group in result.groups.items():
        clients = [result.clients[member] for member in group.members]
        figures = [
            np.mean([100 * (c.accuracy or 0) for c in clients]),
            np.mean([100 * (c.alone or 0) for c in clients]),
        ]
        counts = [len(clients), sum(c.train or 0 for c in clients), sum(c.test or 0 for c in clients)]
        distances = {
            np.linalg.norm(np.subtract(group.centre, other.centre)): number
            for number, other in result.groups.items()
            if number != name
        }
        near = f"{distances[min(distances)]} ({min(distances):.2g} away)"
        words = [name, *map(str, counts), *(f"{value:.1f}" for value in figures), near, ", ".join(group.members)]
        assert rows[name] == words
    assert "pfedacnnl put 16 clients into 3 groups." in page
    assert page.count("<section") == page.count("</section>")


def test_labels_stand_group_by_group_and_alike_beside_alike(grouped: Path) -> None:
    (run,) = report.entries([grouped])
    counts = run.result["data"]["split"]
    groups = run.result["groups"]
    found = clusters.clusters(run)
    assert {cluster.name: sorted(cluster.shares) for cluster in found} == {
        name: sorted(group["members"]) for name, group in groups.items()
    }
    for cluster in found:
        assert tuple(cluster.shares) == cluster.members
        for member, row in cluster.shares.items():
            np.testing.assert_allclose(row, np.array(counts[member]) / sum(counts[member]))
        commonest = [int(np.argmax(counts[member])) for member in cluster.members]
        assert commonest == sorted(commonest)
    page = (grouped / "report.html").read_text()
    figure = page[page.index("Labels, group by group") :].partition("</svg>")[0]
    written = re.findall(r"<text[^>]*>([^<]*)</text>", figure)
    assert [name for name in written if name in counts] == [name for each in found for name in each.members]


def test_members_of_a_group_are_nearer_to_each_other_than_to_other_groups(grouped: Path) -> None:
    """What the figure is to show: the groups are of clients with similar labels."""
    (run,) = report.entries([grouped])
    means = {each.name: np.mean(list(each.shares.values()), axis=0) for each in clusters.clusters(run)}
    inside = [np.linalg.norm(row - means[c.name]) for c in clusters.clusters(run) for row in c.shares.values()]
    outside = [
        np.linalg.norm(row - mean)
        for c in clusters.clusters(run)
        for row in c.shares.values()
        for name, mean in means.items()
        if name != c.name
    ]
    assert np.mean(inside) < 0.8 * np.mean(outside)


def test_a_page_without_groups_says_nothing_of_them(compared: Path) -> None:
    page = (compared / "report.html").read_text()
    assert '<section class="groups">' not in page
    assert "Labels, group by group" not in page


def test_a_run_without_counts_of_classes_has_a_table_of_groups_alone(grouped: Path, tmp_path: Path) -> None:
    content = unsealed(grouped / "run" / "result.json")
    del content["data"]["split"]
    for group in content["groups"].values():
        del group["centre"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text(json.dumps(content))
    page = report.write([tmp_path], tmp_path / "report.html").read_text()
    assert len(rows_of_groups(page)) == 3
    assert "nearest" not in page
    assert "<figure" not in page[page.index('<section class="groups">') :]


def test_many_members_are_all_named_behind_a_click(grouped: Path, tmp_path: Path) -> None:
    content = unsealed(grouped / "run" / "result.json")
    names = [f"<i>{number:03}" for number in range(40)]
    content["clients"] = {name: next(iter(content["clients"].values())) for name in names}
    content["groups"] = {"10": {"members": names[:30]}, "9": {"members": names[30:]}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text(json.dumps(content))
    page = report.write([tmp_path], tmp_path / "report.html").read_text()
    short, long = rows_of_groups(page)  # numbers in their order, not texts in theirs
    assert (short[0], short[-1]) == ("9", ", ".join(f"&lt;i&gt;{number:03}" for number in range(30, 40)))
    assert long[0] == "10"
    assert long[-1].count("&lt;i&gt;") == 30
    assert "and 20 more" in long[-1]
    assert page.count("<details>") == 1


def test_each_method_with_groups_has_a_section(grouped: Path, tmp_path: Path) -> None:
    for number, personal in enumerate((True, False)):
        content = unsealed(grouped / "run" / "result.json")
        content["settings"]["set"]["personal"] = personal
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "result.json").write_text(json.dumps(content))
    page = report.write([tmp_path], tmp_path / "report.html").read_text()
    titles = re.findall(r'<section class="groups">\n<h2>([^<]*)</h2>', page)
    assert sorted(titles) == [f"Groups of pfedacnnl (personal={personal})" for personal in (False, True)]
    identities = re.findall(r' id="(groups[^"]*)"', page)
    assert len(identities) == len(set(identities)) == 2


# --- the page, in a browser ---


@pytest.mark.parametrize("runs", ["compared", "grouped"])
@pytest.mark.parametrize("width", [380, 1280])
def test_the_page_in_a_browser(browser: Any, request: pytest.FixtureRequest, runs: str, width: int) -> None:
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    show(browser, (request.getfixturevalue(runs) / "report.html").as_uri(), width)
    assert browser.get_log("browser") == []
    asked = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    addresses = [line["params"]["request"]["url"] for line in asked if line["method"] == "Network.requestWillBeSent"]
    assert [url for url in addresses if not url.startswith(("file:", "data:"))] == []
    plots = browser.find_elements("css selector", "figure svg")
    assert len(plots) >= 5
    for plot in plots:
        box = plot.rect
        assert plot.is_displayed()
        assert box["width"] > 250
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width  # the table scrolls by itself
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('figure svg text')].map(t => t.getBoundingClientRect().height)"
    )
    assert min(sizes) > 6.5  # pixels: small, but to be read


def test_sorting_in_a_browser(browser: Any, compared: Path) -> None:
    show(browser, (compared / "report.html").as_uri(), 1280)
    heads = browser.find_elements("css selector", "#runs button.sort")
    names = [head.text for head in heads]

    def column(name: str) -> list[str]:
        place = names.index(name) + 1
        rows = browser.find_elements("css selector", f"#runs tbody tr:not(.failed) td:nth-child({place})")
        return [row.text for row in rows]

    for name in ("mean %", "seconds"):
        heads[names.index(name)].click()
        up = [float(text) for text in column(name)]
        assert up == sorted(up)
        heads[names.index(name)].click()
        down = [float(text) for text in column(name)]
        assert down == sorted(down, reverse=True)
    heads[names.index("method")].click()
    assert column("method") == sorted(column("method"))


def test_both_themes_in_a_browser(browser: Any, compared: Path) -> None:
    show(browser, (compared / "report.html").as_uri(), 1280)

    def colours() -> tuple[str, str]:
        script = (
            "const text = document.querySelector('figure svg text');"
            "return [getComputedStyle(document.body).backgroundColor, getComputedStyle(text).fill]"
        )
        paper, ink = browser.execute_script(script)
        return paper, ink

    def brightness(colour: str) -> float:
        return sum(float(number) for number in re.findall(r"\d+", colour)[:3]) / 3

    seen = []
    for _ in range(2):
        paper, ink = colours()
        assert abs(brightness(paper) - brightness(ink)) > 120
        seen.append(paper)
        browser.find_element("css selector", "#theme").click()
    assert seen[0] != seen[1]
