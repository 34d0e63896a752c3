"""`longshore.attach`."""

from __future__ import annotations

import os

from longshore import _core
from longshore._progress import observer

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from collections.abc import Iterable

    from longshore._load import Format, Progress, StrPath


def attach(
    name_or_id: StrPath | int,
    *,
    socket: StrPath | None = None,
    format: Format = "auto",
    progress: Progress = None,
    trust_uid: Iterable[int] = (),
) -> _core.Buffer:
    """Attach a model of `longshore serve`, which loads it if it does not hold it yet.

    The buffer maps the server's memory, which no process can change; attaching uses no memory of its
    own. This process opens the file, too, to prove that it may read it. The server keeps the model
    until the buffer and all its views are gone, or until `Buffer.close`; the memory stays valid after
    the server has ended.

    Args:
        name_or_id: A path, a name below a directory that is served, or a number from `longshore ls`.
        socket: The path of the server's socket; None tries that of this user, then the system's.
        format: The format of the file; "auto" chooses it by the file's name.
        progress: As for `longshore.load`, while the server loads the model.
        trust_uid: Ids of users whose server this process may use, besides root, its own user, the
            system user `longshore` and the ids in `$LONGSHORE_TRUST_UID`. Nothing is sent to the
            server of any other user: the call raises `PermissionDeniedError`.
    """
    wanted = name_or_id if isinstance(name_or_id, int) else os.fspath(name_or_id)
    with observer(progress, [str(wanted)]) as observe:
        return _core.attach(
            wanted, socket=socket, format=format, observe=observe, trust_uid=list(trust_uid)
        )
