"""Sites without a network: what they tell, what is agreed on, and what a site makes of it."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.features import maps
from fedsolve.privacy.policy import Policy
from fedsolve.runtime import job as jobs
from fedsolve.runtime.agreement import Agreement
from fedsolve.runtime.job import Description, Job
from fedsolve.runtime.sites import FileSite
from tests.core.tiny import NORMAL, write_onnx

JOB = Job("afl", seed=4)
FEW = Policy(test=0.0, min_samples=1, min_class=1)  # of a site that answers from whatever it has


def ward(folder: Path, name: str, header: str, *rows: str) -> FileSite:
    path = folder / f"{name}.csv"
    path.write_text("\n".join([header, *rows]))
    return FileSite(name, str(path), folder / name, policy=FEW)


def described(*wards: FileSite, job: Job = JOB) -> dict[str, Description]:
    """As they arrive at the server: through their texts."""
    texts = {site.name: jobs.to_text(site.describe(job)) for site in wards}
    return {name: jobs.from_text(Description, text) for name, text in texts.items()}


def test_sites_agree_on_classes_and_columns_and_one_may_have_a_single_class(tmp_path: Path) -> None:
    first = ward(tmp_path, "a", "age,pulse,label", "1,2,well", "3,4,ill")
    second = ward(tmp_path, "b", "pulse,label,age", "6,unsure,5", "8,unsure,7")
    task = jobs.agree(described(first, second), JOB)
    assert task.class_names == ("ill", "unsure", "well") and task.feature_names == ("age", "pulse")
    told = fs.Task.from_text(jobs.shared_text(task, JOB))
    for site, inputs, labels in ((first, [[1, 2], [3, 4]], [2, 0]), (second, [[5, 6], [7, 8]], [1, 1])):
        common, client = site.client(JOB, told)
        assert common == task
        assert client.train.inputs.tolist() == inputs and client.train.labels.tolist() == labels


def test_what_is_told_holds_no_values(tmp_path: Path) -> None:
    site = ward(tmp_path, "a", "age,pulse,label", "123456,2,well", "3,4,ill")
    text = jobs.to_text(site.describe(JOB))
    assert "123456" not in text
    assert set(json.loads(text)) == {"name", "version", "task", "samples", "words", "policy"}
    assert json.loads(text)["policy"] == site.policy.words()  # how it answers, and its share of test samples


def test_data_that_changed_after_the_agreement_are_refused(tmp_path: Path) -> None:
    site = ward(tmp_path, "a", "age,label", "1,well", "3,ill")
    task = jobs.agree(described(site), JOB)
    later = ward(tmp_path, "a", "age,label", "1,well", "3,dead")  # the next message finds a new process
    with pytest.raises(fs.DataError, match=r"the data of site 'a' are not what all agreed on: .*unknown class 'dead'"):
        later.client(JOB, task)


def test_a_site_with_another_map_computes_nothing(tmp_path: Path) -> None:
    site = ward(tmp_path, "a", "age,label", "1,well", "3,ill")
    task = jobs.agree(described(site), JOB)
    other = FileSite("a", site.data, site.state, features="unit")
    with pytest.raises(fs.DataError, match="the features here are not the federation's: unit here, identity there"):
        other.client(JOB, task)


def test_the_text_that_all_are_told_does_not_depend_on_where_a_network_lies(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    here = write_onnx(tmp_path / "here.onnx")
    there = shutil.copy(here, tmp_path / "there.onnx")
    np.savez(tmp_path / "d.npz", x=np.zeros((4, 9, 9, 3), np.uint8), y=np.arange(4) % 2)
    job = Job("afl", features=f"onnx:{here},{NORMAL}").identified()
    site = FileSite("a", str(tmp_path / "d.npz"), tmp_path / "a", features=f"onnx:{there},{NORMAL}", policy=FEW)
    task = jobs.agree(described(site, job=job), job)
    assert str(task.features) == f"onnx:{here},{NORMAL}"
    assert jobs.shared_text(site.describe(job).task, job) == jobs.shared_text(task, job)
    common, _ = site.client(job, fs.Task.from_text(jobs.shared_text(task, job)))
    assert common.features == maps.parse(f"onnx:{there},{NORMAL}")


@pytest.mark.parametrize("text", ["", "7", "{}", '{"name": "a", "version": "1", "task": 7, "samples": 3}'])
def test_a_description_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(fs.DataError, match="not a description that this version of fedsolve understands"):
        jobs.from_text(Description, text)


COLUMNS = ("age", "pulse", "weight")


def description(name: str, **changes: object) -> Description:
    whole = fs.Task(fs.Classes(2, ("healthy", "sick")), (3,), feature_names=COLUMNS)
    return Description(name, "1", replace(whole, **changes), 10)  # type: ignore[arg-type]


def agreed(*wards: Description) -> fs.Task:
    return jobs.agree({site.name: site for site in wards}, Job("afl"))


# --- agreement ---


@pytest.mark.parametrize("columns", [("age", "pulse", "height"), ("age", "pulse"), (*COLUMNS, "height")])
def test_a_site_with_other_columns_is_refused_by_name(columns: tuple[str, ...]) -> None:
    odd = ", ".join(sorted(set(columns) ^ set(COLUMNS)))
    with pytest.raises(fs.DataError, match=f"the columns of site 'ward-b' .*: {re.escape(odd)} differ"):
        agreed(description("ward-a"), description("ward-b", feature_names=columns), description("ward-c"))


def test_columns_in_another_order_or_without_names_are_the_same_columns() -> None:
    others = description("ward-b", feature_names=COLUMNS[::-1]), description("ward-c", feature_names=())
    task = agreed(description("ward-a"), *others)
    assert task.feature_names == COLUMNS
    assert task.inputs == (3,)


def test_texts_and_numbers_as_labels_are_refused_by_name() -> None:
    with pytest.raises(fs.DataError, match="site 'ward-a' are texts, those of site 'ward-b' numbers"):
        agreed(description("ward-a"), description("ward-b", target=fs.Classes(2)))


def majority(*wards: Description, quorum: int) -> Agreement:
    return jobs.agreed({site.name: site for site in wards}, Job("afl"), quorum)


def test_who_differs_from_enough_others_is_left_out_with_the_reason() -> None:
    alike = [description(f"ward-{letter}") for letter in "abc"]
    others = {
        "texts": description("ward-x", target=fs.Classes(2)),
        "columns": description("ward-x", feature_names=("age", "pulse", "height")),
        "features": description("ward-x", inputs=(4,), feature_names=()),
    }
    words = {
        "texts": "its labels are numbers, those of the rest texts",
        "columns": "its columns are not those of the rest: height, weight differ",
        "features": "it has other features than the rest: (4,) here, (3,) there",
    }
    for kind, other in others.items():
        task, left_out = majority(*alike, other, quorum=3)
        assert left_out == {"ward-x": words[kind]}, kind
        assert task == agreed(*alike)
        with pytest.raises(fs.DataError, match=r"ward-x.*\(3 of 4 sites are alike, and 4 must be\)"):
            majority(*alike, other, quorum=4)
        with pytest.raises(fs.DataError, match="ward-x"):
            agreed(*alike, other)


def test_sites_of_unlike_sizes_agree_on_all_classes() -> None:
    """One large site beside small ones is no drowning, and neither are many that have nothing in common."""
    large = replace(description("ward-a", target=fs.Classes(3_000, tuple(map(str, range(3_000))))), samples=9_000)
    small = [
        replace(description(f"ward-{n}", target=fs.Classes(50, tuple(f"{n}/{k}" for k in range(50)))), samples=100)
        for n in range(9)
    ]
    task, left_out = majority(large, *small, quorum=6)
    assert not left_out and task.classes == 3_450
    huge = replace(description("ward-z", target=fs.Classes(9_000, tuple(map(str, range(9_000))))), samples=90_000)
    task, left_out = majority(large, *small, huge, quorum=6)
    assert task.classes == 3_450
    assert re.search(r"it tells 9000 classes: 9450 with those of the rest, .* at most 6000", left_out["ward-z"])


# --- what a site tells ---


def picture_folder(folder: Path, sizes: list[tuple[int, int]]) -> str:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'fedsolve[images]'")
    for number, size in enumerate(sizes):
        place = folder / f"class-{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        image.new("RGB", size, (number, 0, 0)).save(place / f"{number}.png")
    return str(folder)


def test_a_site_describes_arrays_tables_and_pictures(tmp_path: Path) -> None:
    """Classes, shapes and names are those of the data as they are split later."""
    np.savez(tmp_path / "a.npz", x=np.ones((4, 5)), y=np.arange(4) % 2)
    np.savez(tmp_path / "b.npz", x=np.ones((4, 2, 3)), y=np.arange(4) % 3, client=np.array(list("pqrs")))
    (tmp_path / "c.csv").write_text("age,pulse,label\n1,2,sick\n3,4,healthy\n")
    pictures = picture_folder(tmp_path / "pictures", [(4, 6)] * 4)
    for data, shape, spec in (
        (tmp_path / "a.npz", (5,), "identity"),
        (tmp_path / "a.npz", (5,), "random:7,relu,0"),
        (tmp_path / "b.npz", (2, 3), "identity"),
        (tmp_path / "c.csv", (2,), "identity"),
        (pictures, (6, 4, 3), "identity"),
    ):
        site = FileSite("ward-a", str(data), tmp_path / "state", policy=FEW)
        job = Job("afl", features=spec)
        own = site.describe(job)
        assert own.task.inputs == shape
        task = jobs.agree({"ward-a": own}, job)
        split, client = site.client(job, task)
        assert task == split
        assert (own.task.described, own.samples) == (split.described, len(client.train) + len(client.test))


def test_a_description_needs_no_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A split copies and hashes all data; the shape is known without."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the data were split")

    np.savez(tmp_path / "a.npz", x=np.ones((4, 5)), y=np.arange(4) % 2)
    monkeypatch.setattr(fs.Table, "split", refused)
    assert FileSite("ward-a", str(tmp_path / "a.npz"), tmp_path).describe(Job("afl")).task.inputs == (5,)


def test_pictures_of_different_sizes_need_a_feature_map(tmp_path: Path) -> None:
    site = FileSite("ward-a", picture_folder(tmp_path / "pictures", [(4, 6), (4, 6), (5, 6), (4, 6)]), tmp_path)
    with pytest.raises(fs.DataError, match="size"):
        site.describe(Job("afl"))


def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((4, 5)), y=np.arange(4) % 2)
    with pytest.raises(fs.DataError, match="client names become file names"):
        FileSite("../ward-a", str(tmp_path / "a.npz"), tmp_path).describe(Job("afl"))
