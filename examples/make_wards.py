"""Writes src/fedsolve/data/wards.csv, the table of README and docs: invented patients of five wards of one hospital.

Nobody in it is real. Wards differ in size, in whom they treat and in what the same value means: a low oxygen level is
usual in pulmonology, a slow pulse in cardiology. The same seed gives the same file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILE = Path(__file__).parents[1] / "src" / "fedsolve" / "data" / "wards.csv"
COLUMNS = ("age", "temperature", "pulse", "systolic", "breaths", "oxygen", "lactate", "crp")
DIGITS = (0, 1, 0, 0, 0, 0, 1, 0)  # behind the point, column by column
LABELS = ("home", "intensive", "rehab")


@dataclass(frozen=True)
class Ward:
    """How many patients a ward has, what is usual there, and how often they go where."""

    name: str
    patients: int
    age: float
    pulse: float
    oxygen: float
    rehab: float  # the larger, the more go to rehabilitation rather than home
    intensive: float  # the larger, the more go to intensive care rather than home


WARDS = (
    Ward("cardiology", 100, age=67, pulse=66, oxygen=96, rehab=-1.2, intensive=-0.4),
    Ward("geriatrics", 180, age=82, pulse=80, oxygen=95, rehab=1.8, intensive=-1.6),
    Ward("pulmonology", 60, age=64, pulse=88, oxygen=89, rehab=-1.4, intensive=0.6),
    Ward("surgery", 120, age=57, pulse=82, oxygen=97, rehab=-0.2, intensive=-1.8),
    Ward("trauma", 40, age=41, pulse=94, oxygen=97, rehab=1.2, intensive=0.2),
)


def rows_of(ward: Ward, rng: np.random.Generator) -> list[list[str]]:
    """The ward's patients, one row each: values as they are written in a chart, and where the patient went."""
    n = ward.patients
    infection, strain = rng.normal(size=n), rng.normal(size=n)  # how ill, in two ways that share most columns
    age = np.clip(rng.normal(ward.age, 11, n), 18, 99)
    temperature = np.clip(36.9 + 0.5 * infection + rng.normal(0, 0.3, n), 35.0, 41.0)
    pulse = np.clip(ward.pulse + 7 * infection + 8 * strain + rng.normal(0, 8, n), 40, 170)
    systolic = np.clip(128 - 9 * strain + 0.3 * (age - 60) + rng.normal(0, 13, n), 75, 210)
    breaths = np.clip(16 + 2 * strain + 1.2 * infection + rng.normal(0, 1.8, n), 8, 40)
    oxygen = np.clip(ward.oxygen - 1.4 * strain + rng.normal(0, 1.2, n), 72, 100)
    lactate = np.clip(np.exp(0.35 + 0.3 * strain + 0.15 * infection + rng.normal(0, 0.2, n)), 0.4, 12)
    crp = np.clip(np.exp(2.8 + 0.8 * infection + rng.normal(0, 0.5, n)), 0.5, 400)
    scores = np.stack(
        [
            np.zeros(n),
            ward.intensive + 1.6 * strain + infection - 0.5 * (oxygen - ward.oxygen) + 0.06 * (pulse - ward.pulse),
            ward.rehab + 0.09 * (age - ward.age) + 0.8 * infection - 0.5 * strain,
        ],
        axis=1,
    )
    labels = np.argmax(2.0 * scores + rng.gumbel(size=scores.shape), axis=1)
    columns = (age, temperature, pulse, systolic, breaths, oxygen, lactate, crp)
    patients = zip(*columns, strict=True)
    return [
        [*(f"{value:.{digits}f}" for value, digits in zip(patient, DIGITS, strict=True)), LABELS[label], ward.name]
        for patient, label in zip(patients, labels, strict=True)
    ]


def text(seed: int = 7) -> str:
    """The content of the file."""
    rng = np.random.default_rng(seed)
    rows = [row for ward in WARDS for row in rows_of(ward, rng)]
    order = rng.permutation(len(rows))
    lines = [[*COLUMNS, "label", "client"], *(rows[i] for i in order)]
    return "".join(",".join(line) + "\n" for line in lines)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8", newline="\n")
