"""`longshore.attach`."""

from __future__ import annotations

import os

from longshore import _core
from longshore._progress import observer

TYPE_CHECKING = False  # As in typing, which takes longer to import than all of this.
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
    """Attach a model that `longshore serve` holds, or loads for this.

    The memory is the server's: it takes none here, and nobody can change it. This process opens the
    file, too, to show that it may read it. The attachment counts until the buffer and all views of
    it are gone, or `Buffer.close` released it; the memory stays valid when the server ends.

    Args:
        name_or_id: A path; a name beneath what is served; a number of `longshore ls`.
        socket: The server's; None is that of this user, or else the system's.
        format: What the file is taken to be; "auto" goes by its name.
        progress: As of `longshore.load`, while the server loads it.
        trust_uid: Ids of users whose server may have the file, besides root, the own user, the
            system user `longshore` and the ids in `$LONGSHORE_TRUST_UID`. Nothing is sent to the
            server of another user; the call raises `PermissionDeniedError`.
    """
    wanted = name_or_id if isinstance(name_or_id, int) else os.fspath(name_or_id)
    with observer(progress, [str(wanted)]) as observe:
        return _core.attach(
            wanted, socket=socket, format=format, observe=observe, trust_uid=list(trust_uid)
        )
