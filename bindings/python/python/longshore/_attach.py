"""`longshore.attach`."""

from __future__ import annotations

import operator
import os

from longshore import _core
from longshore._progress import observer
from longshore._source import remember

TYPE_CHECKING = False  # Not from typing, which takes longer to import than this package.
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from longshore._load import Format, Options, Progress, StrPath

UID_MAX = 0xFFFFFFFE
"""The greatest user id; the kernel reserves the next number."""


def attach(
    name_or_id: StrPath | int,
    *,
    socket: StrPath | None = None,
    format: Format = "auto",
    progress: Progress = None,
    trust_uid: Iterable[int] = (),
    cancel: _core.CancelToken | None = None,
) -> _core.Buffer:
    """Attach a model of `longshore serve`, which loads it if it does not hold it yet.

    The buffer maps the server's memory, which no process can change; attaching uses no memory of its
    own. This process opens the file, too, to prove that it may read it; a model on a server of another
    machine needs no proof, if `longshore serve` has a `--root` that permits it. The server keeps the model
    until the buffer and all its views are gone, or until `Buffer.close`; the memory stays valid after
    the server has ended.

    Args:
        name_or_id: A path, a name below a directory that is served, a name below a `--root` on a server
            such as "s3://my-bucket/models/llama/", or a number from `longshore ls`.
        socket: The path of the server's socket; None tries that of this user, then the system's.
        format: The format of the file; "auto" chooses it by the file's name.
        progress: As for `longshore.load`, while the server loads the model.
        trust_uid: Ids of users whose server this process may use, besides root, its own user, the
            system user `longshore` and the ids in `$LONGSHORE_TRUST_UID`. Nothing is sent to the
            server of any other user: the call raises `PermissionDeniedError`.
        cancel: A token that stops the call from another thread.
    """
    wanted, uids = _wanted(name_or_id), _uids(trust_uid)
    with observer(progress, [wanted]) as observe:
        buffer = _core.attach(
            wanted, socket=socket, format=format, observe=observe, trust_uid=uids, cancel=cancel
        )
    if isinstance(wanted, str) and os.path.exists(wanted):
        # Another process may have another working directory.
        wanted = os.path.abspath(wanted)
    there = None if socket is None else os.path.abspath(socket)
    remember(buffer, attach, wanted, {"socket": there, "format": format, "trust_uid": uids})
    return buffer


def attached(
    attach_it: bool, filename: StrPath, socket: StrPath | None, options: Options
) -> _core.Buffer | None:
    """Return the attached buffer for `load_file(attach=True)`, or None without `attach`."""
    if not attach_it:
        if socket is not None:
            raise ValueError("socket is the server to attach to; pass attach=True, too")
        return None
    rest = dict(options)
    allowed: dict[str, Any] = {key: rest.pop(key, None) for key in ("progress", "cancel")}
    if refused := ", ".join(rest):
        raise ValueError(f"the server chooses how it loads: with attach=True, do not pass {refused}")
    return attach(filename, socket=socket, format="safetensors", **allowed)


def _wanted(name_or_id: Any) -> str | int:
    if isinstance(name_or_id, int) and not isinstance(name_or_id, bool):
        if not 0 <= name_or_id < 1 << 64:
            raise ValueError(f"{name_or_id} is not the number of a model; `longshore ls` lists them")
        return name_or_id
    if isinstance(name_or_id, (str, os.PathLike)):
        path: str | bytes = os.fspath(name_or_id)
        return os.fsdecode(path)
    raise TypeError(
        f"expected a path, a name, or the number of a model, not {type(name_or_id).__name__}"
    )


def _uids(trust_uid: Any) -> list[int]:
    try:
        uids = [operator.index(uid) for uid in trust_uid]
    except TypeError:
        raise TypeError(
            f"trust_uid must be a sequence of user ids, such as [1000], not {trust_uid!r}"
        ) from None
    for uid in uids:
        if not 0 <= uid <= UID_MAX:
            raise ValueError(f"trust_uid: {uid} is not a user id (expected 0 to {UID_MAX})")
    return uids
