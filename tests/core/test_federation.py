from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.data.federation import Federation, client_names
from fedsolve.data.table import Table
from fedsolve.errors import DataError, ParameterError

X, Y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 2, 1])


def one(train: Any = (X, Y), test: Any = None, **options: Any) -> Federation:
    """A federation of one client called ward."""
    parts = {"train": train} if test is None else {"train": train, "test": test}
    return Federation.from_arrays({"ward": parts}, **options)


def spoilt(row: int, column: int, value: float) -> np.ndarray:
    x = X.copy()
    x[row, column] = value
    return x


# --- from_arrays ---


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        (
            {"train": (spoilt(2, 1, np.nan), Y)},
            "client 'ward', train: inputs must be finite; got nan in row 2, column 1",
        ),
        ({"train": (spoilt(0, 2, -np.inf), Y)}, "got -inf in row 0, column 2"),
        ({"train": (X, Y), "test": (spoilt(3, 0, np.inf), Y)}, "client 'ward', test: inputs must be finite; got inf"),
        ({"train": (X, Y), "test": (spoilt(3, 0, np.nan), Y)}, "client 'ward', test: inputs must be finite; got nan"),
        ({"train": (spoilt(1, 1, np.nan).astype(np.float16), Y)}, "got nan in row 1, column 1"),
        ({"train": (X, [0, 0.5, 1, 1])}, "client 'ward', train: labels must be integers; got 0.5 in row 1"),
        ({"train": (X, [0, 1, np.nan, 1])}, "labels must be integers; got nan in row 2"),
        ({"train": (X, [0, 1, np.inf, 1])}, "labels must be integers; got inf in row 2"),
        ({"train": (X, [0, 1, 2, -1])}, "labels must be integers from 0 on; got -1 in row 3"),
        ({"train": (X, [0, 1, 2, 9])}, "client 'ward', train: labels must be integers from 0 to 4; got 9 in row 3"),
        (
            {"train": (X, Y), "test": (X, [0, 5, 0, 0])},
            "client 'ward', test: labels must be integers from 0 to 4; got 5",
        ),
        ({"train": (X, ["a", "b", "a", "b"])}, "client 'ward', train: labels must be one integer per sample"),
        ({"train": (X, Y[:, None])}, "labels must be one integer per sample; got int64[4, 1]"),
        ({"train": (X, Y[:3])}, "client 'ward', train: 4 inputs but 3 labels"),
        ({"train": (X, Y), "test": (X[:1], Y)}, "client 'ward', test: 1 inputs but 4 labels"),
        ({"train": (np.empty((0, 3)), [])}, "client 'ward' has no training samples"),
        ({"test": (X, Y)}, "client 'ward' needs 'train' and may have 'test'; got ['test']"),
        ({"train": (X, Y), "valid": (X, Y)}, "got ['train', 'valid']"),
        ({}, "client 'ward' needs 'train'"),
        ({"train": (X, Y), "test": (X[:, :2], Y)}, "client 'ward', test: inputs have shape (2,), but those of others"),
        (
            {"train": ([[1.0, 2.0], [3.0]], [0, 1])},
            "client 'ward', train: inputs must form one array; got rows of diff",
        ),
        ({"train": ([1.0, 2.0], [0, 1])}, "inputs must be an array of numbers, one row per sample; got float64[2]"),
        ({"train": ([["a"], ["b"]], [0, 1])}, "client 'ward', train: inputs must be an array of numbers"),
        ({"train": (X * 1j, Y)}, "inputs must be an array of numbers, one row per sample; got complex128[4, 3]"),
        ({"train": (None, Y)}, "client 'ward', train: inputs must be an array of numbers"),
        ({"train": X}, "client 'ward'"),  # not a pair
        ({"train": (X, Y, Y)}, "client 'ward'"),
        ({"train": (X, [[0, 1], [2]])}, "client 'ward', train: labels"),
    ],
)
def test_bad_data_is_refused_and_the_client_named(parts: Any, wanted: str) -> None:
    with pytest.raises(DataError) as error:
        Federation.from_arrays({"well": {"train": (X, Y)}, "ward": parts}, classes=5)
    assert wanted in str(error.value)


def test_a_federation_needs_a_client() -> None:
    with pytest.raises(DataError, match="at least one client; got none"):
        Federation.from_arrays({})


def test_clients_of_different_width_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"client 'b', train: inputs have shape \(2,\), but those of others have \(3,\)"
    ):
        Federation.from_arrays({"a": {"train": (X, Y)}, "b": {"train": (X[:, :2], Y)}})


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", ".x", "..", "global", "x" * 101, "a\nb", "\x00", 7, None])
def test_names_that_cannot_be_file_names_are_refused(name: Any) -> None:
    with pytest.raises(DataError) as error:
        Federation.from_arrays({name: {"train": (X, Y)}})
    assert f"got {name!r}" in str(error.value)


@pytest.mark.parametrize("name", ["x" * 100, "ward a", "a.b", "Globale", "-1", "é"])
def test_other_names_are_kept(name: str) -> None:
    assert list(Federation.from_arrays({name: {"train": (X, Y)}}).clients) == [name]


@pytest.mark.parametrize("classes", [0, -1, 2.5, True, "3"])
def test_classes_must_be_a_whole_number(classes: Any) -> None:
    with pytest.raises(ParameterError, match="classes must be an integer of at least 1"):
        one(classes=classes)


def test_classes_must_have_a_name_each() -> None:
    assert one(class_names=("a", "b", "c")).task.class_names == ("a", "b", "c")
    with pytest.raises(fs.FedsolveError, match="class"):
        one(class_names=("a", "b"))


def test_classes_default_to_the_largest_label_of_anybody() -> None:
    assert one().task.classes == 3
    assert one(test=(X, [0, 0, 0, 6])).task.classes == 7
    assert one(classes=10).task.classes == 10


def test_a_single_sample_of_a_single_class_and_no_test_work() -> None:
    federation = one(([[1.0, 2.0]], [0]))
    client = federation.clients["ward"]
    assert (len(client.train), len(client.test), federation.task.classes, federation.task.width) == (1, 0, 1, 2)
    assert client.test.inputs.shape == (0, 2)


@pytest.mark.parametrize("dtype", ["i1", "i8", "u1", "u8", "f2", "f4", "f8", ">f8", "?"])
def test_inputs_of_every_numeric_type_keep_their_values(dtype: str) -> None:
    x = (X % 2).astype(dtype)
    client = one((x, Y)).clients["ward"]
    np.testing.assert_array_equal(client.train.inputs, X % 2)
    assert client.train.inputs.dtype.kind in "iuf"


@pytest.mark.parametrize("dtype", ["i1", "u8", "f2", "f8", "?"])
def test_labels_of_every_numeric_type_become_integers(dtype: str) -> None:
    client = one((X, (Y % 2).astype(dtype))).clients["ward"]
    assert client.train.labels.dtype == np.int64
    np.testing.assert_array_equal(client.train.labels, [0, 1, 0, 1])


def test_images_keep_their_shape() -> None:
    federation = one((np.zeros((4, 2, 5), np.uint8), Y), (np.ones((1, 2, 5), np.uint8), [0]))
    assert federation.task.inputs == (2, 5)
    assert federation.task.width == 10
    assert federation.clients["ward"].train.inputs.shape == (4, 2, 5)


def test_lists_do_as_well_as_arrays() -> None:
    assert one((X.tolist(), Y.tolist())).fingerprint == one().fingerprint


def test_data_are_read_only_and_what_was_given_stays_writable() -> None:
    x, y = X.copy(), Y.copy()
    client = one((x, y), (x, y)).clients["ward"]
    for samples in (client.train, client.test):
        with pytest.raises(ValueError, match="read-only"):
            samples.inputs[0, 0] = 1
        with pytest.raises(ValueError, match="read-only"):
            samples.labels[0] = 1
    x[0, 0], y[0] = 5, 2  # the caller's own
    assert x[0, 0] == 5


def test_nobody_can_add_a_client_later() -> None:
    federation = one()
    with pytest.raises(TypeError):
        federation.clients["other"] = federation.clients["ward"]  # type: ignore[index]


# --- the fingerprint ---


def two(**changes: Any) -> Federation:
    parts = {"xa": X, "ya": Y, "xt": X[:2] + 1, "yt": Y[:2], "xb": X * 2, "yb": Y, "name": "b", **changes}
    return Federation.from_arrays(
        {
            "a": {"train": (parts["xa"], parts["ya"]), "test": (parts["xt"], parts["yt"])},
            parts["name"]: {"train": (parts["xb"], parts["yb"])},
        },
        classes=parts.get("classes", 3),
    )


def test_the_same_data_have_the_same_fingerprint_whatever_their_layout() -> None:
    assert two().fingerprint == two().fingerprint
    assert two(xa=np.asfortranarray(X)).fingerprint == two().fingerprint
    assert two(xa=np.repeat(X, 2, axis=0)[::2]).fingerprint == two().fingerprint
    assert two(ya=Y.astype(float)).fingerprint == two().fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"xa": spoilt(3, 2, 11.5)},
        {"ya": [0, 1, 2, 2]},
        {"xt": X[:2] + 2},
        {"yt": [1, 1]},
        {"xb": spoilt(0, 0, 1e-300) * 2},
        {"yb": Y[::-1].copy()},
        {"name": "c"},
        {"classes": 4},
        {"xa": X[::-1].copy(), "ya": Y[::-1].copy()},
        {"xa": X[:3], "ya": Y[:3], "xt": np.vstack([X[3:], X[:2] + 1]), "yt": [1, 0, 1]},  # another split
    ],
)
def test_any_change_changes_the_fingerprint(change: dict[str, Any]) -> None:
    assert two(**change).fingerprint != two().fingerprint


def test_swapped_test_and_training_data_have_another_fingerprint() -> None:
    assert one((X, Y), (X + 1, Y)).fingerprint != one((X + 1, Y), (X, Y)).fingerprint


def test_the_order_in_which_clients_are_given_is_not_part_of_the_fingerprint() -> None:
    a, b = {"train": (X, Y)}, {"train": (X + 1, Y)}
    first, second = Federation.from_arrays({"a": a, "b": b}), Federation.from_arrays({"b": b, "a": a})
    assert first.fingerprint == second.fingerprint


@given(st.integers(0, 3), st.integers(0, 2), st.floats(allow_nan=False, allow_infinity=False))
def test_the_fingerprint_tells_every_value(row: int, column: int, value: float) -> None:
    same = np.array(value).tobytes() == X[row, column].tobytes()
    assert (two(xa=spoilt(row, column, value)).fingerprint == two().fingerprint) == same


# --- tables ---


def table(count: int, classes: int = 4, *, official: int = 0, client: Any = None) -> Table:
    """Row i has input (i, 0); the official test set counts from -1 downwards. The first two rows differ in class."""
    rng = np.random.default_rng(count)
    labels = np.concatenate([[0, 1], rng.integers(classes, size=count)])[:count]
    x = np.column_stack([np.arange(count), np.zeros(count)])
    test = None
    if official:
        test = (-np.column_stack([np.arange(official) + 1, np.zeros(official)]), rng.integers(classes, size=official))
    return Table.make("t", x, labels, test=test, client=client)


def ids(federation: Federation, part: str) -> dict[str, list[int]]:
    return {n: getattr(c, part).inputs[:, 0].astype(int).tolist() for n, c in federation.clients.items()}


PARTITIONS = st.sampled_from(
    [fs.iid(), fs.dirichlet(0.1), fs.classes(2), fs.neighbours(2), fs.shards(2), fs.power_law()]
)


@given(st.integers(2, 80), st.integers(1, 12), PARTITIONS, st.floats(0, 1, exclude_max=True), st.integers(0, 99))
def test_every_row_is_used_once_for_training_or_testing(
    count: int, clients: int, how: Any, share: float, seed: int
) -> None:
    data = table(count)
    if clients > count:
        with pytest.raises(DataError, match=f"{clients} clients are more than the {count} samples of t"):
            data.split(how, clients=clients, seed=seed, test=share, min_samples=1)
        return
    federation = data.split(how, clients=clients, seed=seed, test=share, min_samples=1)
    train, test = ids(federation, "train"), ids(federation, "test")
    assert sorted(row for part in (*train.values(), *test.values()) for row in part) == list(range(count))
    for name, client in federation.clients.items():
        total = len(client.train) + len(client.test)
        assert len(client.train) >= 1
        assert len(client.test) == min(total - 1, max(round(share * total), int(share > 0)))
        own = train[name] + test[name]
        labels = np.concatenate([client.train.labels, client.test.labels])
        np.testing.assert_array_equal(labels, data.labels[own])  # labels stay with their inputs
        assert client.name == name
        assert not client.train.inputs.flags.writeable


def test_a_share_of_nothing_leaves_everything_for_training() -> None:
    federation = table(20).split(fs.iid(), clients=4, test=0)
    assert all(len(c.test) == 0 for c in federation.clients.values())
    assert sum(len(c.train) for c in federation.clients.values()) == 20


def test_same_seed_same_split_other_seed_other_split() -> None:
    first, again, other = (table(60).split(fs.dirichlet(0.5), clients=5, seed=s) for s in (3, 3, 4))
    assert first.fingerprint == again.fingerprint
    assert ids(first, "test") == ids(again, "test")
    assert first.fingerprint != other.fingerprint


def test_the_share_of_test_data_does_not_change_who_owns_what() -> None:
    def owned(share: float) -> dict[str, list[int]]:
        federation = table(60).split(fs.dirichlet(0.5), clients=5, test=share)
        train, test = ids(federation, "train"), ids(federation, "test")
        return {name: sorted(train[name] + test[name]) for name in train}

    assert owned(0) == owned(0.2) == owned(0.5)


@given(st.integers(2, 60), st.integers(1, 10), PARTITIONS, st.integers(1, 60), st.integers(0, 99))
def test_official_test_samples_are_dealt_once_and_in_proportion(
    count: int, clients: int, how: Any, official: int, seed: int
) -> None:
    clients = min(clients, count)
    data = table(count, official=official)
    federation = data.split(how, clients=clients, seed=seed, test="official", min_samples=1)
    assert sum(len(c.train) for c in federation.clients.values()) == count
    assert data.test is not None
    trained = np.isin(data.test.labels, data.labels)
    dealt = sorted(-i - 1 for part in ids(federation, "test").values() for i in part)
    assert dealt == np.flatnonzero(trained).tolist()
    for client in federation.clients.values():
        np.testing.assert_array_equal(data.test.labels[-client.test.inputs[:, 0].astype(int) - 1], client.test.labels)
        for label in range(data.classes):
            available = int((data.test.labels == label).sum())
            everybody = int((data.labels == label).sum())
            mine = int((client.train.labels == label).sum())
            fair = available * mine / everybody if everybody else 0.0
            assert abs(int((client.test.labels == label).sum()) - fair) <= 1


def test_a_global_test_set_is_one_array_for_everybody() -> None:
    data = table(40, official=9)
    federation = data.split(fs.iid(), clients=4, test="global")
    assert data.test is not None
    for client in federation.clients.values():
        assert np.shares_memory(client.test.inputs, data.test.inputs)
        assert len(client.test) == 9
    assert sum(len(c.train) for c in federation.clients.values()) == 40


@pytest.mark.parametrize("test", ["official", "global"])
def test_without_an_official_test_set_there_is_none_to_deal(test: str) -> None:
    with pytest.raises(DataError, match="t has no official test set"):
        table(10).split(fs.iid(), clients=2, test=test)


@pytest.mark.parametrize("test", [1, 1.5, -0.1, np.nan, np.inf, "none", "0.2", True])
def test_a_bad_share_is_refused(test: Any) -> None:
    with pytest.raises(ParameterError, match="test must be a share") as error:
        table(10).split(fs.iid(), clients=2, test=test)
    assert repr(test) in str(error.value)


@pytest.mark.parametrize("clients", [0, -3, 2.0, True, "5"])
def test_a_bad_number_of_clients_is_refused(clients: Any) -> None:
    with pytest.raises(ParameterError, match="clients must be an integer of at least 1") as error:
        table(10).split(fs.iid(), clients=clients)
    assert repr(clients) in str(error.value)


def test_numbers_of_numpy_do_as_well() -> None:
    found = table(10).split(fs.iid(), clients=np.int64(2), test=np.float32(0.5))  # type: ignore[arg-type]
    assert found.fingerprint == table(10).split(fs.iid(), clients=2, test=0.5).fingerprint


def test_more_clients_than_samples_are_refused_with_both_numbers() -> None:
    with pytest.raises(DataError, match="11 clients are more than the 10 samples of t"):
        table(10).split(fs.iid(), clients=11)


def test_too_few_samples_for_the_minimum_are_refused() -> None:
    with pytest.raises(DataError, match="4 clients with at least 3 samples each need 12 samples, but there are 10"):
        table(10).split(fs.iid(), clients=4, min_samples=3)


@given(st.integers(1, 6), st.integers(0, 99))
def test_clients_with_too_few_samples_are_topped_up_and_it_is_said_how_many_moved(least: int, seed: int) -> None:
    data = table(60)
    raw = data.split(fs.dirichlet(0.05), clients=8, seed=seed, test=0, min_samples=1)
    federation = data.split(fs.dirichlet(0.05), clients=8, seed=seed, test=0, min_samples=least)
    sizes = [len(c.train) for c in federation.clients.values()]
    assert min(sizes) >= least
    assert sum(sizes) == 60
    assert federation.moved >= raw.moved
    assert (federation.moved == 0) == (ids(federation, "train") == ids(raw, "train") and raw.moved == 0)


def test_a_split_that_needs_no_mending_moves_nothing() -> None:
    assert table(60).split(fs.iid(), clients=5).moved == 0


@pytest.mark.parametrize("least", [0, -1])
def test_a_minimum_that_would_leave_clients_empty_is_refused(least: int) -> None:
    with pytest.raises(ParameterError, match=r"min.samples must be an integer of at least 1"):
        table(60).split(fs.dirichlet(0.001), clients=10, min_samples=least)


# --- natural clients ---


def test_by_client_follows_a_column_of_names() -> None:
    federation = table(6, client=["b", "a", "b", "a", "b", "c"]).split(fs.by_client(), test=0)
    assert ids(federation, "train") == {"a": [1, 3], "b": [0, 2, 4], "c": [5]}


@pytest.mark.parametrize(
    ("owners", "names"),
    [
        ([0, 1, 1, 0], ["client-00", "client-01"]),
        ([7, 3, 3, 7], ["3", "7"]),
        (np.array([2, 1, 1, 2], np.uint8), ["1", "2"]),
        (["01", "1", "1", "01"], ["01", "1"]),
    ],
)
def test_by_client_names_numbered_owners(owners: Any, names: list[str]) -> None:
    assert list(table(4, client=owners).split(fs.by_client()).clients) == names


def test_by_client_keeps_a_client_with_one_sample_and_moves_nothing() -> None:
    federation = table(5, client=["a", "b", "b", "b", "b"]).split(fs.by_client(), min_samples=4)
    assert (len(federation.clients["a"].train), len(federation.clients["a"].test)) == (1, 0)
    assert federation.moved == 0


def test_by_client_refuses_a_number_that_contradicts_the_column() -> None:
    data = table(4, client=["a", "b", "b", "a"])
    assert len(data.split(fs.by_client(), clients=2).clients) == 2
    with pytest.raises(ParameterError, match="t has 2 natural clients; got clients=3"):
        data.split(fs.by_client(), clients=3)


def test_by_client_needs_the_column() -> None:
    with pytest.raises(DataError, match="t has no column 'client'"):
        table(4).split(fs.by_client())


@pytest.mark.parametrize("name", ["a/b", "", "global", ".x"])
def test_owners_that_cannot_be_file_names_are_refused(name: str) -> None:
    with pytest.raises(DataError) as error:
        table(2, client=["ok", name]).split(fs.by_client())
    assert f"got {name!r}" in str(error.value)


@given(st.lists(st.sampled_from(["b", "c"]), max_size=30), st.floats(0, 0.9), st.integers(0, 99))
def test_what_a_client_tests_on_does_not_depend_on_the_others(others: list[str], share: float, seed: int) -> None:
    def own(owners: list[str]) -> tuple[Any, Any]:
        count = len(owners)
        x = np.column_stack([np.arange(count), np.zeros(count)])
        federation = Table.make("t", x, np.arange(count) % 2, client=owners).split(
            fs.by_client(), test=share, seed=seed
        )
        return ids(federation, "train")["a"], ids(federation, "test")["a"]

    assert own(["a"] * 9 + others) == own(["a"] * 9)


# --- tables of one class ---


@pytest.mark.parametrize("label", [0, 3])
def test_a_table_of_one_class_is_not_split(label: int) -> None:
    data = Table.make("t", X, [label] * 4)
    with pytest.raises(DataError, match=f"t: all labels are equal \\('{label}', 4 samples\\).*two classes or more"):
        data.split(fs.iid(), clients=2)


def test_a_site_may_have_one_class() -> None:
    data = Table.make("t", X, [1] * 4, client=["a", "b", "a", "b"])
    federation = data.owned_by("ward", seed=3, test=0.25)
    assert list(federation.clients) == ["ward"]
    client = federation.clients["ward"]
    assert sorted([*client.train.inputs[:, 0], *client.test.inputs[:, 0]]) == X[:, 0].tolist()
    assert len(client.test) == 1 and federation.task.classes == 2
    assert len(one((X, [1] * 4), classes=2).clients["ward"].train) == 4


@given(st.integers(2, 30), st.floats(0, 1, exclude_max=True), st.integers(0, 99))
def test_a_table_owned_by_one_is_the_split_by_that_client(count: int, share: float, seed: int) -> None:
    data, owners = table(count, official=5), np.full(count, "ward")
    for test in (share, "official", "global"):
        split = replace(data, client=owners).split("by-client", seed=seed, test=test)
        assert data.owned_by("ward", seed=seed, test=test).fingerprint == split.fingerprint


# --- what is shown ---


def test_no_repr_shows_rows_of_data() -> None:
    marker = 123456.789
    x = np.where(np.arange(600).reshape(200, 3) % 7 == 0, marker, np.arange(600).reshape(200, 3))
    y = np.arange(200) % 2
    data = Table.make("t" * 400, x, y, test=(x, y), client=np.arange(200) % 20)
    federation = data.split("by-client")
    result = fs.run(fs.AFL(ridge=1.0, intercept=False), federation)
    moments = fs.Moments.of(x, y, classes=2)
    client = federation.clients["client-03"]
    shown = [data, federation, client, client.train, client.test, result, result.models["client-03"], result.shared]
    for each in (*shown, moments, fs.solve(moments, 1.0), result.models["client-03"].task):
        text = repr(each)
        assert text.startswith(type(each).__name__)
        assert "123456" not in text and "array(" not in text
        assert len(text) < 500


# --- making a table ---


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"labels": Y[:3]}, "t: 4 inputs but 3 labels"),
        ({"inputs": np.empty((0, 3)), "labels": []}, "t holds no samples"),
        ({"inputs": spoilt(1, 2, np.nan)}, "t: inputs must be finite; got nan in row 1, column 2"),
        ({"labels": [0, 1, 2, -1]}, "t: labels must be integers from 0 on; got -1 in row 3"),
        ({"labels": [0, 1, 2, 1.5]}, "t: labels must be integers; got 1.5 in row 3"),
        ({"test": (X[:, :2], Y)}, "the test set has 4 inputs of shape (2,) and 4 labels; wanted inputs of shape (3,)"),
        ({"test": (X, Y[:2])}, "the test set has 4 inputs of shape (3,) and 2 labels"),
        ({"test": (spoilt(0, 0, np.inf), Y)}, "t, test: inputs must be finite; got inf in row 0"),
        ({"client": ["a", "b"]}, "'client' must name the owner of each of 4 rows; got shape (2,)"),
        ({"class_names": ("a", "b")}, "t: labels must be integers from 0 to 1; got 2 in row 2"),
        (
            {"class_names": ("a", "b", "c"), "test": (X, [0, 1, 2, 7])},
            "t, test: labels must be integers from 0 to 2; got 7",
        ),
    ],
)
def test_a_bad_table_is_refused(options: dict[str, Any], wanted: str) -> None:
    given_: Mapping[str, Any] = {"inputs": X, "labels": Y, **options}
    with pytest.raises(DataError) as error:
        Table.make(
            "t",
            given_["inputs"],
            given_["labels"],
            **{k: v for k, v in options.items() if k not in ("inputs", "labels")},
        )
    assert wanted in str(error.value)


def test_the_classes_of_a_table_are_those_of_training_and_test() -> None:
    assert Table.make("t", X, Y).classes == 3
    assert Table.make("t", X, Y, test=(X, [0, 0, 0, 8])).classes == 9
    assert Table.make("t", X, Y, class_names=("a", "b", "c", "d")).classes == 4


@given(st.integers(1, 20_000))
def test_client_names_sort_by_number(count: int) -> None:
    names = client_names(count)
    assert len(set(names)) == count
    assert names == sorted(names)
    assert names[0] == "client-" + "0" * max(2, len(str(count - 1)))


def test_features_replace_the_inputs_and_keep_labels_and_names() -> None:
    class Doubled:
        def shape(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
            return (2 * inputs[0],)

        def __call__(self, inputs: np.ndarray) -> np.ndarray:
            return np.hstack([inputs, inputs])

        identity = "doubled"

    before = two()
    after = before.with_features(Doubled())
    assert after.task.inputs == (3,)
    assert after.task.shape == (6,)
    assert after.task.space != before.task.space
    assert after.clients["b"].test.inputs.shape == (0, 6)
    np.testing.assert_array_equal(after.clients["a"].train.inputs, np.hstack([X, X]))
    np.testing.assert_array_equal(after.clients["a"].test.labels, before.clients["a"].test.labels)
    with pytest.raises(ValueError, match="read-only"):
        after.clients["a"].train.inputs[0, 0] = 1


@pytest.mark.parametrize("label", [2**64 - 1, 1e300])
def test_labels_beyond_any_class_are_refused(label: float) -> None:
    with pytest.raises(DataError, match="labels must be integers from 0 on"):
        fs.Federation.from_arrays({"a": {"train": (np.eye(2), np.array([0, label]))}})


def test_labels_that_are_no_class_numbers_are_refused() -> None:
    with pytest.raises(DataError, match="labels run up to 90210 for 3 samples"):
        fs.Table.make("postcodes", np.eye(3), [90001, 90210, 90002])


def test_inputs_without_features_are_refused() -> None:
    with pytest.raises(DataError, match="client 'a', train: inputs must be"):
        fs.Federation.from_arrays({"a": {"train": (np.zeros((3, 0)), [0, 1, 0])}})


# --- part of a table ---


@given(st.integers(1, 40), st.integers(0, 5))
def test_a_sample_is_so_many_rows_of_the_table_in_their_order(limit: int, seed: int) -> None:
    x, y = np.arange(30.0)[:, None], np.arange(30) % 3
    table = Table.make("t", x, y, test=(x, y), client=np.arange(30) // 10)
    part = table.sample(limit, seed)
    rows = np.asarray(part.inputs)[:, 0].astype(int)
    assert len(rows) == min(limit, 30)
    assert (np.diff(rows) > 0).all()
    assert np.array_equal(part.labels, y[rows])
    assert part.client is not None
    assert np.array_equal(part.client, rows // 10)
    assert (part.classes, part.test) == (table.classes, table.test)
    assert np.array_equal(np.asarray(table.sample(limit, seed).inputs), np.asarray(part.inputs))


def test_another_seed_draws_other_rows() -> None:
    table = Table.make("t", np.arange(100.0)[:, None], np.arange(100) % 3)
    assert not np.array_equal(np.asarray(table.sample(50, 0).inputs), np.asarray(table.sample(50, 1).inputs))


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "3"])
def test_a_limit_is_a_whole_number_from_one(limit: Any) -> None:
    with pytest.raises(ParameterError, match="limit must be an integer of at least 1"):
        Table.make("t", X, Y).sample(limit)
