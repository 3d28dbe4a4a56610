"""The changes that the mutation score counts: each is one change, and the tree is left as it was."""

from __future__ import annotations

import ast

import pytest
from tools.mutants import BAR, KERNEL, PACKAGE, REASONS, ROOT, _drawn, reasons_on_file
from tools.mutations import mutations


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("a < b", {"a <= b", "a >= b"}),
        ("a == b", {"a != b"}),
        ("a is None", {"a is not None"}),
        ("a + b", {"a - b"}),
        ("a and b", {"a or b"}),
        ("not a", {"a"}),
        ("-a", {"a"}),
        ("a[3]", {"a[4]", "a[2]"}),
        ("f(2.5)", {"f(5.0)", "f(1.25)"}),
        ("f(True)", {"f(False)"}),
        ("f('k')", {"f('k?')"}),
        ("f(a, key=b)", {"f(a)"}),
        ("max(a, b)", {"min(a, b)"}),
        ("a.any()", {"a.all()"}),
        ("b if a else c", {"b if not a else c"}),
        ("[b for b in a if b]", {"[b for b in a if not b]"}),
    ],
)
def test_an_expression_is_changed_in_each_of_its_ways(line: str, wanted: set[str]) -> None:
    found = {mutation.key.split(" -> ")[1] for mutation in mutations(f"x = {line}")}
    assert found == {f"x = {new}" for new in wanted}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("def f():\n    return a", ["f: return a -> return None"]),
        ("def f():\n    return None", []),
        ("def f():\n    raise ValueError('not' + 1)", ["f: raise ValueError('not' + 1) -> pass"]),
        ("def f():\n    'Words.'\n    g(a)", ["f: g(a) -> pass"]),
        ("def f(a: 'int' = b) -> 'x':\n    pass", []),
        ("@cache(size=3)\ndef f():\n    pass", []),
        ("a[b] = c", ["module: a[b] = c -> pass"]),
        ("import a", []),
    ],
)
def test_statements_are_taken_out_and_types_and_errors_left_alone(line: str, wanted: list[str]) -> None:
    assert [mutation.key for mutation in mutations(line)] == wanted


@pytest.mark.parametrize("module", KERNEL)
def test_every_change_of_the_kernel_compiles_has_a_name_of_its_own_and_is_taken_back(module: str) -> None:
    source = (PACKAGE / module).read_text()
    found = mutations(source)
    plain = ast.dump(ast.parse(source))
    assert len({mutation.key for mutation in found}) == len(found)
    for mutation in found[::5]:
        mutation.compiled(module)
    assert ast.dump(found[0].tree) == plain
    assert all((ROOT / test).is_file() for test in KERNEL[module])


def test_a_sample_is_the_same_for_the_same_seed_and_part_of_the_whole() -> None:
    counts = {"a": 30, "b": 50}
    whole, some = _drawn(counts, None, 0), _drawn(counts, 20, 1)
    assert {module: len(indices) for module, indices in whole.items()} == counts
    assert sum(len(indices) for indices in some.values()) == 20
    assert all(some[module] <= whole[module] for module in counts)
    assert some == _drawn(counts, 20, 1) != _drawn(counts, 20, 2)


def test_reasons_are_given_for_modules_of_the_kernel_and_the_bar_is_high() -> None:
    assert REASONS.is_file()
    assert reasons_on_file().keys() <= KERNEL.keys()
    assert all(text.strip() for reasons in reasons_on_file().values() for text in reasons.values())
    assert BAR >= 0.85
