"""TensorBoard: one folder for each run below a folder of logs, written event by event, without threads.

Figures are scalars in double precision, which TensorBoard shows as any others: in its usual single precision the bytes
of a large run would lose digits.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsolve import disk
from fedsolve.errors import ParameterError
from fedsolve.tracking.figures import Scalar
from fedsolve.tracking.log import End

FOLDER = "logs"


@dataclass(frozen=True, slots=True)
class TensorBoard:
    """Runs in TensorBoard: figures by round as scalars, settings as hyper-parameters, the result's place as a text.

    `where` is the folder of logs, by default logs; look at it with `tensorboard --logdir logs`.
    """

    where: str = ""

    def check(self) -> None:
        """Refuse to begin where the library is not there."""
        try:
            import tensorboard.compat.proto.event_pb2  # noqa: F401
        except ModuleNotFoundError as missing:
            raise ParameterError("tracking with TensorBoard needs it: pip install 'fedsolve[tensorboard]'") from missing

    def open(self, name: str) -> _Run:
        """A new folder below that of the logs; another number is put behind a name that is taken."""
        self.check()
        logs = Path(self.where or FOLDER)
        disk.check_writable(logs / "run")
        logs.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            folder = logs / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            break
        return _Run(folder)


class _Run:
    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        started = time.time()
        self._name = folder.name
        path = folder / f"events.out.tfevents.{int(started)}.{socket.gethostname()}.{os.getpid()}"
        self._file = path.open("xb")
        self._writer = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")

    def settings(self, values: Mapping[str, Scalar]) -> None:
        from tensorboard.plugins.hparams import summary_v2

        self._write(summary=summary_v2.hparams_pb(dict(values), trial_id=self._name, start_time_secs=time.time()))

    def round(self, number: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.scalar.metadata import create_summary_metadata

        kind = create_summary_metadata("", "")
        found = [Summary.Value(tag=tag, tensor=_double(value), metadata=kind) for tag, value in values.items()]
        self._write(summary=Summary(value=found), step=number)

    def result(self, values: Mapping[str, float], place: str) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.metadata import create_summary_metadata

        rounds = int(values["final/rounds"])
        self.round(rounds, values)
        if place:
            kind = create_summary_metadata("", "")
            text = Summary.Value(tag="result", tensor=_text(place), metadata=kind)
            self._write(summary=Summary(value=[text]), step=rounds)

    def close(self, end: End) -> None:
        """With how it ended, among the hyper-parameters."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import api_pb2, metadata
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

        status = {"finished": api_pb2.STATUS_SUCCESS, "failed": api_pb2.STATUS_FAILURE}
        ended = SessionEndInfo(status=status.get(end, api_pb2.STATUS_UNKNOWN), end_time_secs=time.time())
        kind = metadata.create_summary_metadata(HParamsPluginData(session_end_info=ended))
        value = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=kind, tensor=metadata.NULL_TENSOR)
        self._write(summary=Summary(value=[value]))
        self._writer.close()

    def _write(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time.time(), **content).SerializeToString())
        self._writer.flush()


def _double(value: float) -> Any:
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_DOUBLE

    return TensorProto(dtype=DT_DOUBLE, double_val=[value], tensor_shape=TensorShapeProto())


def _text(text: str) -> Any:
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    return TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=TensorShapeProto())
