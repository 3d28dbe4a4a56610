"""Weights & Biases: runs kept in a folder, offline unless the user's own environment says otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fedsolve import disk
from fedsolve.errors import ParameterError
from fedsolve.tracking.figures import Scalar
from fedsolve.tracking.log import End

FOLDER = "."  # in which the library makes its own, called wandb
_CODE = {"finished": 0, "failed": 1, "stopped": 255}


@dataclass(frozen=True, slots=True)
class WandB:
    """Runs in Weights & Biases: figures by round, settings as the config, the result's as the summary.

    `where` is the folder in which the library keeps its own, wandb. Runs are offline, for `wandb sync` to send, unless
    WANDB_MODE says otherwise. Reports of errors, figures of the machine, code and the terminal are not kept.
    """

    where: str = ""
    project: str = ""  # default: what WANDB_PROJECT says, else fedsolve

    def check(self) -> None:
        """Refuse to begin where the library is not there."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when the library is imported
        try:
            import wandb  # noqa: F401
        except ModuleNotFoundError as missing:
            raise ParameterError(
                "tracking with Weights & Biases needs its library: pip install 'fedsolve[wandb]'"
            ) from missing

    def open(self, name: str) -> _Run:
        """A new run of the project."""
        self.check()
        import wandb

        where = self.where or os.environ.get("WANDB_DIR", "") or FOLDER
        disk.check_writable(Path(where) / "wandb" / "run")
        Path(where).mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            silent=True, console="off", save_code=False, disable_git=True, disable_job_creation=True,
            x_disable_stats=True, x_disable_meta=True,
        )  # fmt: skip
        return _Run(
            wandb.init(
                project=self.project or os.environ.get("WANDB_PROJECT", "") or "fedsolve",
                name=name,
                dir=where,
                mode=cast(Any, os.environ.get("WANDB_MODE", "") or "offline"),
                reinit="create_new",  # a run of the user's own stays as it is
                settings=settings,
            )
        )


class _Run:
    def __init__(self, run: Any) -> None:
        self._run = run

    def settings(self, values: Mapping[str, Scalar]) -> None:
        self._run.config.update(dict(values))

    def round(self, number: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=number, commit=True)  # at once: the last round may not wait for another

    def result(self, values: Mapping[str, float], place: str) -> None:
        self._run.summary.update({**values, **({"result": place} if place else {})})

    def close(self, end: End) -> None:
        self._run.finish(exit_code=_CODE[end])
