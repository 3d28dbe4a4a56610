"""Sites: what one tells about its data, and what all must agree on before anything is added up."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.features import maps
from fedsolve.runtime.sites import Description, FileSite, Job, agree

COLUMNS = ("age", "pulse", "weight")


def description(name: str, **changes: object) -> Description:
    space = maps.described(maps.Identity(), (3,))
    whole = Description(name, "1", 2, ("healthy", "sick"), (3,), COLUMNS, space, 10)
    return replace(whole, **changes)  # type: ignore[arg-type]


def agreed(*sites: Description) -> tuple[fs.Task, object]:
    return agree({site.name: site for site in sites}, Job("afl"))


# --- agreement ---


@pytest.mark.parametrize("columns", [("age", "pulse", "height"), ("age", "pulse"), (*COLUMNS, "height")])
def test_a_site_with_other_columns_is_refused_by_name(columns: tuple[str, ...]) -> None:
    odd = ", ".join(sorted(set(columns) ^ set(COLUMNS)))
    with pytest.raises(fs.DataError, match=f"the columns of site 'ward-b' .*: {re.escape(odd)} differ"):
        agreed(description("ward-a"), description("ward-b", feature_names=columns), description("ward-c"))


def test_columns_in_another_order_or_without_names_are_the_same_columns() -> None:
    others = description("ward-b", feature_names=COLUMNS[::-1]), description("ward-c", feature_names=())
    task, _ = agreed(description("ward-a"), *others)
    assert task.feature_names == COLUMNS
    assert task.inputs == (3,)


def test_texts_and_numbers_as_labels_are_refused_by_name() -> None:
    with pytest.raises(fs.DataError, match="site 'ward-a' are texts, those of site 'ward-b' numbers"):
        agreed(description("ward-a"), description("ward-b", class_names=()))


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
        site, job = FileSite("ward-a", str(data), tmp_path / "state"), Job("afl", features=spec)
        own = site.describe(job)
        assert own.inputs == shape
        task, terms = agree({"ward-a": own}, job)
        split, client = site.client(job, terms)
        assert task == split
        assert (own.space, own.samples) == (split.described, len(client.train) + len(client.test))


def test_a_description_needs_no_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A split copies and hashes all data; the shape is known without."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the data were split")

    np.savez(tmp_path / "a.npz", x=np.ones((4, 5)), y=np.arange(4) % 2)
    monkeypatch.setattr(fs.Table, "split", refused)
    assert FileSite("ward-a", str(tmp_path / "a.npz"), tmp_path).describe(Job("afl")).inputs == (5,)


def test_pictures_of_different_sizes_need_a_feature_map(tmp_path: Path) -> None:
    site = FileSite("ward-a", picture_folder(tmp_path / "pictures", [(4, 6), (4, 6), (5, 6), (4, 6)]), tmp_path)
    with pytest.raises(fs.DataError, match="size"):
        site.describe(Job("afl"))


def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((4, 5)), y=np.arange(4) % 2)
    with pytest.raises(fs.DataError, match="client names become file names"):
        FileSite("../ward-a", str(tmp_path / "a.npz"), tmp_path).describe(Job("afl"))
